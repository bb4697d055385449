"""Sends the values of context variables, which are strings, with the jobs, and sets them in the code that runs a job.

The values are headers of the job, so that its retries and replays have them too. A job that is sent from
inside of another one inherits them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import Context, ContextVar
from typing import Any, Final, NamedTuple, cast

from fennelq.context import JobContext
from fennelq.errors import ConfigurationError, UsageError
from fennelq.middleware import Call
from fennelq.model.checks import NAME
from fennelq.model.job import Job
from fennelq.wording import a_kind_of

PREFIX: Final = "ctx."
"""The headers of context variables begin with this."""


class _Variable(NamedTuple):
    """How to read a variable, and how to set it."""

    read: Callable[[], object]
    """Returns its value, None when it has none."""
    write: Callable[[str], object]


class Carried:
    """The variables that an app carries: `stamp` is its first sender, and `perform` its outermost performer."""

    def __init__(self, names: Sequence[str]) -> None:
        """`names` are variables of `structlog.contextvars`."""
        self._variables = {f"{PREFIX}{name}": _of_structlog(name) for name in names}

    def __bool__(self) -> bool:
        return bool(self._variables)

    def add(self, given: object) -> None:
        """Carry this ContextVar too. Raises ConfigurationError when it cannot be carried."""
        if not isinstance(given, ContextVar):
            raise ConfigurationError(
                f"app.carry takes a ContextVar of strings, not {a_kind_of(given)}; names that structlog.contextvars "
                'binds belong in the setting: App(…, carry=["request_id"])'
            )
        variable = cast("ContextVar[Any]", given)  # type: ignore[redundant-cast]
        if not NAME.fullmatch(variable.name):
            raise ConfigurationError(
                f"the name of {variable!r} is not valid for a header: use 1-128 of A-Z a-z 0-9 _ . -"
            )
        default = _default_of(variable)
        if not isinstance(default, str | None):
            raise ConfigurationError(
                f"app.carry carries strings, and the default of {variable.name} is {a_kind_of(default)}: "
                "make it a ContextVar[str]"
            )
        if f"{PREFIX}{variable.name}" in self._variables:
            raise ConfigurationError(
                f"{variable.name} is carried already: give one of the variables another name"
            )
        self._variables[f"{PREFIX}{variable.name}"] = _Variable(lambda: variable.get(None), variable.set)

    def stamp(self, job: Job[Any]) -> Job[Any]:
        """The job with the texts that are set here. Headers that it has already stay: a job that is sent again keeps
        the context in which it was sent first."""
        there = job.headers
        texts = {
            header: _text_of(header, value)
            for header, variable in self._variables.items()
            if header not in there and (value := variable.read()) is not None
        }
        return job.with_headers(texts) if texts else job

    def restore(self, headers: Mapping[str, str]) -> None:
        """Set the variables in the current context to the texts that came with a job."""
        for header, variable in self._variables.items():
            if (text := headers.get(header)) is not None:
                variable.write(text)

    async def perform(self, job: JobContext, call: Call) -> Any:
        """Set the variables, then run the job. Each job has a context of its own, so no other job sees them."""
        self.restore(job.headers)
        return await call()


def _default_of(variable: ContextVar[Any]) -> object:
    """Its value where it is not set; None without one."""
    try:
        return Context().run(variable.get)
    except LookupError:
        return None


def _of_structlog(name: str) -> _Variable:
    # Imported here, because most programs carry nothing, and the import takes long.
    from structlog.contextvars import bind_contextvars, get_contextvars

    def bind(text: str) -> None:
        bind_contextvars(**{name: text})

    return _Variable(lambda: get_contextvars().get(name), bind)


def _text_of(header: str, value: object) -> str:
    if isinstance(value, str):
        return value
    name = header.removeprefix(PREFIX)
    raise UsageError(
        f"the context variable {name} is {a_kind_of(value)}, and a job carries only strings: "
        f"set it to a str, or do not carry {name}"
    )
