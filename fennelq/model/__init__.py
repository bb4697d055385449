"""The values that describe jobs, and pure decisions: no I/O, no clock, no Redis."""
