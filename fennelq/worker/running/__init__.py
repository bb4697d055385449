"""Runs jobs: the way from a delivery to its settled outcome."""
