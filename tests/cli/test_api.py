"""`fennelq api`, `fennelq grpc` and `fennelq token`: servers for programs, and how these sign in."""

from __future__ import annotations

import re
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import grpc
import httpx
import pytest

from fennelq.cli.exits import Exit
from fennelq.grpc import fennelq_pb2 as pb
from fennelq.web.passwords import read, token_hash
from tests.cli.shop import Shop
from tests.kit.server import Server
from tests.kit.spawn import Spawner
from tests.kit.waiting import eventually
from tests.rpc.test_tls import AUTHORITY, issued, trusting

CODELESS = ("--port", "0", "--namespace", "shop", "--redis-url")


def test_the_api_answers_with_a_token_and_lets_a_wait_finish_when_it_is_stopped(
    server: Server, spawn: Spawner, shop: Shop, tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens"
    token = shop.run("token", "add", "ci", "--may", "all", "--tokens", str(tokens)).out.strip()
    process = spawn("fennelq", "api", *CODELESS, server.url, "--tokens", str(tokens))
    line = process.wait_for("for users who sign in", within=30)
    found = re.search(r"(http://127\.0\.0\.1:\d+/)api/v1 serves shop of redis://127\.0\.0\.1", line)
    assert found is not None
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(timeout=30, base_url=found[1], headers=headers) as http:
        assert http.get("api/v1/queues", headers={"Authorization": "Bearer wrong"}).status_code == 401
        sent = http.post("api/v1/jobs", json={"task": "billing:charge", "args": [42]})
        assert sent.status_code == 201, sent.text
        statuses: list[int] = []
        path = f"api/v1/jobs/{sent.json()['id']}/result?wait=25"
        waiting = threading.Thread(target=lambda: statuses.append(http.get(path).status_code))
        waiting.start()
        with server.client() as redis:
            eventually(lambda: redis.pubsub_channels("fq:{shop}:c:*"), within=20)
        process.term()
        waiting.join(20)
    assert process.returncode() == 0
    assert statuses == [202]
    assert "Traceback" not in process.text


def test_grpc_answers_with_a_token_and_ends(
    server: Server, spawn: Spawner, shop: Shop, tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens"
    token = shop.run("token", "add", "ci", "--may", "send", "--tokens", str(tokens)).out.strip()
    process = spawn("fennelq", "grpc", *CODELESS, server.url, "--tokens", str(tokens))
    line = process.wait_for("by gRPC, for programs with a token", within=30)
    found = re.search(r"(127\.0\.0\.1:\d+) serves shop", line)
    assert found is not None
    with grpc.insecure_channel(found[1]) as channel:
        enqueue = cast("Callable[..., Any]", channel.unary_unary("/fennelq.v1.Jobs/Enqueue"))
        raw = pb.EnqueueRequest(task="billing:charge", args=b"[1]").SerializeToString()
        reply = enqueue(raw, metadata=(("authorization", f"Bearer {token}"),), timeout=20)
        assert pb.EnqueueReply.FromString(reply).id.startswith("default:")
    process.term()
    assert process.returncode() == 0
    assert "Traceback" not in process.text


def test_grpc_speaks_tls(server: Server, spawn: Spawner, shop: Shop, tmp_path: Path) -> None:
    tokens, tls = tmp_path / "tokens", issued(tmp_path)
    token = shop.run("token", "add", "ci", "--may", "send", "--tokens", str(tokens)).out.strip()
    files = ("--tokens", str(tokens), "--tls-cert", str(tls.certificate), "--tls-key", str(tls.key))
    process = spawn("fennelq", "grpc", *CODELESS, server.url, *files)
    line = process.wait_for("for programs with a token, with TLS", within=30)
    found = re.search(r"127\.0\.0\.1:(\d+) serves shop", line)
    assert found is not None
    with grpc.secure_channel(f"localhost:{found[1]}", trusting(AUTHORITY)) as channel:
        enqueue = cast("Callable[..., Any]", channel.unary_unary("/fennelq.v1.Jobs/Enqueue"))
        raw = pb.EnqueueRequest(task="billing:charge", args=b"[1]").SerializeToString()
        reply = enqueue(raw, metadata=(("authorization", f"Bearer {token}"),), timeout=20)
        assert pb.EnqueueReply.FromString(reply).id.startswith("default:")
    process.term()
    assert process.returncode() == 0


def test_grpc_does_not_start_with_wrong_files(shop: Shop, tmp_path: Path) -> None:
    one, other, nosuch = issued(tmp_path, "one"), issued(tmp_path, "other"), tmp_path / "nosuch.pem"
    for certificate, key, says in (
        (one.certificate, other.key, "the key belongs to another certificate"),
        (nosuch, one.key, "nosuch.pem cannot be read: No such file or directory"),
        (one.certificate, one.certificate, "are not a certificate and its key"),
    ):
        answer = shop.run("grpc", "--port", "0", "--tls-cert", str(certificate), "--tls-key", str(key))
        assert answer.code == Exit.CONFIGURATION
        assert says in answer.err
        assert "Traceback" not in answer.err
    answer = shop.run("grpc", "--port", "0", "--tls-cert", str(one.certificate))
    assert answer.code == Exit.USAGE
    assert "belong together" in answer.err


@pytest.mark.parametrize("command", ["api", "grpc"])
@pytest.mark.parametrize("options", [("--tokens", "nosuch"), ("--tokens", ".")], ids=str)
def test_tokens_that_cannot_be_read_are_refused_at_the_start(
    shop: Shop, command: str, options: tuple[str, ...]
) -> None:
    answer = shop.run(command, "--port", "0", *options)
    assert answer.code == Exit.CONFIGURATION
    assert "cannot be read" in answer.err
    assert "Traceback" not in answer.err


@pytest.mark.parametrize("command", ["api", "grpc"])
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3"])
def test_other_machines_are_answered_only_with_tokens(shop: Shop, command: str, host: str) -> None:
    answer = shop.run(command, "--host", host)
    assert answer.code == Exit.CONFIGURATION
    assert "--tokens FILE" in answer.err


def test_a_token_is_shown_once_and_only_its_hash_is_kept(shop: Shop, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    answer = shop.run("token", "add", "billing", "--may", "see,send:shop.billing:*", "--tokens", str(tokens))
    assert answer.code == Exit.OK
    token = answer.out.strip()
    text = tokens.read_text("utf-8")
    assert token not in text
    assert stat.S_IMODE(tokens.stat().st_mode) == 0o600
    known = read(text, "tokens")["billing"]
    assert known.hash == token_hash(token)
    assert known.user.may == {"see", "send:shop.billing:*"}
    shown = shop.run("token", "list", "--tokens", str(tokens))
    assert shown.out == "billing  see, send:shop.billing:*\n"
    again = shop.run("token", "add", "billing", "--may", "all", "--tokens", str(tokens))
    assert again.code == Exit.USAGE
    assert "revoke it first" in again.err
    assert tokens.read_text("utf-8") == text


def test_a_token_that_cannot_be_written_is_not_shown(shop: Shop, tmp_path: Path) -> None:
    answer = shop.run("token", "add", "x", "--may", "send", "--tokens", str(tmp_path / "nosuch" / "tokens"))
    assert (answer.code, answer.out) == (Exit.CONFIGURATION, "")
    assert "cannot be written: No such file or directory" in answer.err


def test_a_token_is_revoked_and_others_stay(shop: Shop, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    for name in ("one", "two"):
        shop.run("token", "add", name, "--may", "read", "--tokens", str(tokens))
    assert shop.run("token", "revoke", "one", "--tokens", str(tokens)).code == Exit.OK
    assert [*read(tokens.read_text("utf-8"), "tokens")] == ["two"]
    answer = shop.run("token", "revoke", "one", "--tokens", str(tokens))
    assert answer.code == Exit.NOT_FOUND
    assert "has no token one" in answer.err


def test_a_word_that_is_no_right_is_refused(shop: Shop, tmp_path: Path) -> None:
    answer = shop.run("token", "add", "x", "--may", "sned", "--tokens", str(tmp_path / "tokens"))
    assert answer.code == Exit.CONFIGURATION
    assert "did you mean 'send'" in answer.err
    assert not (tmp_path / "tokens").exists()
