"""Checks the keys that a test has left: what must hold of them is in `fennelq.manage.invariants`.

One script takes a picture of all keys, so nothing moves in it; a failure lists every problem at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final

import redis

from fennelq.broker.keys import parse_key
from fennelq.broker.verb import text
from fennelq.manage.invariants import (
    RECORD_FIELDS,
    Group,
    Hash,
    Key,
    Length,
    Members,
    Problem,
    Stream,
    Value,
    problems_of,
)
from tests.kit.server import Server

MOST_SHOWN = 30

PICTURE: Final = """
local picture = {}
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do
  local kind, content = redis.call('TYPE', key).ok, {}
  if kind == 'hash' then
    content = redis.call('HMGET', key, unpack(ARGV, 2))
  elseif kind == 'zset' then
    content = redis.call('ZRANGE', key, 0, -1)
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


def audit(
    where: Server | redis.Redis,
    app: str | None = None,
    *,
    unfinished: bool = False,
    lost: Collection[str] = (),
) -> None:
    """Fails with a list of everything that is wrong with the keys of `app` (of all apps).

    Every job that was delivered must have been settled or handed back, unless executors may be `unfinished`:
    still at work, or killed. Jobs of which a test has removed a record or an entry are `lost`, by id
    (`queue:key`): their keys are not checked.
    """
    __tracebackhide__ = True
    if isinstance(where, Server):
        with where.client() as client:
            wrong = problems(client, app, unfinished=unfinished, lost=lost)
    else:
        wrong = problems(where, app, unfinished=unfinished, lost=lost)
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
            fields = zip(RECORD_FIELDS, content, strict=True)
            return Hash({name: text(value) for name, value in fields if value is not None})
        case "stream":
            entries, groups = content
            return Stream(
                {text(entry): text(fields[1]) if fields[0] == b"i" else None for entry, fields in entries},
                [_group(*group) for group in groups],
            )
        case "list":
            return Length(content)
        case "string":
            return Value(text(content))
        case _:
            return Members([text(member) for member in content])


def _group(name: bytes, last_delivered: bytes, pending: list[Any]) -> Group:
    return Group(
        text(name), text(last_delivered), {text(entry): text(owner) for entry, owner, _, _ in pending}
    )
