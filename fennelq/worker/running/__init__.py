"""Running jobs: from a delivery to its settled outcome."""
