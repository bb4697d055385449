"""A web app and its worker: one module of tasks, imported by both."""
