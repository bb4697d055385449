"""Sends jobs and waits for them without an event loop: for scripts, Django views, threads, forked processes."""
