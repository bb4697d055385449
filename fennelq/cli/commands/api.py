"""`fennelq api`: serve the HTTP API, without the dashboard."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fennelq.cli import output
from fennelq.cli.exits import Exit, Problem
from fennelq.cli.served import HostNames, Port, ReadOnly, Served, Users, require_web
from fennelq.cli.session import Session

if TYPE_CHECKING:
    from fennelq.web.auth import Auth

_PORT = 3367


@dataclass(frozen=True)
class Callers:
    """Further ways to sign in, and what callers may do."""

    users: Users = None
    host_names: HostNames = None
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate",
            min=0.001,
            metavar="N",
            help="At most N calls per second of each user. Default: no limit.",
        ),
    ] = None
    read_only: ReadOnly = False

    def auth(self, tokens: Path | None) -> Auth | None:
        """The way to sign in; None when there is none."""
        from fennelq.web import Basic, Token

        if tokens is not None and self.users is not None:
            raise Problem("--tokens and --users exclude each other: pass only one", Exit.USAGE)
        return Token(tokens) if tokens is not None else Basic(self.users) if self.users is not None else None


def serve(session: Session, served: Served, callers: Callers, port: Port = _PORT) -> None:
    """Serve the HTTP API until SIGTERM or Ctrl-C, so that programs in every language can send and follow jobs.

    Without --tokens or --users, it accepts requests from this machine only. `fennelq web` serves the API too.
    """
    require_web()
    from fennelq.web import api
    from fennelq.web.ports import bound
    from fennelq.web.serving import serve as serve_until_stopped
    from fennelq.web.serving import url_of

    auth = callers.auth(served.tokens)
    served.check_callers(sign_in=auth is not None)
    app = served.app(session)
    hosts = [*(callers.host_names or []), *([] if served.is_local else [served.host])]
    made = api(app, auth=auth, hosts=hosts, read_only=callers.read_only, rate=callers.rate)
    listening = bound(served.host, port)
    whom = "this machine" if auth is None else "users who sign in"
    serve_until_stopped(
        made,
        [listening],
        lambda: output.note(
            f"{url_of(listening)}api/v1 serves {app.namespace} of {app.address.shown}, for {whom}; "
            f"{url_of(listening)}openapi.json describes it"
        ),
    )
