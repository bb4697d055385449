"""Threads that must outlive a blocked event loop."""
