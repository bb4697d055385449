"""What careless clients do to the gRPC server, what it does when it ends, and when its files or Redis are away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast, get_type_hints
from urllib.parse import quote

import grpc
import pytest

from fennelq import App
from fennelq.errors import ConfigurationError, FennelqError
from fennelq.grpc import fennelq_pb2 as pb
from fennelq.grpc import jobs
from fennelq.grpc.codes import text_of
from fennelq.grpc.server import serving
from fennelq.manage.sending import GivenOptions, sent
from fennelq.web import places
from fennelq.web.failures import MOST
from tests.kit.apps import LocalApp
from tests.kit.server import Server
from tests.kit.waiting import aeventually
from tests.rpc.kit import Client, refused
from tests.rpc.test_grpc import code_of
from tests.web.api.kit import declare
from tests.web.api.test_contract import HOSTILE_VALUES

Code = grpc.StatusCode


@pytest.mark.parametrize("text", ["名" * 3000, "é\n" * 2000, "x" * 100_000, "%" * 3000, "🙂" * 5000], ids=len)
def test_the_text_of_an_error_fits_into_the_headers_of_a_reply(text: str) -> None:
    assert len(quote(text_of(FennelqError(text)), safe=" ")) < 7000


@pytest.mark.parametrize("task", ["名" * 3000, "é\n" * 2000, "x" * 100_000, "%" * 3000], ids=len)
async def test_an_error_about_a_long_text_keeps_its_code(client: Client, task: str) -> None:
    assert await refused(client.enqueue(task)) is Code.NOT_FOUND
    assert await refused(client.jobs.Get(pb.JobRequest(id=task))) is Code.INVALID_ARGUMENT


async def test_the_same_request_id_for_another_queue_is_refused(client: Client, app: App) -> None:
    assert (await client.enqueue("shop:welcome", 1, request_id="order-42")).id
    assert await refused(client.enqueue("reports:daily", request_id="order-42")) is Code.ALREADY_EXISTS
    assert (await app.queues.info("reports")).waiting == 0


async def test_waits_and_streams_have_places(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "MOST_WAITS", 1)
    monkeypatch.setattr(places, "MOST_STREAMS", 1)
    async with (
        serving(app, "127.0.0.1:0") as (_, port),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        client = Client(channel)
        job = (await client.enqueue("shop:welcome", 1)).id
        waiting = client.jobs.Wait(pb.WaitRequest(id=job, seconds=50))
        first = asyncio.ensure_future(_awaited(waiting))
        await aeventually(lambda: app.client.waiting.stored[0] == 1)
        assert await refused(client.jobs.Wait(pb.WaitRequest(id=job, seconds=50))) is Code.RESOURCE_EXHAUSTED
        waiting.cancel()
        await asyncio.gather(first, return_exceptions=True)

        async def free() -> bool:
            return bool((await client.jobs.Wait(pb.WaitRequest(id=job, seconds=0.01))).status == "SENT")

        await aeventually(lambda: app.client.waiting.stored[0] == 0)
        assert await free()

        stream = client.jobs.Watch(pb.JobRequest(id=job))
        assert (await stream.read()).status == "SENT"
        assert await refused(client.jobs.Watch(pb.JobRequest(id=job)).read()) is Code.RESOURCE_EXHAUSTED
        stream.cancel()
        await aeventually(lambda: app.client.waiting.followed == 0)
        other = client.jobs.Watch(pb.JobRequest(id=job))
        assert (await other.read()).status == "SENT"
        other.cancel()


async def _awaited(call: Any) -> Any:
    return await call


async def test_two_servers_do_not_share_a_port(app: App) -> None:
    async with serving(app, "127.0.0.1:0") as (_, port):
        with pytest.raises(
            ConfigurationError, match=f"127.0.0.1:{port} cannot be used, perhaps because another"
        ):
            async with serving(app, f"127.0.0.1:{port}"):
                pass


async def test_large_messages_of_a_stream_are_sent_a_few_at_a_time(
    client: Client, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way, most = 0, 0

    async def counted(*call: Any) -> Any:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            return await sent(*call)
        finally:
            under_way -= 1

    monkeypatch.setattr(jobs, "sent", counted)

    async def requests() -> AsyncIterator[pb.EnqueueRequest]:
        for number in range(6):
            greeting = b'{"greeting": "%b"}' % (b"x" * 600_000)
            yield pb.EnqueueRequest(task="shop:welcome", args=b"[%d]" % number, kwargs=greeting)

    reply = await client.jobs.EnqueueMany(requests())
    assert [answer.code for answer in reply.answers] == [0] * 6
    assert most == 2
    assert (await app.queues.info("mail")).waiting == 6


async def test_a_server_that_ends_answers_its_waits_and_ends_its_streams(redis_url: str) -> None:
    app = LocalApp("shop", redis_url=redis_url)
    declare(app)
    async with app:
        async with serving(app, "127.0.0.1:0") as (_, port):
            channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
            client = Client(channel)
            job = (await client.enqueue("shop:welcome", 1)).id
            waiting = asyncio.ensure_future(_awaited(client.jobs.Wait(pb.WaitRequest(id=job, seconds=50))))
            stream = client.jobs.Watch(pb.JobRequest(id=job))
            assert (await stream.read()).status == "SENT"
            following = asyncio.ensure_future(_awaited(stream.read()))
            await aeventually(lambda: app.client.waiting.stored[0] == 1 and app.client.waiting.followed == 1)
        assert (await waiting).status == "SENT", "the rest of its fifty seconds is not waited for"
        assert await refused(following) is Code.UNAVAILABLE
        await channel.close()


@pytest.mark.usefixtures("impatient")
async def test_while_redis_is_away_nothing_is_begun(client: Client, app: App, server: Server) -> None:
    job = (await client.enqueue("shop:welcome", 1)).id
    server.pause()
    try:
        for call in (
            client.jobs.Cancel(pb.CancelRequest(id=job)),
            client.jobs.Delete(pb.JobRequest(id=job)),
            client.jobs.Wait(pb.WaitRequest(id=job, seconds=0.01)),
            client.jobs.Watch(pb.JobRequest(id=job)).read(),
            client.queues.Pause(pb.PauseRequest(name="mail")),
            client.queues.Resume(pb.ResumeRequest(name="mail")),
        ):
            assert await refused(call) is Code.UNAVAILABLE
    finally:
        server.resume()
    assert await app.audit.list() == []
    assert (await client.jobs.Delete(pb.JobRequest(id=job))).done


async def test_wrong_tokens_do_not_keep_out_right_ones(tokens: dict[str, Client]) -> None:
    codes = [await refused(tokens["wrong"].enqueue("shop:welcome", 1)) for _ in range(MOST + 2)]
    assert codes == [Code.UNAUTHENTICATED] * MOST + [Code.RESOURCE_EXHAUSTED] * 2
    assert (await tokens["sender"].enqueue("shop:welcome", 1)).id


async def test_a_file_of_tokens_that_cannot_be_read_any_more_lets_no_one_in(
    tokens: dict[str, Client], tmp_path: Path
) -> None:
    file = tmp_path / "tokens"
    good = file.read_text("utf-8")
    file.write_text("broken", "utf-8")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await tokens["sender"].enqueue("shop:welcome", 1)
    assert caught.value.code() is Code.UNAVAILABLE
    assert "cannot check who calls" in (caught.value.details() or "")
    assert str(tmp_path) not in (caught.value.details() or "")
    file.write_text(good, "utf-8")
    assert (await tokens["sender"].enqueue("shop:welcome", 1)).id


@pytest.mark.parametrize(
    "service", ["Queues/List", "Queues/Pause", "Queues/Resume", "Jobs/Watch", "Jobs/EnqueueMany"]
)
async def test_malformed_messages_of_the_other_methods_have_their_code(client: Client, service: str) -> None:
    path, channel = f"/fennelq.v1.{service}", cast("Any", client.channel)
    for broken in (b"\xff\xff\xff", b"\x0a\x05ab", b"\x0a\x02\xff\xfe"):
        if service == "Jobs/Watch":
            raw = channel.unary_stream(path)
            assert await refused(raw(broken).read()) is Code.INVALID_ARGUMENT
        elif service == "Jobs/EnqueueMany":
            raw = channel.stream_unary(path)
            reply = pb.EnqueueManyReply.FromString(await raw(iter([broken])))
            assert [answer.code for answer in reply.answers] == [Code.INVALID_ARGUMENT.value[0]]
        elif (
            service != "Queues/List" or broken != b"\x0a\x02\xff\xfe"
        ):  # an unknown field, which proto3 skips
            raw = channel.unary_unary(path)
            assert await refused(raw(broken)) is Code.INVALID_ARGUMENT


@pytest.mark.parametrize("option", get_type_hints(GivenOptions))
async def test_no_option_fails_on_a_hostile_value(client: Client, option: str) -> None:
    for value in HOSTILE_VALUES:
        options = json.dumps({option: value}).encode()
        request = pb.EnqueueRequest(
            task="shop:welcome", args=b"[1]", options=options, request_id=f"k{option}"
        )
        assert await code_of(client.jobs.Enqueue(request)) not in (Code.UNKNOWN, Code.INTERNAL), value
        assert await code_of(client.enqueue("shop:welcome", value)) not in (Code.UNKNOWN, Code.INTERNAL)


@pytest.mark.parametrize(
    "text", ["a:{b}", "x" * 3000, ":", "::::", "a\r\nb:c", "fq:{shop}:j", "\u202e:\u202e", ""]
)
async def test_no_method_fails_on_a_hostile_name(client: Client, text: str) -> None:
    for call in (
        client.jobs.Get(pb.JobRequest(id=text)),
        client.jobs.Wait(pb.WaitRequest(id=text, seconds=float("nan"))),
        client.jobs.Wait(pb.WaitRequest(id=text, seconds=-1)),
        client.jobs.Cancel(pb.CancelRequest(id=text, reason=text)),
        client.jobs.Cancel(pb.CancelRequest(id="mail:nosuch", reason=text)),
        client.jobs.Delete(pb.JobRequest(id=text)),
        client.jobs.Watch(pb.JobRequest(id=text)).read(),
        client.queues.Pause(pb.PauseRequest(name=text)),
        client.queues.Pause(pb.PauseRequest(name="mail", only=text, why=text)),
        client.queues.Resume(pb.ResumeRequest(name=text)),
    ):
        assert await code_of(call) not in (Code.UNKNOWN, Code.INTERNAL)
