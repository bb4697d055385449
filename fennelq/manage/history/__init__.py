"""The history: what jobs were, and how they ended, in a database of the user's own. Workers know nothing of it."""
