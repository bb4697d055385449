"""Are the tests of the scripts any good? Take away, one at a time, everything a script writes and every guard in it.

    python -m tests.mutation                 all scripts (some twenty minutes on two cores)
    python -m tests.mutation fetch lib/settle
    python -m tests.mutation --list fetch    what would be taken away

A mutant that no test of `tests/broker` notices is a survivor: it needs a test, or an explanation in `equivalent.py`
why nobody could notice.
"""
