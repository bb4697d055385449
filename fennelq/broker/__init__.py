"""The only package that communicates with Redis.

`verbs` describe calls as values; `Broker` sends them on an event loop, `BlockingBroker` without one.
"""
