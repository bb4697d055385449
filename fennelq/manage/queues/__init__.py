"""The queues of an app: what is known of them, and what an operator can change."""
