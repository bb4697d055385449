"""The executors of an app: what they report, what they answer, and their profiles."""
