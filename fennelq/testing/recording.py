"""What the brokers of an app under test note and change: which jobs were sent, and which outcomes get lost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, get_args

from fennelq.broker import verbs
from fennelq.broker.keys import LANES, QueueKeys, parse_key, queue_keys
from fennelq.broker.verb import Verb, text
from fennelq.model.fields import SENT
from fennelq.model.job import Priority
from fennelq.testing.sent import WireCall

_PRIORITIES: Final[Mapping[str, Priority]] = {LANES[priority]: priority for priority in get_args(Priority)}
_CARRIED = {letter: name for name, letter in SENT.items()}
_CREATING: Final = ("enqueue", "displace")
"""The scripts that create jobs. Both have the same words for each job."""
_CREATED = (1, 0)
"""The replies for a job that this caller has created: now, or by an earlier attempt whose reply was lost."""


class Recording:
    """Shared by all brokers of a block of `testing(app)`. Threads may use it."""

    def __init__(self) -> None:
        self.sent: dict[str, WireCall] = {}
        """The jobs that were created, by their ids, in order."""
        self.eager = False
        """Whether a job runs as soon as it is sent."""
        self._new: set[str] = set()
        """With `eager`: the jobs that were created and are not run yet."""
        self._seen: set[str] | None = None
        """With `deliver_twice`: the jobs whose first outcome was lost."""

    def lose_first_outcomes(self, lose: bool) -> None:
        """From now on, the first outcome of each job gets lost, or no outcome any more."""
        self._seen = set() if lose else None

    def note(self, verb: Verb[Any], reply: Any) -> list[str]:
        """Note the jobs that this call has created; returns their ids."""
        if verb.name not in _CREATING:
            return []
        calls = [*zip(_calls_in(verb), reply, strict=True)]
        made = [call for call, code in calls if code in _CREATED]
        for call in made:
            self.sent.setdefault(call.id, call)
            if self.eager:
                self._new.add(call.id)
        for call, code in calls:
            if isinstance(code, bytes):
                self._note_duplicate(call, f"{call.queue}:{text(code)}")
        return [call.id for call in made]

    def _note_duplicate(self, call: WireCall, holder: str) -> None:
        """Note that a call has replaced that of a job which had not begun."""
        first = self.sent.get(holder)
        if first is not None and first.may_be_replaced and call.replaces:
            options = {"options": call.fields["options"]} if "options" in call.fields else {}
            kept = {name: value for name, value in first.fields.items() if name != "options"}
            self.sent[holder] = first._replace(args=call.args, fields={**kept, **options})

    def to_run(self, ids: Iterable[str]) -> list[str]:
        """Those of these jobs that are to run now. A job that existed before is not: it may be the one that waits for
        this call, and sends itself."""
        found = [one for one in ids if one in self._new]
        self._new.difference_update(found)
        return found

    def losses(self, verb: Verb[Any]) -> Losses | None:
        """Which of the outcomes that this call writes get lost; None when all are written."""
        if verb.name != "finish" or self._seen is None:
            return None
        return Losses(verb, self._seen)


class Losses:
    """A call of `finish`, divided: the outcomes that are written, and the runs whose outcomes get lost."""

    def __init__(self, verb: Verb[list[int]], seen: set[str]) -> None:
        start, width = len(verb.script.args), len(verb.script.each)
        self._head = verb.args[:start]
        self._runs = [verb.args[at : at + width] for at in range(start, len(verb.args), width)]
        self._keys = _keys_of(verb)
        self._lost: list[bool] = []
        for _, job, *_ in self._runs:
            name = f"{self._keys.queue}:{text(job)}"
            self._lost.append(name not in seen)
            seen.add(name)
        self._verb = verb

    @property
    def handing_back(self) -> Verb[int]:
        """Puts the jobs back whose outcomes get lost, as after a crash between the handler and the outcome."""
        places = [str(place) for (place, *_), lost in zip(self._runs, self._lost, strict=True) if lost]
        entries = [(lane, entry) for lane, _, entry in (place.partition("/") for place in places)]
        return verbs.runs.release(self._keys, entries)

    @property
    def writing(self) -> Verb[list[int]] | None:
        """Writes the other outcomes; None when all get lost."""
        kept = [run for run, lost in zip(self._runs, self._lost, strict=True) if not lost]
        words = [word for run in kept for word in run]
        return self._verb._replace(args=[*self._head, *words]) if kept else None

    def answers(self, written: Sequence[int]) -> list[int]:
        """The replies that the executor gets: it does not learn that an outcome got lost."""
        replies = iter(written)
        return [1 if lost else next(replies) for lost in self._lost]


def _calls_in(verb: Verb[Any]) -> Iterator[WireCall]:
    """The jobs in a call of a script that creates jobs."""
    keys, words = _keys_of(verb), list(verb.args[len(verb.script.args) :])
    at, width = 0, len(verb.script.each)
    while at < len(words):
        key, lane, due, task, args, count = words[at : at + width]
        carried = words[at + width : at + width + int(count or 0)]
        at += width + len(carried)
        fields = {
            _CARRIED[str(letter)]: value for letter, value in zip(carried[::2], carried[1::2], strict=True)
        }
        yield WireCall(
            f"{keys.queue}:{text(key)}",
            keys.queue,
            text(task),
            _PRIORITIES.get(text(lane), "normal"),
            args if isinstance(args, bytes) else text(args).encode(),
            text(due),
            fields,
        )


def _keys_of(verb: Verb[Any]) -> QueueKeys:
    name = parse_key(verb.key)
    return queue_keys(name.app, name.queue or "")
