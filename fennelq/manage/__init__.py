"""For operators: inspect jobs, queues, dead jobs, schedules and executors, and change them.

Workers run jobs without this package: no ring below it imports it.
"""
