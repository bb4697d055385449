"""What a worker promises, while processes die, networks break and Redis is restarted under it.

    fleet     real workers, and what can be done to them
    jobs      the app they run: every run is written down in a ledger outside Redis
    account   what became of every job, by Redis and by the ledger
    load      clients that do not give up
    storm     load and random faults, from a seed
    client    a client that can be made to die in the middle
    crew      executors without a supervisor, to keep time; clockwork is what they do
    sleepers  executors that sleep until a message wakes them
    skew      a machine whose clock is wrong
    rows      the faults that are tested, by the numbers that tests name them by

`make test` runs a reduced version of everything (`scale` has the factor), `make chaos` the long one (`long`), and
`make chaos DEMO=1` a short one that explains itself (`demo`).
"""
