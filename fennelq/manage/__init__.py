"""For operators: look at jobs, queues, dead jobs, schedules and executors, and change them.

Running jobs never needs it: nothing below this ring imports it.
"""
