"""Users of the dashboard and of the HTTP API, and what they may do."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, Literal, get_args

from fennelq.errors import ConfigurationError
from fennelq.model.checks import check_line
from fennelq.wording import suggestion

Right = Literal[
    "see", "see_arguments", "send", "cancel", "replay", "edit", "purge", "pause", "schedule", "profile"
]
"""What a user may do. `see` is every page without the arguments, headers and results of jobs, which `see_arguments`
adds. `send` also includes to run a job now. `pause` includes to drain an executor, and `profile` to look at its
stacks."""

RIGHTS: Final[frozenset[str]] = frozenset(get_args(Right))
"""All rights."""
READ_ONLY: Final[frozenset[str]] = frozenset({"see", "see_arguments"})
"""The rights of `--read-only`."""
MEANINGS: Final = {
    "see": "see the pages",
    "see_arguments": "see arguments, headers and results of jobs",
    "send": "send jobs, and run a job now",
    "cancel": "cancel jobs",
    "replay": "replay and import dead jobs",
    "edit": "change the arguments of dead jobs",
    "purge": "remove jobs for good",
    "pause": "pause queues, and drain executors",
    "schedule": "change schedules",
    "profile": "look into a running executor",
}
"""The rights in words."""
_LIMITED: Final = "send:"


@dataclass(frozen=True, slots=True)
class User:
    """A person or a program that has signed in."""

    name: str
    """It is recorded for `fennelq audit` with everything that the user changes."""
    may: Collection[str] = RIGHTS
    """The rights. `send:shop.reports.*` instead of `send` allows to send the tasks of this pattern only."""

    def __post_init__(self) -> None:
        check_line("the name of a user", self.name)
        for right in (rights := frozenset(self.may)):
            check_right(right)
        object.__setattr__(self, "may", rights)

    @property
    def rights(self) -> frozenset[str]:
        """The rights as a set."""
        return frozenset(self.may)

    @property
    def in_words(self) -> str:
        """What the user may do: `do everything`, `only look`, `see, cancel`."""
        if self.rights == RIGHTS:
            return "do everything"
        if self.rights <= READ_ONLY:
            return "only look"
        return ", ".join(sorted(self.rights - {"see"}))

    def can(self, right: str) -> bool:
        """Whether the user has this right, at least for some tasks."""
        return right in self.may or (right == "send" and any(one.startswith(_LIMITED) for one in self.may))

    def can_send(self, task: str) -> bool:
        """Whether the user may send jobs of this task."""
        patterns = [one.removeprefix(_LIMITED) for one in self.may if one.startswith(_LIMITED)]
        return "send" in self.may or any(fnmatchcase(task, pattern) for pattern in patterns)

    def read_only(self) -> User:
        """The same user, who may change nothing."""
        return User(self.name, frozenset(self.may) & READ_ONLY)


def check_right(right: str) -> None:
    """Raises ConfigurationError, with the most similar right, for a word that is none."""
    limited = right.startswith(_LIMITED) and len(right) > len(_LIMITED)
    if right not in RIGHTS and not limited:
        raise ConfigurationError(
            f"{right!r:.100} is not a right: use {', '.join(get_args(Right))}{suggestion(right, RIGHTS)}"
        )


def rights_in(text: str) -> frozenset[str]:
    """The rights in a text: `all`, `read`, or words with commas between them. Raises ConfigurationError."""
    if text in ("all", "read"):
        return RIGHTS if text == "all" else READ_ONLY
    words = frozenset(filter(None, text.split(",")))
    for word in words:
        check_right(word)
    return words


ANONYMOUS: Final = User("anonymous", frozenset())
"""The user of a request before it is known who sends it."""
