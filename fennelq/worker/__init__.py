"""Runs jobs. Each process runs one Executor; a Supervisor keeps a number of these processes alive."""
