"""Threads that must keep working while the event loop is blocked."""
