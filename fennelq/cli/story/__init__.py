"""The story of a job on a terminal."""
