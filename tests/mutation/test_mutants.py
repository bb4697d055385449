"""The generator takes away what it should, and leaves Lua behind."""

from __future__ import annotations

from tests.mutation.mutants import Mutant, mutants_of

SCRIPT = """\
-- redis.call('DEL', comment)
local function settle(record, why)
  if why and redis.call('HGET', record, 's') ~= 'S' then return 0 end
  redis.call('HSET', record, 's', 'K', 'y', why)  -- and so on
  done[#done + 1] = record or 'a and b'
  return redis.call('XACK', stream, entry) == 1 and 2 or 3
end
if a then write(b) else forget(c) end
"""


CHANGED = {
    ("settle", "if why and redis.call('HGET', record, 's… → true"): "if true then return 0 end",
    ("settle", "if why and redis.call('HGET', record, 's… → false"): "if false then return 0 end",
    ("settle", "without why"): "if redis.call('HGET', record, 's') ~= 'S' then return 0 end",
    ("settle", "without redis.call('HGET', record, 's') ~= 'S'"): "if why then return 0 end",
    ("settle", "removed: redis.call('HSET', record, 's', 'K', …"): "do end -- and so on",
    ("settle", "HSET without 's', 'K'"): "redis.call('HSET', record, 'y', why) -- and so on",
    ("settle", "HSET without 'y', why"): "redis.call('HSET', record, 's', 'K') -- and so on",
    ("settle", "removed: done[#done + 1] = record or 'a and b'"): "do end",
    ("settle", "without record"): "done[#done + 1] = 'a and b'",
    ("settle", "without 'a and b'"): "done[#done + 1] = record",
    ("settle", "redis.call('XACK', stream, entry) → 1"): "return 1 == 1 and 2 or 3",
    ("settle", "without 3"): "return redis.call('XACK', stream, entry) == 1 and 2",
    ("settle", "without redis.call('XACK', stream, entry) == …"): "return 3",
    ("settle", "without redis.call('XACK', stream, entry) == 1"): "return 2 or 3",
    ("settle", "without 2"): "return redis.call('XACK', stream, entry) == 1 or 3",
    ("", "if a → true"): "if true then write(b) else forget(c) end",
    ("", "if a → false"): "if false then write(b) else forget(c) end",
    ("", "removed: write(b)"): "if a then do end else forget(c) end",
    ("", "removed: forget(c)"): "if a then write(b) else do end end",
}


def test_writes_guards_and_operands_are_taken_away_one_at_a_time() -> None:
    assert {
        (mutant.function, mutant.change): changed_line(mutant) for mutant in mutants_of("x.lua", SCRIPT)
    } == CHANGED


def changed_line(mutant: Mutant) -> str:
    return " ".join(mutant.source.splitlines()[mutant.line - 1].split())


def test_only_one_line_of_a_mutant_differs() -> None:
    for mutant in mutants_of("x.lua", SCRIPT):
        lines = zip(SCRIPT.splitlines(), mutant.source.splitlines(), strict=True)
        assert [number for number, (old, new) in enumerate(lines, 1) if old != new] == [mutant.line]


def test_two_changes_that_read_the_same_have_different_names() -> None:
    mutants = mutants_of(
        "x.lua", "local function f()\n  write(a)\n  write(a)\nend\nlocal function g() write(a) end\n"
    )
    assert [(mutant.function, mutant.change) for mutant in mutants][:2] == [
        ("f", "removed: write(a)"),
        ("f", "removed: write(a) (2)"),
    ]
