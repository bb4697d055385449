"""How a process waits for the ends of jobs on an event loop, and finds out why a job has not ended."""
