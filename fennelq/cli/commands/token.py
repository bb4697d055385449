"""`fennelq token`: the tokens by which programs sign in to the HTTP API, to gRPC and to the dashboard."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fennelq.cli import output
from fennelq.cli.command import command, family
from fennelq.cli.exits import Exit, Problem
from fennelq.cli.options import Json

commands = family("Tokens of programs, for the HTTP API, gRPC and the dashboard: add, list and revoke them.")

TokensFile = Annotated[
    Path,
    typer.Option(
        "--tokens",
        metavar="FILE",
        help="The file of tokens. `add` makes it if it is not there. Default: tokens.",
    ),
]
TokenName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the program.")]
_FILE = Path("tokens")


@command(commands, "add")
def add(
    name: TokenName,
    may: Annotated[
        str,
        typer.Option(
            "--may",
            metavar="RIGHTS",
            help="`all`, `read`, or words like see,cancel,send:shop.reports.*, which allows to send these tasks only. "
            "Default: read.",
        ),
    ] = "read",
    tokens: TokensFile = _FILE,
) -> None:
    """Make a token, and print it. The file has only its hash, so it cannot be shown again.

    Example: fennelq token add billing --may 'see,see_arguments,send:shop.billing:*'
    """
    from fennelq.web.passwords import UsersFile, new_token, token_hash, write

    if tokens.exists() and name in UsersFile(tokens).users():
        raise Problem(
            f"{tokens} has a token {name} already: revoke it first, or choose another name", Exit.USAGE
        )
    token = new_token()
    write(tokens, name, token_hash(token), may)
    output.note(f"{name}: added to {tokens}, may {may}. This is shown once:")
    output.line(token)


@command(commands, "list")
def list_tokens(tokens: TokensFile = _FILE, as_json: Json = False) -> None:
    """List the tokens of a file, and their rights. It shows no token: the file does not have them."""
    from fennelq.web.passwords import UsersFile

    for name, known in sorted(UsersFile(tokens).users().items()):
        rights = sorted(known.user.rights)
        if as_json:
            output.document({"name": name, "may": rights})
        else:
            output.line(f"{name}  {', '.join(rights)}")


@command(commands, "revoke")
def revoke(name: TokenName, tokens: TokensFile = _FILE) -> None:
    """Revoke a token. Running servers refuse it from the next request on."""
    from fennelq.web.passwords import remove

    if not remove(tokens, name):
        raise Problem(
            f"{tokens} has no token {name}: `fennelq token list --tokens {tokens}` shows them", Exit.NOT_FOUND
        )
    output.note(f"{name}: revoked")
