"""gRPC with TLS: a client that trusts the certificate calls, and others do not; wrong files are refused."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from fennelq import App
from fennelq.errors import ConfigurationError
from fennelq.grpc.server import Tls, serving
from fennelq.web.passwords import new_token, token_hash, write
from tests.rpc.kit import Client, refused

AUTHORITY = trustme.CA()


def issued(folder: Path, name: str = "server") -> Tls:
    """A certificate for this machine, and its key."""
    made = AUTHORITY.issue_cert("localhost", "127.0.0.1")
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    for number, blob in enumerate(made.cert_chain_pems):
        blob.write_to_path(certificate, append=number > 0)
    made.private_key_pem.write_to_path(key)
    return Tls(certificate, key)


def trusting(authority: trustme.CA) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(authority.cert_pem.bytes())


async def test_a_client_that_trusts_the_certificate_sends_with_its_token(app: App, tmp_path: Path) -> None:
    token, tokens = new_token(), tmp_path / "tokens"
    write(tokens, "ci", token_hash(token), "send")
    metadata = (("authorization", f"Bearer {token}"),)
    async with serving(app, "127.0.0.1:0", tokens=tokens, tls=issued(tmp_path)) as (_, port):
        async with grpc.aio.secure_channel(f"localhost:{port}", trusting(AUTHORITY)) as channel:
            sent = await Client(channel, metadata).enqueue("shop:welcome", 1)
            assert sent.id.startswith("mail:")
            assert (
                await refused(Client(channel).enqueue("shop:welcome", 1)) is grpc.StatusCode.UNAUTHENTICATED
            )
        async with grpc.aio.secure_channel(f"localhost:{port}", trusting(trustme.CA())) as channel:
            call = Client(channel, metadata).enqueue("shop:welcome", 1)
            assert await refused(call) is grpc.StatusCode.UNAVAILABLE, "another authority has signed it"
        async with grpc.aio.insecure_channel(f"localhost:{port}") as channel:
            call = Client(channel, metadata).enqueue("shop:welcome", 1)
            assert await refused(call) is grpc.StatusCode.UNAVAILABLE, "without TLS there is no way in"
    assert (await app.queues.info("mail")).waiting == 1


def test_a_certificate_and_its_key_must_fit(tmp_path: Path) -> None:
    one, other = issued(tmp_path, "one"), issued(tmp_path, "other")
    assert one.credentials()
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n", "utf-8")
    empty = tmp_path / "empty.pem"
    empty.write_bytes(b"")
    for tls, says in (
        (Tls(one.certificate, other.key), "the key belongs to another certificate"),
        (Tls(garbage, one.key), "garbage.pem and .*one.key are not a certificate and its key"),
        (Tls(empty, one.key), "Both must be PEM"),
        (Tls(one.key, one.certificate), "Both must be PEM"),
        (Tls(tmp_path / "nosuch.pem", one.key), "nosuch.pem cannot be read: No such file or directory"),
        (Tls(one.certificate, tmp_path), "cannot be read: Is a directory"),
    ):
        with pytest.raises(ConfigurationError, match=says):
            tls.credentials()


def test_a_key_with_a_password_is_refused_without_a_question(tmp_path: Path) -> None:
    tls = issued(tmp_path)
    key = serialization.load_pem_private_key(tls.key.read_bytes(), None)
    locked = serialization.BestAvailableEncryption(b"secret")
    tls.key.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)
    )
    with pytest.raises(ConfigurationError, match="the key without a password"):
        tls.credentials()
