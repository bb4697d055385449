"""Runs jobs. One process is one Executor; a Supervisor keeps a number of them alive."""
