"""The only package that talks to Redis.

`verbs` describe calls as values; `Broker` sends them on an event loop, `BlockingBroker` without one.
"""
