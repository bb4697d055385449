"""The signature of a task: the names of the arguments of a call, and the parameters as text."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import Any

_WIDEST = 300


def named(signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by the names of their parameters, with the defaults."""
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    named = dict(bound.arguments)
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            named = {**named.pop(parameter.name), **named}
    return named


def without(signature: inspect.Signature, names: Collection[str]) -> inspect.Signature:
    """The signature without some parameters."""
    if not names:
        return signature
    return signature.replace(parameters=[p for p in signature.parameters.values() if p.name not in names])


class _Written(str):
    """An annotation that is shown without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def as_written(signature: inspect.Signature) -> str:
    """The parameters as the user wrote them: without quotes around annotations that are strings, as all are after
    `from __future__ import annotations`."""
    parameters = [
        one.replace(annotation=_Written(one.annotation)) if isinstance(one.annotation, str) else one
        for one in signature.parameters.values()
    ]
    text = str(inspect.Signature(parameters))
    return text if len(text) <= _WIDEST else f"{text[:_WIDEST]}…"
