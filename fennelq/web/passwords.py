"""Passwords and tokens of users, and the files in which their hashes are.

A line of a file has a name, a hash and rights: `ada scrypt$16384$8$1$…$… see,cancel`. The rights may be `all` or
`read`. The files contain no password and no token.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from fennelq import clock, log
from fennelq.errors import ConfigurationError, FennelqError
from fennelq.web.users import User, rights_in

NAME: Final = re.compile(r"[A-Za-z0-9_.@+-]{1,100}")
_COST, _BLOCK, _PARALLEL = 1 << 14, 8, 1
"""16 MiB and some 50 ms for each attempt."""
_MOST_COST: Final = 1 << 20
"""A file must not be able to take all memory."""
_QUIET_FOR: Final = 60.0
_logger = log.get("fennelq.web")
_LINES: Final = "name, hash and rights, as `fennelq web user` writes them"


class Known(NamedTuple):
    """A user in a file."""

    user: User
    hash: str


def password_hash(password: str) -> str:
    """The hash of a password, with a new salt."""
    salt = os.urandom(16)
    made = _scrypt(password, salt, _COST, _BLOCK, _PARALLEL)
    return f"scrypt${_COST}${_BLOCK}${_PARALLEL}${_text(salt)}${_text(made)}"


def is_password(password: str, known: str) -> bool:
    """Whether the hash is that of this password."""
    try:
        kind, cost, block, parallel, salt, expected = known.split("$")
        if kind != "scrypt" or int(cost) > _MOST_COST:
            return False
        made = _scrypt(password, _bytes(salt), int(cost), int(block), int(parallel))
        return hmac.compare_digest(made, _bytes(expected))
    except (ValueError, MemoryError):
        return False


@cache
def unknown() -> str:
    """A hash for an unknown user, so that the answer takes as long as for a known one."""
    return password_hash(secrets.token_urlsafe())


def new_token() -> str:
    """A token: 256 bits, which cannot be guessed, so its hash needs no salt."""
    return f"fq_{secrets.token_urlsafe(32)}"


def token_hash(token: str) -> str:
    """The hash of a token."""
    return f"sha256${hashlib.sha256(token.encode('utf-8', 'surrogatepass')).hexdigest()}"


class SignInUnavailable(FennelqError):
    """The file of users cannot be read any more, so nothing is known of the users."""

    def __init__(self) -> None:
        super().__init__("this server cannot check who calls: its log has the reason")


class UsersFile:
    """A file of users, which is read again when it has changed."""

    def __init__(self, path: str | Path, writer: str = "`fennelq web user NAME --users {path}`") -> None:
        """`writer` is the command that writes it."""
        self.path, self._writer = Path(path), writer
        self._state: tuple[int, int] | None = None
        self._known: Mapping[str, Known] = {}
        self._logged = -_QUIET_FOR

    def checked(self) -> Mapping[str, Known]:
        """As `users`, for a server that runs: when the file cannot be read, it logs why, at most once a minute, and
        raises SignInUnavailable. Callers do not learn where the file is. Revoked tokens must not stay valid, so it does
        not go on with those that it knows."""
        try:
            return self.users()
        except ConfigurationError as error:
            now = clock.monotonic()
            if now - self._logged >= _QUIET_FOR:
                self._logged = now
                _logger.error("sign_in_unavailable", error=str(error))
            raise SignInUnavailable from error

    def users(self) -> Mapping[str, Known]:
        """The users by name. Raises ConfigurationError, with the line, when the file cannot be read."""
        try:
            state = self.path.stat()
            if self._state != (state.st_mtime_ns, state.st_size):
                self._known = read(self.path.read_text("utf-8"), str(self.path))
                self._state = state.st_mtime_ns, state.st_size
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise ConfigurationError(
                f"{self.path} cannot be read: {why}. {self._writer.format(path=self.path)} writes it"
            ) from None
        return self._known


class Tokens:
    """A file of tokens."""

    def __init__(self, path: str | Path) -> None:
        self._file = UsersFile(path, "`fennelq token add NAME --tokens {path}`")
        self._of: Mapping[str, Known] = self._file.users()
        self._by_hash: Mapping[str, User] = _by_hash(self._of)

    def user_of(self, token: str) -> User | None:
        """The user whose token this is. Raises SignInUnavailable. The time of the lookup tells nothing about other
        tokens: it is that of a hash, which a guess does not come closer to."""
        known = self._file.checked()
        if known is not self._of:
            self._of, self._by_hash = known, _by_hash(known)
        return self._by_hash.get(token_hash(token))


def _by_hash(known: Mapping[str, Known]) -> Mapping[str, User]:
    return {one.hash: one.user for one in known.values()}


def read(text: str, where: str) -> dict[str, Known]:
    """The users in the text of a file. Raises ConfigurationError for a line that is none."""
    known: dict[str, Known] = {}
    for number, line in enumerate(text.splitlines(), 1):
        parts = line.split()
        if not parts or parts[0].startswith("#"):
            continue
        if len(parts) != 3 or not NAME.fullmatch(parts[0]) or parts[0] in known:
            twice = " twice" if parts[0] in known else ""
            raise ConfigurationError(f"{where}, line {number}: {parts[0]:.100}{twice}: expected {_LINES}")
        try:
            known[parts[0]] = Known(User(parts[0], rights_in(parts[2])), parts[1])
        except ConfigurationError as error:
            raise ConfigurationError(f"{where}, line {number}: {error}") from None
    return known


def write(path: Path, name: str, hashed: str, rights: str) -> bool:
    """Add a user to a file, or change one; returns whether it was known. Other lines stay as they are."""
    if not NAME.fullmatch(name):
        raise ConfigurationError(f"{name!r:.120} is not a name: use 1-100 of A-Z a-z 0-9 _ . @ + -")
    rights_in(rights)
    with _alone(path):
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        read("\n".join(lines), str(path))
        others = [line for line in lines if line.split()[:1] != [name]]
        _write_anew(path, [*others, f"{name} {hashed} {rights}"])
    return len(others) < len(lines)


def remove(path: Path, name: str) -> bool:
    """Remove a user from a file; returns whether it was known. Other lines stay as they are."""
    UsersFile(path).users()
    with _alone(path):
        lines = path.read_text("utf-8").splitlines()
        others = [line for line in lines if line.split()[:1] != [name]]
        if len(others) == len(lines):
            return False
        _write_anew(path, others)
    return True


@contextmanager
def _alone(path: Path) -> Generator[None]:
    """While this process changes the file, others wait: otherwise the token that one of them has shown would be lost.
    The folder is locked, because the file is replaced. Raises ConfigurationError when the file cannot be written."""
    try:
        folder = os.open(path.absolute().parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}. Nothing was changed") from None


def _write_anew(path: Path, lines: Sequence[str]) -> None:
    """Write the file anew. A reader finds the old lines or the new ones, and no other user of the machine reads it."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        new.touch(0o600)
        new.write_text("".join(f"{line}\n" for line in lines), "utf-8")
        new.replace(path)
    except OSError:
        new.unlink(missing_ok=True)
        raise


def _scrypt(password: str, salt: bytes, cost: int, block: int, parallel: int) -> bytes:
    raw = password.encode("utf-8", "surrogatepass")
    return hashlib.scrypt(raw, salt=salt, n=cost, r=block, p=parallel, maxmem=cost * block * 256, dklen=32)


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
