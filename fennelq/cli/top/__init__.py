"""`fennelq top`: queues, running jobs and dead jobs on a terminal, and the actions on them.

Only `program`, `screen`, `listing`, `dialogs` and `acting` import Textual. The views, the actions and `--once` work
without it.
"""
