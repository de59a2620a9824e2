"""Events on their way out: webhooks, fed by the change feed, with a cursor per subscription.

Writers pay nothing for it: whatever a receiver does, no row waits for it.
"""
