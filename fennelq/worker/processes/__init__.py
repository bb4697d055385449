"""The supervisor, its executor processes, and how a worker starts and stops."""
