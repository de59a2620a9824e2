"""Rows of deployed entities: what is read and written through the permissions of who asks."""
