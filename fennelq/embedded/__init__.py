"""A private Redis-compatible server of one project: its processes share it, and it stops after the last of them ends.

    user ─┐ shared                                 exclusive, blocking
    user ─┼───────► users.lock ◄─────────────────────── guardian ──────► server
    user ─┘                          (held while stopping)    │ child       │
                                     guardian.lock ◄──────────┘             │
                                     server.lock   ◄─────── held by both ───┘

The processes coordinate by three `flock`s in the data directory, because the kernel releases them however a process
ends:

* `users.lock`: every user holds it shared. The guardian blocks on the exclusive lock. When it gets that lock, the
  last user is gone; it keeps the lock while the server stops, so that no process joins a server that is stopping.
 `guardian.lock`: the process that gets it starts a guardian and passes the lock to it. So at most one guardian runs.
* `server.lock`: the exclusive right to the data files. The server inherits it, so that a server that has lost
  its guardian and a new server never write to the same files.

user.py      the side of a process that uses the server: `start` joins it, and starts it first when needed
guardian.py  the process that runs the server for as long as it has users
project.py   finds the root of a project, and recognises platforms where a private server would be a mistake
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fennelq.embedded.project import project_root, recognised_deployment

if TYPE_CHECKING:
    from fennelq.embedded.user import EmbeddedServer, find_binary, start

__all__ = ["EmbeddedServer", "find_binary", "project_root", "recognised_deployment", "start"]

if not TYPE_CHECKING:  # a type checker would take every name that does not exist for one of these

    def __getattr__(name: str) -> object:
        """The server's own part is imported when it is first used: most programs in production have another Redis."""
        if name in __all__:
            from fennelq.embedded import user

            value = globals()[name] = getattr(user, name)
            return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
