"""The supervisor, its executor processes, and the start and stop of a worker."""
