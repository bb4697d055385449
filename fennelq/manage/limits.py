"""The limits of the queues: what the code says, what an operator has changed, and how many jobs wait for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from fennelq.broker import verbs
from fennelq.broker.dispatch import pages
from fennelq.broker.keys import queue_keys
from fennelq.broker.talk import Talk, ask, ask_all, together
from fennelq.broker.trouble import ReplyError
from fennelq.errors import BrokerUnavailable, ConfigurationError, UnknownLimit
from fennelq.manage.dead.search import named
from fennelq.manage.finding import problem_of
from fennelq.manage.offered import Awaiting, Blocking, Family, Operation
from fennelq.manage.queues.queues import QUEUES_AT_ONCE, queues_of
from fennelq.model.checks import valid_name
from fennelq.model.gates import CONCURRENCY, LATEST, RATE, TURN, definition_of
from fennelq.model.limits import Definition, Limit, Rate, interval_of, numbers_in_words

if TYPE_CHECKING:
    from fennelq.app import App

LimitKind = Literal["concurrency", "rate", "turn"]
"""The option that makes a limit: `concurrency`, `rate_limit` or `fair_key`."""

_KINDS: Final[Mapping[str, LimitKind]] = {CONCURRENCY: "concurrency", RATE: "rate", TURN: "turn"}
_ADVICE: Final = {
    CONCURRENCY: "counts running jobs: write a number, like 3",
    RATE: "counts how many jobs start per second: write a rate, like 50/s",
    TURN: "is a fair_key, which has no number",
}
_LINES_AT_ONCE: Final = 1000
_GATES_AT_ONCE: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitInfo:
    """A limit in a queue, at one moment."""

    name: str
    queue: str
    kind: LimitKind
    """`turn` is the `fair_key` of tasks, which has no number."""
    code: str | None
    """What the code of this app says: `3`, `10/s`, `10/s, burst 5`. None when none of its tasks has this limit."""
    changed: str | None
    """The numbers that `set` has written, which override the code; None when nothing was set."""
    tasks: Sequence[str]
    """The tasks of this app that have the limit."""
    gates: int
    """The number of its gates at which jobs wait. A limit with a key has one gate for each value of the key."""
    waiting: int
    """How many jobs wait there."""
    problem: str = ""
    """Why the queue cannot be read. Then `changed`, `gates` and `waiting` are not known."""

    @property
    def numbers(self) -> str | None:
        """The numbers that apply."""
        return self.changed or self.code


class _Known(NamedTuple):
    """The limits of a queue, by definition."""

    queue: str
    code: Mapping[str, Definition]
    tasks: Mapping[str, Sequence[str]]
    changed: Mapping[str, str] = MappingProxyType({})
    gates: Mapping[str, int] = MappingProxyType({})
    waiting: Mapping[str, int] = MappingProxyType({})
    problem: str = ""

    @property
    def definitions(self) -> set[str]:
        """Without those of kinds that only a later version knows, and without those of `dedupe="latest"`: with another
        number there, an older call would run beside a newer one."""
        every = (*self.code, *self.changed, *self.gates)
        return {one for one in every if one[:1] in _KINDS and not one[2:].startswith(LATEST)}

    def info(self, definition: str) -> LimitInfo:
        kind, _, name = definition.partition(":")
        code, changed = self.code.get(definition), self.changed.get(definition)
        return LimitInfo(
            name=name,
            queue=self.queue,
            kind=_KINDS[kind],
            code=None if code is None or kind == TURN else numbers_in_words(kind, code.numbers),
            changed=None if changed is None else numbers_in_words(kind, changed),
            tasks=self.tasks.get(definition, ()),
            gates=self.gates.get(definition, 0),
            waiting=self.waiting.get(definition, 0),
            problem=self.problem,
        )

    def named(self, name: str) -> list[str]:
        """The definitions of this name, or of a task of this name."""
        return sorted(
            one
            for one in self.definitions
            if one.partition(":")[2] == name
            or any(named(task, name, ":") for task in self.tasks.get(one, ()))
        )


# Defined here, because inside the class `list` is a method.
if TYPE_CHECKING:
    from fennelq.app import App

Infos = list[LimitInfo]


class LimitTalks(Family):
    """The operations on limits."""

    _attribute = "limits"

    @Operation
    def list(self, queue: str | None = None) -> Talk[Infos]:
        """The limits of every queue, or of one, that tasks of this app have, that were changed, or for which jobs wait;
        sorted by queue and name. Of a queue that cannot be read, those of the tasks, with their `problem`."""
        queues = sorted((yield from queues_of(self._app))) if queue is None else [valid_name("queue", queue)]
        infos: Infos = []
        for page in pages(queues, QUEUES_AT_ONCE):
            for known in (yield from together(self._known_or_in_code(name) for name in page)):
                infos += [known.info(one) for one in sorted(known.definitions, key=_by_name)]
        return infos

    @Operation
    def set(self, name: str, number: int | str, *, queue: str, burst: int | None = None) -> Talk[LimitInfo]:
        """Change the number of a limit in a queue, at once and for all jobs: `set("account", 3, queue="mail")`, or a
        rate, `set("send", "50/s", queue="mail", burst=5)`. It overrides the code until it is reset.

        `name` is the name of the limit, or a task that has it. After a higher number, waiting jobs start at once; a
        lower number stops no running job. Raises UnknownLimit when no task of this app has it and no job waits for it.
        """
        kind, numbers = _numbers(number, burst)
        known = yield from self._known(valid_name("queue", queue))
        definition = _only(known, name, kind)
        if kind == RATE and burst is None and definition in known.code:
            numbers = f"{numbers.partition('/')[0]}/{known.code[definition].burst}"
        yield from self._change(queue, definition, numbers)
        return (yield from self._known(queue)).info(definition)

    @Operation
    def reset(self, name: str, *, queue: str) -> Talk[Infos]:
        """Undo `set` for a limit in a queue: the numbers in the code apply again. Returns the limits that were reset;
        an empty list when none was changed."""
        known = yield from self._known(valid_name("queue", queue))
        if not (definitions := known.named(name)):
            raise _unknown(known, name)
        changed = [one for one in definitions if one in known.changed]
        for definition in changed:
            yield from self._change(queue, definition, "")
        after = yield from self._known(queue)
        return [after.info(definition) for definition in changed]

    def _change(self, queue: str, definition: str, numbers: str) -> Talk[None]:
        keys, cursor = queue_keys(self._app.namespace, queue), "0"
        while True:
            cursor, _ = yield from ask(verbs.queues.limit(keys, definition, numbers, cursor))
            if cursor == "0":
                return

    def _known_or_in_code(self, queue: str) -> Talk[_Known]:
        """The limits of a queue; only those in the code when the queue cannot be read."""
        try:
            return (yield from self._known(queue))
        except (ReplyError, BrokerUnavailable) as error:
            if isinstance(error, BrokerUnavailable) and error.retriable:
                raise
            return self._in_code(queue)._replace(problem=str(problem_of(self._app, queue, error)))

    def _known(self, queue: str) -> Talk[_Known]:
        changed = yield from ask(verbs.lines.changed(queue_keys(self._app.namespace, queue)))
        gates, waiting = yield from self._waiting(queue)
        return self._in_code(queue)._replace(changed=changed, gates=gates, waiting=waiting)

    def _in_code(self, queue: str) -> _Known:
        code: dict[str, Definition] = {}
        tasks: dict[str, list[str]] = {}
        for task in self._app.tasks.values():
            if task.limits is None or task.queue != queue:
                continue
            for definition, limit in task.limits.definitions.items():
                code[definition] = limit
                tasks.setdefault(definition, []).append(task.name)
        return _Known(queue, code, tasks)

    def _waiting(self, queue: str) -> Talk[tuple[Mapping[str, int], Mapping[str, int]]]:
        """At how many gates of each definition jobs wait, and how many."""
        keys, cursor = queue_keys(self._app.namespace, queue), "0"
        gates: dict[str, set[str]] = {}
        waiting: dict[str, int] = {}
        while True:
            cursor, lines = yield from ask(verbs.lines.scan(keys, cursor, _LINES_AT_ONCE))
            for page in pages([*lines.items()], _GATES_AT_ONCE):
                lengths = yield from ask_all(verbs.lines.length(keys, line) for line, _ in page)
                for (_, gate), length in zip(page, lengths, strict=True):
                    definition = definition_of(gate)
                    gates.setdefault(definition, set()).add(gate.partition("@")[0])
                    waiting[definition] = waiting.get(definition, 0) + length
            if cursor == "0":
                return {one: len(found) for one, found in gates.items()}, waiting


class Limits(LimitTalks, Awaiting):
    """The limits of the queues."""


class BlockingLimits(LimitTalks, Blocking):
    """The limits of the queues, for code without an event loop: `app.sync.limits`."""


def some_limits(app: App, queues: Sequence[str]) -> Talk[list[Infos]]:
    """The limits of each of these queues."""
    talks = LimitTalks(app)
    every = yield from together(talks._known(name) for name in queues)  # pyright: ignore[reportPrivateUsage]
    return [[known.info(one) for one in sorted(known.definitions, key=_by_name)] for known in every]


def _by_name(definition: str) -> tuple[str, str]:
    kind, _, name = definition.partition(":")
    return name, kind


def _numbers(number: int | str, burst: int | None) -> tuple[str, str]:
    """The kind of limit that has such a number, and the numbers as Redis keeps them."""
    if isinstance(number, str) and number.strip().isdecimal():
        number = int(number)
    if not isinstance(number, str):
        if burst is not None:
            raise ConfigurationError("burst is for rates: write 50/s, and not only a number")
        return CONCURRENCY, str(Limit(number).number)
    rate = Rate(number, burst=1 if burst is None else burst)
    return RATE, f"{interval_of(rate.rate)}/{rate.burst}"


def _only(known: _Known, name: str, kind: str) -> str:
    """The definition of this name and kind."""
    found = known.named(name)
    if fitting := [one for one in found if one[:1] == kind]:
        return fitting[0]
    if not found:
        raise _unknown(known, name)
    advice = "; or ".join(_ADVICE[one[:1]] for one in found)
    raise ConfigurationError(f"limit {name!r} of queue {known.queue!r} {advice}")


def _unknown(known: _Known, name: str) -> UnknownLimit:
    return UnknownLimit(name, known.queue, [one.partition(":")[2] for one in known.definitions])
