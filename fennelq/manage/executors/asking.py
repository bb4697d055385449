"""Asks one executor something, and waits for its answer: a conversation.

The question goes over a channel, so it may get lost: it is published again until the answer comes.
"""

from __future__ import annotations

from typing import Any, Final

from fennelq import clock
from fennelq.broker import verbs
from fennelq.broker.keys import AppKeys
from fennelq.broker.talk import Talk, ask, pause
from fennelq.errors import ExecutorUnavailable
from fennelq.executors import Facts, facts_of
from fennelq.manage.executors.info import ExecutorInfo
from fennelq.model.questions import Question

WITHIN: Final = 10.0
"""Seconds for an answer. An executor whose loop is blocked begins to listen again after a second or two."""
_AGAIN: Final = 1.0
_LOOK_EVERY: Final = 0.05
_MARGIN: Final = 0.5


def answer_of(app: str, executor: ExecutorInfo, question: Question) -> Talk[Facts | None]:
    """The answer of an executor; None when it has ended in order in the meantime. Raises ExecutorUnavailable when it
    has ended before, does not listen, does not answer in time, or does not know the question."""
    if executor.state.startswith("ended"):
        raise ExecutorUnavailable(executor.name, f"has {executor.state}")
    keys, deadline = AppKeys(app), clock.monotonic() + WITHIN
    # The key for the answer expires before this call gives up: an executor must not act on a question whose caller does
    # not wait any more.
    room = round(1000 * max(WITHIN - _MARGIN, WITHIN / 2))
    yield from ask(verbs.executors.await_answer(keys, question.request, room))
    heard = publish_at = 0.0
    while True:
        if clock.monotonic() >= publish_at:
            if (yield from ask(verbs.executors.facts(app, executor.name))) is None:
                return None
            heard += yield from ask(verbs.executors.ask_executor(keys, executor.name, question.text))
            publish_at = clock.monotonic() + _AGAIN
        yield from pause(_LOOK_EVERY)
        if raw := (yield from ask(verbs.executors.answer(keys, question.request))):
            return _checked(executor, facts_of(raw), question)
        if clock.monotonic() >= deadline:
            raise ExecutorUnavailable(executor.name, _why(executor, heard=heard > 0))


def _checked(executor: ExecutorInfo, answer: Facts, question: Question) -> dict[str, Any]:
    if not answer:
        raise ExecutorUnavailable(executor.name, "has sent an answer that cannot be read")
    if "unknown" in answer:
        version = answer.get("version")
        raise ExecutorUnavailable(
            executor.name,
            f"has fennelq {version}, which cannot answer {question.word!r}: restart it with a later version",
        )
    return answer


def _why(executor: ExecutorInfo, *, heard: bool) -> str:
    """Why no answer came."""
    if not heard and executor.rss is None and executor.alive:
        return (
            f"has an earlier version of fennelq ({executor.version or 'unknown'}), which does not listen to questions: "
            "restart its worker with this version"
        )
    if not executor.alive:
        return (
            f"did not answer within {WITHIN:g} s, and has not reported for a while either. Its process is stopped, or "
            "it has lost its connection to Redis, or it was killed together with its supervisor"
        )
    if not heard:
        return (
            f"does not listen: for {WITHIN:g} s, no connection has received the question. Its user of Redis may not "
            "subscribe to its channel, or it is connecting again"
        )
    return (
        f"did not answer within {WITHIN:g} s, although it has received the question. Its process is stopped, or its "
        "machine is overloaded, or a library holds the interpreter, so that no thread can run: "
        f"`py-spy dump --native --pid {executor.pid}` on {executor.host} shows where"
    )
