"""Dead jobs: finds, groups, replays, changes, exports, imports and removes them."""
