"""Processes for tasks with `isolation="process"`: a cell runs one job at a time, and can be killed alone.

frames      how an executor and a cell talk: length, JSON header, the codec's bytes
preload     what a cell must have imported, and where it finds it
forkserver  the process that has imported the app, and forks a cell on request
inside      the work of a cell; pair: its connection; forwarding: its log lines
launcher    the executor's side of the forkserver; cell: of one cell; pool: of all of them
"""
