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
    "if why and redis.call('HGET', record, 's') ~= 'S' → true": "if true then return 0 end",
    "if why and redis.call('HGET', record, 's') ~= 'S' → false": "if false then return 0 end",
    "without 'why' in: why and redis.call('HGET', record, 's') ~= 'S'": (
        "if redis.call('HGET', record, 's') ~= 'S' then return 0 end"
    ),
    "without 'redis.call('HGET', record, 's') ~= 'S'' in: why and redis.call('HGET', record, 's') ~= 'S'": (
        "if why then return 0 end"
    ),
    "removed: redis.call('HSET', record, 's', 'K', 'y', why)": "do end -- and so on",
    "HSET without 's', 'K'": "redis.call('HSET', record, 'y', why) -- and so on",
    "HSET without 'y', why": "redis.call('HSET', record, 's', 'K') -- and so on",
    "removed: done[#done + 1] = record or 'a and b'": "do end",
    "without 'record' in: record or 'a and b'": "done[#done + 1] = 'a and b'",
    "without ''a and b'' in: record or 'a and b'": "done[#done + 1] = record",
    "redis.call('XACK', stream, entry) → 1": "return 1 == 1 and 2 or 3",
    "without '3' in: redis.call('XACK', stream, entry) == 1 and 2 or 3": (
        "return redis.call('XACK', stream, entry) == 1 and 2"
    ),
    "without 'redis.call('XACK', stream, entry) == 1 and 2' in: "
    "redis.call('XACK', stream, entry) == 1 and 2 or 3": "return 3",
    "without 'redis.call('XACK', stream, entry) == 1' in: redis.call('XACK', stream, entry) == 1 and 2": (
        "return 2 or 3"
    ),
    "without '2' in: redis.call('XACK', stream, entry) == 1 and 2": (
        "return redis.call('XACK', stream, entry) == 1 or 3"
    ),
    "if a → true": "if true then write(b) else forget(c) end",
    "if a → false": "if false then write(b) else forget(c) end",
    "removed: write(b)": "if a then do end else forget(c) end",
    "removed: forget(c)": "if a then write(b) else do end end",
}


def test_writes_guards_and_operands_are_taken_away_one_at_a_time() -> None:
    assert {mutant.change: changed_line(mutant) for mutant in mutants_of("x.lua", SCRIPT)} == CHANGED


def changed_line(mutant: Mutant) -> str:
    return " ".join(mutant.source.splitlines()[mutant.line - 1].split())


def test_only_one_line_of_a_mutant_differs() -> None:
    for mutant in mutants_of("x.lua", SCRIPT):
        lines = zip(SCRIPT.splitlines(), mutant.source.splitlines(), strict=True)
        assert [number for number, (old, new) in enumerate(lines, 1) if old != new] == [mutant.line]
