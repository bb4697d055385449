"""What the parameters of tasks have injected: found out when a task is registered, so that a worker only makes values.

markers     Depends, Shared, injected: what a parameter is marked with
signatures  reads signatures: which parameters are marked, how the value of a provider is made
recipe      resolves the parameters of one function to a flat list of values
registry    the functions of an app, its lifespan, its overrides

`worker/running/injecting.py` makes the values of a job, `worker/shared.py` those that jobs share.
"""
