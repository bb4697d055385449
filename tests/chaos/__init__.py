"""What a worker promises, while processes die, networks break and Redis is restarted under it.

    fleet     real workers, and what can be done to them
    jobs      the app they run: every run is written down in a ledger outside Redis
    account   what became of every job, by Redis and by the ledger
    storm     load and random faults, from a seed
    crew      executors without a supervisor, to keep time; clockwork is what they do
    skew      a machine whose clock is wrong

`make test` runs a reduced version of everything; `make chaos` is the long one.
"""
