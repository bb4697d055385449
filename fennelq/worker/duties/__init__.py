"""Background duties of an executor: each is a service with a tick()."""
