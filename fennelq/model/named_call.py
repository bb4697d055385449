"""The arguments of an encoded call by name, and the call from them: for people and functions that change arguments.

A positional argument has the name of its parameter. Without the code of the task, and beyond the parameters that it
has, it has its number: "0" is the first one.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from pydantic_core import from_json, to_json

Named = dict[str, Any]
"""The arguments of a call by name, as JSON values."""

_Kind: Final = inspect.Parameter
_BY_PLACE: Final = (_Kind.POSITIONAL_ONLY, _Kind.POSITIONAL_OR_KEYWORD)


def by_name(raw: bytes, parameters: Sequence[inspect.Parameter] = ()) -> Named:
    """The arguments of a call, without defaults. Raises ValueError when it is not a call."""
    args, kwargs = parts(raw)
    places = [one.name for one in parameters if one.kind in _BY_PLACE]
    rest = next((one.name for one in parameters if one.kind is _Kind.VAR_POSITIONAL), None)
    named: Named = {}
    for place, value in enumerate(args):
        if place >= len(places) and rest is not None:
            named[rest] = args[place:]
            break
        name = places[place] if place < len(places) else str(place)
        named[str(place) if name in kwargs else name] = value
    return {**named, **kwargs}


def call_of(named: Mapping[str, Any], parameters: Sequence[inspect.Parameter] = ()) -> bytes:
    """The encoded call with these arguments; whether they fit is not checked. Values of other kinds than JSON's are
    written as they are sent. Raises ValueError when one cannot be written."""
    left, args = dict(named), list[Any]()
    for one in parameters:
        if one.kind in _BY_PLACE and one.name in left and str(len(args)) not in left:
            args.append(left.pop(one.name))
        elif one.kind is _Kind.VAR_POSITIONAL and one.name in left:
            args += left.pop(one.name)
        else:
            break
    while str(len(args)) in left:
        args.append(left.pop(str(len(args))))
    return to_json([args, left], bytes_mode="base64", inf_nan_mode="strings")


def parts(raw: bytes) -> tuple[list[Any], Named]:
    """The positional arguments of a call, and the others. Raises ValueError when it is not a call."""
    call: Any = from_json(raw)
    several = cast("Sequence[Any]", call)
    if not isinstance(call, list) or [*map(type, several)] != [list, dict]:
        raise ValueError("the arguments are not a call, which has the form [[…],{…}]")
    return several[0], several[1]
