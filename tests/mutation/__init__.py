"""Are the tests any good? Take away, one at a time, what scripts and modules do, and every guard in them.

    python -m tests.mutation                      all of it (some hours on two cores)
    python -m tests.mutation fetch lib/settle     scripts
    python -m tests.mutation consumer waiting     modules
    python -m tests.mutation --list consumer      what would be taken away
    python -m tests.mutation --only _subscribe waiting

Of a Lua script, each write, field and guard is removed. Of a Python module also: a statement, an operand, an `except`,
an argument with a default, a limit or a shield; a condition is decided, a comparison moved, a sign inverted, a loop cut
short or reversed, an answer emptied, and two lists that belong together are zipped the wrong way round.

A mutant that no test notices is a survivor. It needs a test, or an entry in `equivalent.py` (scripts) or
`equivalent_python.py` (modules) that explains why no user could notice. A mutant is judged by the tests that run what
was changed, the block of a script or the function of a module: for scripts those of `tests/broker`, for modules tests
of their own and then some more (`modules.py` names them). A test that starts processes judges no module. Where a
failure may come from a busy machine, the test has to fail twice.

The folder `.mutation` keeps the mutants that were noticed, until the mutated file or the test that noticed changes: the
next run judges the others. `--seconds 300` ends a run early. `--again` judges everything.
`MUTATION_OUTPUT=file` keeps what pytest prints.
"""
