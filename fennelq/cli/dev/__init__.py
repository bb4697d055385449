"""`fennelq dev`: a worker, the dashboard and the history, from one command.

    dev ─┬─ web      the pages, and the recorder of the history     page.py
         └─ worker   `fennelq worker -p 1 --reload`                 worker.py

parent.py    starts both, replaces the pages when a source file changes, and ends all
part.py      one of the two, as the parent sees it
tie.py       the same as the process itself sees it: it ends when the parent has ended
log.py       the log: what all of them print, with the name of the process before each line
plan.py      what is run, and where
"""
