"""One conversation, offered with an event loop and without one."""

from __future__ import annotations

import inspect
import pydoc
from collections.abc import AsyncIterator, Iterator
from typing import get_type_hints

import pytest

from fennelq import (
    BlockingDeadLetters,
    BlockingExecutors,
    BlockingJobs,
    BlockingOperations,
    BlockingQueues,
    BlockingSchedules,
    DeadLetter,
    DeadLetters,
    Executors,
    JobInfo,
    Jobs,
    Operations,
    Queues,
    Schedules,
)
from fennelq.manage.offered import Awaiting, Blocking, Operation, Scan

FORMS: list[tuple[type[object], type[object]]] = [
    (Queues, BlockingQueues),
    (DeadLetters, BlockingDeadLetters),
    (Schedules, BlockingSchedules),
    (Jobs, BlockingJobs),
    (Executors, BlockingExecutors),
    (Operations, BlockingOperations),
]


@pytest.mark.parametrize(("awaiting", "blocking"), FORMS, ids=lambda kind: kind.__name__)
def test_both_forms_of_a_family_have_its_operations_and_nothing_else(
    awaiting: type[object], blocking: type[object]
) -> None:
    assert issubclass(awaiting, Awaiting)
    assert issubclass(blocking, Blocking)
    assert operations_of(awaiting) == operations_of(blocking) != set()
    own = {name for kind in (awaiting, blocking) for name in vars(kind) if not name.startswith("_")}
    assert own <= {"cancel", "declared", "run", "wait"}


def operations_of(kind: type[object]) -> set[str]:
    return {
        name
        for base in kind.__mro__
        for name, value in vars(base).items()
        if isinstance(value, Operation | Scan)
    }


def test_the_form_to_await_is_a_coroutine_function_and_the_other_is_not() -> None:
    assert inspect.iscoroutinefunction(Queues.info)
    assert not inspect.iscoroutinefunction(BlockingQueues.info)
    assert inspect.isasyncgenfunction(DeadLetters.scan)
    assert not inspect.isgeneratorfunction(BlockingDeadLetters.scan)


@pytest.mark.parametrize("kind", [kind for forms in FORMS for kind in forms])
def test_a_method_has_the_name_of_the_class_that_users_know(kind: type[object]) -> None:
    for name in operations_of(kind) | {"run", "wait"} & set(vars(kind)):
        assert getattr(kind, name).__qualname__ == f"{kind.__name__}.{name}"


@pytest.mark.parametrize("kind", [kind for forms in FORMS for kind in forms])
def test_the_annotations_of_a_method_are_types_that_can_be_read(kind: type[object]) -> None:
    for name in operations_of(kind) | {"run", "wait"} & set(vars(kind)):
        assert "return" in get_type_hints(getattr(kind, name))


def test_a_method_is_annotated_with_what_it_returns_to_its_caller() -> None:
    assert get_type_hints(BlockingQueues.peek)["return"] == list[JobInfo]
    assert get_type_hints(Queues.peek)["return"] == list[JobInfo]
    assert get_type_hints(DeadLetters.scan)["return"] == AsyncIterator[DeadLetter]
    assert get_type_hints(BlockingDeadLetters.scan)["return"] == Iterator[DeadLetter]


def test_help_shows_what_a_method_returns_and_promises() -> None:
    awaiting, blocking = (
        pydoc.plain(pydoc.render_doc(Queues.info)),
        pydoc.plain(pydoc.render_doc(BlockingQueues.info)),
    )
    assert "async info(self, queue: 'str') -> 'QueueInfo'" in awaiting
    assert "info(self, queue: 'str') -> 'QueueInfo'" in blocking
    assert "async" not in blocking
    assert "The numbers of jobs in one queue, by state." in awaiting
    assert "'AsyncIterator[DeadLetter]'" in pydoc.render_doc(DeadLetters.scan)
    assert "-> 'Iterator[DeadLetter]'" in pydoc.render_doc(BlockingDeadLetters.scan)
