"""Measures fennelq against the floor and, on request, against its peers. Run it with ``make bench``.

    __main__     arguments, exit code          contestant   who competes, and how its worker is started
    session      interleaves the repeats       floor        the hand-written loop everything is compared with
    arena        one sample's fresh world      fennelq_side the same jobs through fennelq's public API
    server       the Redis it runs on          peers/       other libraries, each in an environment of its own
    worker       the worker's processes        jobs         the task bodies all contestants share
    tally        completions in shared memory  client       the sending and waiting side, a process of its own
    rows/        one module per row            report       table and JSON

Nothing here is imported by fennelq. This module stays empty of imports: peers load the package without
fennelq's dependencies.
"""
