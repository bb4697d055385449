"""The commands, a file for each. None of them imports another: what they share is in `fennelq/cli/`."""
