"""The reconcile loop: keeps the warehouse equal to a Git branch."""
