"""Checks the keys that a test has left: what must hold of them is in `fennelq.manage.invariants.invariants`.

One script takes a picture of all keys, so nothing moves in it; a failure lists every problem at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final

import redis

from fennelq.broker.keys import parse_key
from fennelq.broker.verb import text
from fennelq.manage.invariants.invariants import Problem, problems_of
from fennelq.manage.invariants.picture import Group, Hash, Key, Length, Members, Stream, Value
from fennelq.manage.invariants.records import RECORD_FIELDS
from tests.kit.server import Server

MOST_SHOWN = 30
LONGEST_PICTURE: Final = 300.0
"""Seconds."""
INDEX: Final = "the index of dead jobs"

PICTURE: Final = """
local picture = {}
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do
  local kind, content = redis.call('TYPE', key).ok, {}
  if kind == 'hash' then
    local record = string.find(key, '}:j:', 1, true) ~= nil
    content = {record and redis.call('HMGET', key, unpack(ARGV, 2)), not record and redis.call('HGETALL', key)}
  elseif kind == 'zset' then
    content = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  elseif kind == 'set' then
    content = redis.call('SMEMBERS', key)
  elseif kind == 'list' then
    content = redis.call('LLEN', key)
  elseif kind == 'string' then
    content = redis.call('GET', key)
  elseif kind == 'stream' then
    content = {redis.call('XRANGE', key, '-', '+'), {}}
    for _, group in ipairs(redis.call('XINFO', 'GROUPS', key)) do
      local facts = {}
      for i = 1, #group, 2 do facts[group[i]] = group[i + 1] end
      local pending = redis.call('XPENDING', key, facts.name, '-', '+', 10000000)
      table.insert(content[2], {facts.name, facts['last-delivered-id'], pending})
    end
  end
  table.insert(picture, {key, kind, redis.call('PEXPIRETIME', key), content})
end
return picture
"""

CAUGHT_ERRORS: Final = """
local found = {}
for _, key in ipairs(redis.call('KEYS', 'fq:*:stats')) do
  for _, what in ipairs({'leaving_failed', 'open_failed', 'mend_failed'}) do
    local times = redis.pcall('HGET', key, what)
    if type(times) == 'string' then found[#found + 1] = {key, what, times} end
  end
end
return found
"""


def audit(
    where: Server | redis.Redis,
    app: str | None = None,
    *,
    unfinished: bool = False,
    lost: Collection[str] = (),
    leavings_fail: bool = False,
    index_is_wrong: bool = False,
) -> None:
    """Fails with a list of everything that is wrong with the keys of `app` (of all apps).

    Every job that was delivered must have been settled or handed back, unless executors may be `unfinished`:
    still at work, or killed. Jobs of which a test has removed a record or an entry are `lost`, by id
    (`queue:key`): their keys are not checked. Scripts catch and count an error in a leaving or a gate, so no test
    would notice it: there must be none, unless a test makes `leavings_fail`. `index_is_wrong` when a test has damaged
    the index of dead jobs, or an executor of an earlier release has removed a dead job, and `index` has not looked
    since.
    """
    __tracebackhide__ = True
    if isinstance(where, Server):
        # After a long run, the picture is one script over hundreds of thousands of keys.
        with where.client(timeout=LONGEST_PICTURE) as client:
            audit(
                client,
                app,
                unfinished=unfinished,
                lost=lost,
                leavings_fail=leavings_fail,
                index_is_wrong=index_is_wrong,
            )
        return
    found = problems(where, app, unfinished=unfinished, lost=lost)
    wrong: list[object] = [one for one in found if not (index_is_wrong and one.text.startswith(INDEX))]
    if not leavings_fail:
        wrong += caught_errors(where)
    if wrong:
        more = [f"… and {len(wrong) - MOST_SHOWN} more"] if len(wrong) > MOST_SHOWN else []
        shown = [str(problem) for problem in wrong[:MOST_SHOWN]]
        raise AssertionError("\n  ".join(["the keys are not as they must be:", *shown, *more]))


def problems(
    client: redis.Redis, app: str | None = None, *, unfinished: bool = False, lost: Collection[str] = ()
) -> list[Problem]:
    """Everything that is wrong."""
    found = problems_of(picture(client, app), all_stopped=not unfinished)
    return [problem for problem in found if f"{problem.queue}:{problem.job}" not in lost]


def caught_errors(client: redis.Redis) -> list[str]:
    """The queues in which a script has caught an error and counted it."""
    found: Any = client.eval(CAUGHT_ERRORS, 0)
    return [f"{text(key)}: {text(what)} {text(times)} times" for key, what, times in found]


def picture(client: redis.Redis, app: str | None = None) -> Iterator[Key]:
    """All keys of `app` (of all apps), at one moment."""
    pattern = f"fq:{{{app}*" if app else "fq:*"
    taken: Any = client.eval(PICTURE, 0, pattern, *RECORD_FIELDS)
    for raw, kind, expires_ms, content in taken:
        name = text(raw)
        if app is None or parse_key(name).app == app:
            expires = None if expires_ms < 0 else expires_ms
            yield Key(name, text(kind), expires, _content(text(kind), content))


def _content(kind: str, content: Any) -> Hash | Stream | Members | Length | Value:
    match kind:
        case "hash":
            of_record, flat = content
            fields = (
                zip(RECORD_FIELDS, of_record, strict=True)
                if of_record
                else zip(flat[::2], flat[1::2], strict=True)
            )
            return Hash({text(name): text(value) for name, value in fields if value is not None})
        case "zset":
            return Members([*map(text, content[::2])], [*map(float, content[1::2])])
        case "stream":
            entries, groups = content
            return Stream(
                {text(entry): text(fields[1]) if fields[0] == b"i" else None for entry, fields in entries},
                [_group(*group) for group in groups],
                {text(entry): _texts(fields) for entry, fields in entries},
            )
        case "list":
            return Length(content)
        case "string":
            return Value(text(content))
        case _:
            return Members([text(member) for member in content])


def _texts(flat: list[Any]) -> dict[str, str]:
    return {text(name): text(value) for name, value in zip(flat[::2], flat[1::2], strict=True)}


def _group(name: bytes, last_delivered: bytes, pending: list[Any]) -> Group:
    return Group(
        text(name), text(last_delivered), {text(entry): text(owner) for entry, owner, _, _ in pending}
    )
