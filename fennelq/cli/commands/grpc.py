"""`fennelq grpc`: serve jobs by gRPC."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fennelq.cli import output
from fennelq.cli.exits import Exit, Problem
from fennelq.cli.served import require, served_app
from fennelq.cli.session import Session
from fennelq.errors import ConfigurationError

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.grpc.server import Tls


def serve(
    session: Session,
    host: Annotated[
        str, typer.Option("--host", metavar="HOST", help="The address to listen on.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, metavar="PORT", help="The port; 0 takes a free one.")
    ] = 3368,
    redis_url: Annotated[
        str | None,
        typer.Option(
            "--redis-url",
            metavar="URL",
            help="Serve an app of this Redis, without its code; with --namespace. Default: the app's.",
        ),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace", metavar="NAME", help="The app that is served without its code. Default: the app."
        ),
    ] = None,
    tokens: Annotated[
        Path | None,
        typer.Option(
            "--tokens",
            metavar="FILE",
            help="Tokens of programs, as `fennelq token add` writes them. Default: none.",
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None,
        typer.Option(
            "--tls-cert", metavar="FILE", help="The certificate of the server, as PEM. Default: none."
        ),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option("--tls-key", metavar="FILE", help="The key of the certificate, as PEM. Default: none."),
    ] = None,
) -> None:
    """Serve jobs by gRPC until SIGTERM or Ctrl-C: send, follow and cancel them from every language.

    Without --tokens, it accepts calls from this machine only.
    """
    require("the gRPC server", "grpc", "grpc", "grpc_health", "grpc_reflection")
    from fennelq.grpc.server import Tls
    from fennelq.web.loopback import is_loopback

    if (tls_cert is None) != (tls_key is None):
        raise Problem("--tls-cert and --tls-key belong together: pass both, or none", Exit.USAGE)
    if tokens is None and not is_loopback(host):
        raise ConfigurationError(
            f"--host {host} accepts calls from other machines, and every program could send jobs: pass --tokens FILE, "
            "which `fennelq token add` writes"
        )
    app = served_app(session, redis_url, namespace)
    tls = Tls(tls_cert, tls_key) if tls_cert and tls_key else None
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    asyncio.run(_serve(app, address, tokens, tls))


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
