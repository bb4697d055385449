"""The commands, a file for each. They do not import each other: shared code is in `fennelq/cli/`."""
