"""`fennelq grpc`: serve jobs by gRPC."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fennelq.cli import output
from fennelq.cli.exits import Exit, Problem
from fennelq.cli.served import Port, Served, require
from fennelq.cli.session import Session

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.grpc.server import Tls

_PORT = 3368


@dataclass(frozen=True)
class Certificate:
    """The certificate of the server."""

    tls_cert: Annotated[
        Path | None,
        typer.Option(
            "--tls-cert", metavar="FILE", help="The certificate of the server, as PEM. Default: none."
        ),
    ] = None
    tls_key: Annotated[
        Path | None,
        typer.Option("--tls-key", metavar="FILE", help="The key of the certificate, as PEM. Default: none."),
    ] = None

    def tls(self) -> Tls | None:
        """The certificate and its key; None without them."""
        from fennelq.grpc.server import Tls

        if (self.tls_cert is None) != (self.tls_key is None):
            raise Problem("--tls-cert and --tls-key belong together: pass both, or none", Exit.USAGE)
        return Tls(self.tls_cert, self.tls_key) if self.tls_cert and self.tls_key else None


def serve(session: Session, served: Served, certificate: Certificate, port: Port = _PORT) -> None:
    """Serve jobs by gRPC until SIGTERM or Ctrl-C: send, follow and cancel them from every language.

    Without --tokens, it accepts calls from this machine only.
    """
    require("the gRPC server", "grpc", "grpc", "grpc_health", "grpc_reflection")
    tls = certificate.tls()
    served.check_callers(sign_in=served.tokens is not None)
    app = served.app(session)
    address = f"[{served.host}]:{port}" if ":" in served.host else f"{served.host}:{port}"
    asyncio.run(_serve(app, address, served.tokens, tls))


async def _serve(app: App, address: str, tokens: Path | None, tls: Tls | None) -> None:
    from fennelq.grpc.server import serving

    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    async with app, serving(app, address, tokens=tokens, tls=tls) as (_, port):
        place = f"{address.rpartition(':')[0]}:{port}"
        whom = "this machine" if tokens is None else "programs with a token"
        how = "TLS" if tls else "no TLS"
        output.note(f"{place} serves {app.namespace} of {app.address.shown} by gRPC, for {whom}, with {how}")
        await stopped.wait()
