"""The settings: what they are, where they come from, and which of them contradict each other."""
