"""Makes the fingerprint of a failure: failures of one cause have the same one.

It is made of the reason, the task, the type of the error, and the function of the user's code that raised it. It
contains no line number and no message, so a deploy that moves lines does not change it, and neither does an order
number in the message.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from types import TracebackType
from typing import Final

_LENGTH: Final = 8
_FINGERPRINT: Final = re.compile(rf"[0-9a-f]{{{_LENGTH}}}")
_INSTALLED: Final = re.compile(r".*[/\\](?:site|dist)-packages[/\\][^/\\]+|<")
_STANDARD_LIBRARY: Final = f"{os.path.dirname(os.__file__)}{os.sep}"  # noqa: PTH120  # a Path costs time at the import
_FENNELQ: Final = "fennelq."
_MASKED: Final = re.compile(
    r"(?P<input>\binput_value=.*?(?=, input_type=))"
    r"""|(?P<quoted>(?<!\w)'[^'\n]*'(?!\w)|"[^"\n]*"|`[^`\n]*`)"""
    r"|(?P<uuid>\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b)"
    r"|(?P<hex>\b0[xX][0-9a-fA-F]+\b|\b(?=[a-fA-F]*[0-9])[0-9a-fA-F]{8,}\b)"
    r"|(?P<digits>[0-9]+(?:[.,:][0-9]+)*)"
)


def fingerprint_of(reason: str, task: str, error_type: str, place: str = "") -> str:
    """The fingerprint of a failure: 8 hexadecimal digits. `place` is where it was raised, or a text that describes the
    failure; empty when neither is known. `lua/lib/groups.lua` makes the same of a failure without a place."""
    return fingerprint_of_text(
        "\n".join((reason, task, error_type, place) if place else (reason, task, error_type))
    )


def fingerprint_of_text(text: str) -> str:
    """The fingerprint that a text stands for: itself when it is one already, in upper case or in lower case."""
    lower = text.lower()
    if is_fingerprint(lower):
        return lower
    return hashlib.sha1(text.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()[:_LENGTH]


def is_fingerprint(text: str) -> bool:
    """Whether a text has the form of a fingerprint."""
    return _FINGERPRINT.fullmatch(text) is not None


def place_of_error(trace: TracebackType) -> str:
    """`module:function` of the innermost frame that is the user's own, or else of the innermost one. The first frame is
    that of the task, which may be installed like a library: then its library counts as the user's own."""
    frames = [*_frames(trace)]
    libraries = [_library_of(frame) for frame in frames]
    task = next((library for library in libraries if library != _FENNELQ), _FENNELQ)
    own = [frame for frame, library in zip(frames, libraries, strict=True) if library in ("", task)]
    return _name_of((own or frames)[-1])


def masked(message: str) -> str:
    """A message without what differs from job to job: numbers, ids, quoted texts."""
    return _MASKED.sub("#", message)


def _frames(trace: TracebackType) -> Iterator[TracebackType]:
    inner: TracebackType | None = trace
    while inner is not None:
        yield inner
        inner = inner.tb_next


def _library_of(trace: TracebackType) -> str:
    """The folder of the library that a frame belongs to; empty for the user's code."""
    file = trace.tb_frame.f_code.co_filename
    if installed := _INSTALLED.match(file):
        return installed[0]
    if file.startswith(_STANDARD_LIBRARY):
        return _STANDARD_LIBRARY
    return _FENNELQ if _module_of(trace).startswith(_FENNELQ) else ""


def _name_of(trace: TracebackType) -> str:
    return f"{_module_of(trace)}:{trace.tb_frame.f_code.co_qualname}"


def _module_of(trace: TracebackType) -> str:
    return str(trace.tb_frame.f_globals.get("__name__", ""))
