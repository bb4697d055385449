"""The only package that speaks Redis.

`verbs` say what to say, as values; `Broker` says it on an event loop, `BlockingBroker` without one.
"""
