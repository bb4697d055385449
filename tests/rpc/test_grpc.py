"""Programs send, follow and cancel jobs by gRPC; every error has its code, and none is UNKNOWN."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import fennelq
from fennelq import App
from fennelq.grpc import fennelq_pb2 as pb
from fennelq.grpc.server import LARGEST, serving
from tests.kit.apps import LocalApp
from tests.kit.waiting import aeventually
from tests.kit.workers import running
from tests.rpc.kit import Client, refused
from tests.web.api.kit import declare

Code = grpc.StatusCode


async def test_a_job_is_sent_and_its_result_awaited(client: Client, app: App) -> None:
    sent = await client.enqueue(
        "shop:welcome", 7, kwargs=b'{"greeting": "hi"}', options=b'{"priority": "high"}'
    )
    assert sent.deduplicated is False
    job = await client.jobs.Get(pb.JobRequest(id=sent.id))
    assert (job.task, job.queue, job.status) == ("shop:welcome", "mail", "SENT")
    assert json.loads(job.json)["arguments"] == [[7], {"greeting": "hi"}]
    async with running(app):
        result = await client.jobs.Wait(pb.WaitRequest(id=sent.id, seconds=20))
    assert (result.status, json.loads(result.value)) == ("SUCCESS", "hi 7")


async def test_an_integer_of_any_size_arrives_as_it_was(redis_url: str) -> None:
    async with (
        App("codeless", redis_url=redis_url) as app,
        serving(app, "127.0.0.1:0") as (_, port),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        sent = await Client(channel).enqueue("billing:charge", 2**53 + 1, 10**30)
        info = await app.jobs.info(sent.id)
    assert info is not None
    assert json.loads(info.arguments) == [[2**53 + 1, 10**30], {}]


async def test_a_request_id_makes_one_job(client: Client, app: App) -> None:
    replies = await asyncio.gather(
        *(client.enqueue("shop:welcome", 1, request_id="order-42") for _ in range(50))
    )
    assert len({reply.id for reply in replies}) == 1
    assert sum(not reply.deduplicated for reply in replies) == 1
    assert (await app.queues.info("mail")).waiting == 1
    assert await refused(client.enqueue("shop:welcome", 2, request_id="order-42")) is Code.ALREADY_EXISTS


async def test_many_jobs_get_an_answer_each_in_their_order(client: Client, app: App) -> None:
    async def requests() -> AsyncIterator[pb.EnqueueRequest]:
        for number in range(250):
            yield pb.EnqueueRequest(task="shop:nosuch" if number == 3 else "shop:welcome", args=b"[1]")

    reply = await client.jobs.EnqueueMany(requests())
    assert len(reply.answers) == 250
    assert [answer.code for answer in reply.answers[:5]] == [0, 0, 0, Code.NOT_FOUND.value[0], 0]
    assert (await app.queues.info("mail")).waiting == 249


@pytest.mark.parametrize(
    ("request_", "code", "says"),
    [
        (pb.EnqueueRequest(), Code.NOT_FOUND, "unknown task"),
        (pb.EnqueueRequest(task="shop:nosuch"), Code.NOT_FOUND, "unknown task"),
        (pb.EnqueueRequest(task="shop:welcome"), Code.INVALID_ARGUMENT, "/kwargs"),
        (pb.EnqueueRequest(task="shop:welcome", args=b'["x"]'), Code.INVALID_ARGUMENT, "/args/0"),
        (pb.EnqueueRequest(task="shop:welcome", args=b"{"), Code.INVALID_ARGUMENT, "not JSON"),
        (pb.EnqueueRequest(task="shop:welcome", args=b"\xff"), Code.INVALID_ARGUMENT, "not JSON"),
        (pb.EnqueueRequest(task="shop:welcome", args=b"5"), Code.INVALID_ARGUMENT, "/args"),
        (
            pb.EnqueueRequest(task="shop:welcome", args=b"[" * 5000 + b"]" * 5000),
            Code.INVALID_ARGUMENT,
            "nested",
        ),
        (
            pb.EnqueueRequest(task="shop:welcome", args=b"[1]", options=b'{"x": 1}'),
            Code.INVALID_ARGUMENT,
            "/options/x",
        ),
        (
            pb.EnqueueRequest(task="shop:welcome", args=b"[1]", options=b'{"queue": "a{b}"}'),
            Code.INVALID_ARGUMENT,
            "/options/queue",
        ),
        (
            pb.EnqueueRequest(task="shop:welcome", args=b"[1]", request_id="x" * 300),
            Code.INVALID_ARGUMENT,
            "255",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_a_wrong_call_has_its_code_and_the_place_of_the_mistake(
    client: Client, request_: pb.EnqueueRequest, code: grpc.StatusCode, says: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.jobs.Enqueue(request_)
    assert caught.value.code() is code
    assert says in (caught.value.details() or "")


async def test_delete_has_three_answers(client: Client, app: App) -> None:
    waiting = await client.enqueue("shop:welcome", 1)
    reply = await client.jobs.Delete(pb.JobRequest(id=waiting.id))
    assert (reply.done, reply.answer) == (True, "cancelled")
    assert await refused(client.jobs.Delete(pb.JobRequest(id="mail:nosuch"))) is Code.NOT_FOUND

    begun = asyncio.Event()

    @app.task(name="shop:long", queue="orders")
    async def long() -> str:
        begun.set()
        await asyncio.Event().wait()
        return ""

    sent = await client.enqueue("shop:long")
    async with running(app):
        await begun.wait()
        assert await refused(client.jobs.Delete(pb.JobRequest(id=sent.id))) is Code.FAILED_PRECONDITION
        info = await app.jobs.info(sent.id)
        assert info is not None
        assert (info.status, info.stopping) == ("EXECUTING", None), "it was not asked to stop"
        stopped = await client.jobs.Cancel(pb.CancelRequest(id=sent.id, reason="left"))
        assert stopped.id == sent.id
        result = await client.jobs.Wait(pb.WaitRequest(id=sent.id, seconds=20))
    assert (result.status, result.error_message) == ("CANCELLED", "left")
    assert await refused(client.jobs.Delete(pb.JobRequest(id=sent.id))) is Code.FAILED_PRECONDITION
    entries = [entry for entry in await app.audit.list() if entry.target == sent.id]
    assert {(entry.what, entry.via) for entry in entries} == {("job cancel", "grpc")}


async def test_a_deadline_a_cancel_and_a_disconnect_free_everything(client: Client, app: App) -> None:
    job = (await client.enqueue("shop:welcome", 1)).id
    assert await refused(client.jobs.Wait(pb.WaitRequest(id=job), timeout=0.1)) is Code.DEADLINE_EXCEEDED
    await aeventually(lambda: app.client.waiting.stored[0] == 0)

    waiting = client.jobs.Wait(pb.WaitRequest(id=job, seconds=50))
    task = asyncio.ensure_future(_awaited(waiting))
    await aeventually(lambda: app.client.waiting.stored[0] == 1)
    waiting.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await aeventually(lambda: app.client.waiting.stored[0] == 0)

    stream = client.jobs.Watch(pb.JobRequest(id=job))
    assert (await stream.read()).status == "SENT"
    await aeventually(lambda: app.client.waiting.followed == 1)
    await client.channel.close()
    await aeventually(lambda: app.client.waiting.followed == 0)


async def _awaited(call: Any) -> Any:
    return await call


async def test_the_events_of_a_job_end_with_its_result(client: Client, app: App) -> None:
    job = (await client.enqueue("shop:count", 3)).id
    stream = client.jobs.Watch(pb.JobRequest(id=job))
    assert (await stream.read()).status == "SENT"
    async with running(app):  # no executor could take the job before the first event
        events = await _rest_of(stream)
    assert [event.progress.done for event in events if event.HasField("progress")][-1] == 3
    assert (events[-1].status, json.loads(events[-1].result.value)) == ("SUCCESS", 3)


async def test_the_first_event_has_the_status_of_the_moment(client: Client, app: App) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    @app.task(name="shop:long", queue="orders")
    async def long() -> str:
        begun.set()
        await may_end.wait()
        return "done"

    job = (await client.enqueue("shop:long")).id
    async with running(app):
        await begun.wait()
        stream = client.jobs.Watch(pb.JobRequest(id=job))
        assert (await stream.read()).status == "EXECUTING"
        may_end.set()
        last = (await _rest_of(stream))[-1]
    assert (last.status, json.loads(last.result.value)) == ("SUCCESS", "done")
    first, *_, again = await _rest_of(client.jobs.Watch(pb.JobRequest(id=job)))
    assert (first.status, first.HasField("result")) == ("SUCCESS", False)
    assert again == last
    unknown = client.jobs.Watch(pb.JobRequest(id="mail:nosuch"))
    assert await refused(_awaited(unknown.read())) is Code.NOT_FOUND


async def _rest_of(stream: Any) -> list[pb.Event]:
    events: list[pb.Event] = []
    while (event := await stream.read()) is not grpc.aio.EOF:
        events.append(event)
    return events


async def test_a_wrong_token_has_its_code_and_the_rate_of_failures_is_bounded(
    tokens: dict[str, Client],
) -> None:
    assert await refused(tokens["nobody"].enqueue("shop:welcome", 1)) is Code.UNAUTHENTICATED
    codes = [await refused(tokens["wrong"].enqueue("shop:welcome", 1)) for _ in range(10)]
    assert {*codes} == {Code.UNAUTHENTICATED}
    assert await refused(tokens["basic"].enqueue("shop:welcome", 1)) is Code.RESOURCE_EXHAUSTED


async def test_each_method_is_for_users_with_its_right_only(tokens: dict[str, Client], app: App) -> None:
    needed = {
        "Enqueue": ({"sender", "all"}, pb.EnqueueRequest(task="shop:welcome", args=b"[1]")),
        "Get": ({"see", "read", "all"}, pb.JobRequest(id="mail:nosuch")),
        "Wait": ({"read", "all"}, pb.WaitRequest(id="mail:nosuch", seconds=1)),
        "Cancel": ({"cancel", "all"}, pb.CancelRequest(id="mail:nosuch")),
        "Delete": ({"cancel", "all"}, pb.JobRequest(id="mail:nosuch")),
    }
    queues = {
        "List": ({"see", "read", "all"}, pb.ListQueuesRequest()),
        "Pause": ({"pause", "all"}, pb.PauseRequest(name="mail", why="a test")),
        "Resume": ({"pause", "all"}, pb.ResumeRequest(name="mail")),
    }
    for user in ("all", "read", "reports", "sender", "see", "cancel", "pause"):
        client = tokens[user]
        for stub, methods in ((client.jobs, needed), (client.queues, queues)):
            for method, (allowed, request) in methods.items():
                code = await code_of(getattr(stub, method)(request, metadata=client.metadata))
                assert (code is Code.PERMISSION_DENIED) == (user not in allowed), (user, method, code)
                assert code not in (Code.UNKNOWN, Code.INTERNAL), (user, method)
        await app.queues.resume("mail")
        watching = await code_of(
            client.jobs.Watch(pb.JobRequest(id="mail:nosuch"), metadata=client.metadata).read()
        )
        assert (watching is Code.PERMISSION_DENIED) == (user not in {"see", "read", "all"}), (user, watching)
        many = iter([pb.EnqueueRequest(task="shop:welcome", args=b"[1]")])
        sending = await code_of(client.jobs.EnqueueMany(many, metadata=client.metadata))
        assert (sending is Code.PERMISSION_DENIED) == (user not in {"sender", "reports", "all"}), (
            user,
            sending,
        )
    assert (await tokens["reports"].enqueue("reports:daily")).id
    refused_ = await tokens["reports"].jobs.EnqueueMany(
        iter([pb.EnqueueRequest(task="shop:welcome", args=b"[1]"), pb.EnqueueRequest(task="reports:daily")]),
        metadata=tokens["reports"].metadata,
    )
    assert [one.code for one in refused_.answers] == [Code.PERMISSION_DENIED.value[0], 0]


async def code_of(call: Any) -> grpc.StatusCode:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return Code.OK


async def test_an_oversized_and_a_malformed_message_have_their_codes(client: Client) -> None:
    large = pb.EnqueueRequest(task="shop:welcome", args=b"x" * (LARGEST + 1))
    assert await refused(client.jobs.Enqueue(large)) is Code.RESOURCE_EXHAUSTED
    for method in ("Enqueue", "Get", "Wait", "Cancel", "Delete"):
        raw = cast("Callable[..., Any]", client.channel.unary_unary(f"/fennelq.v1.Jobs/{method}"))
        for broken in (b"\xff\xff\xff", b"\x0a\x05ab", b"\x0a\x02\xff\xfe"):
            assert await refused(raw(broken)) is Code.INVALID_ARGUMENT, (method, broken)
    nosuch = cast("Callable[..., Any]", client.channel.unary_unary("/fennelq.v1.Jobs/Nosuch"))
    assert await refused(nosuch(b"")) is Code.UNIMPLEMENTED


async def test_health_and_reflection_tell_what_there_is(client: Client) -> None:
    health: Any = cast("Any", health_pb2_grpc).HealthStub(client.channel)
    reply = await health.Check(health_pb2.HealthCheckRequest(service="fennelq.v1.Jobs"))
    assert reply.status == health_pb2.HealthCheckResponse.SERVING
    stub: Any = cast("Any", reflection_pb2_grpc).ServerReflectionStub(client.channel)
    call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
    (answer,) = [one async for one in call]
    names = {one.name for one in answer.list_services_response.service}
    assert names >= {"fennelq.v1.Jobs", "fennelq.v1.Queues", "grpc.health.v1.Health"}


def test_the_generated_code_is_that_of_the_proto_file(tmp_path: Path) -> None:
    root = Path(fennelq.__file__).parents[1]
    made = tmp_path / "descriptors"
    words = [f"-I{root}", f"--descriptor_set_out={made}", str(root / "fennelq" / "grpc" / "fennelq.proto")]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *words], check=True)
    (file,) = FileDescriptorSet.FromString(made.read_bytes()).file
    for message in file.message_type:
        for field in message.field:
            field.ClearField("json_name")  # protoc adds it, and the generated code does not have it
    assert file == FileDescriptorProto.FromString(pb.DESCRIPTOR.serialized_pb), "run `make proto`"
    stubs = (root / "fennelq" / "grpc" / "fennelq_pb2_grpc.py").read_text("utf-8")
    paths = {
        f"/{file.package}.{service.name}/{one.name}" for service in file.service for one in service.method
    }
    assert {*re.findall(r"'(/fennelq\.v1\.\w+/\w+)'", stubs)} == paths, "run `make proto`"
    assert "EXPERIMENTAL" not in stubs, "run `make proto`, which removes what fennelq does not use"


async def test_a_server_that_stops_lets_a_call_finish(redis_url: str) -> None:
    app = LocalApp("shop", redis_url=redis_url)
    declare(app)
    async with app:
        async with serving(app, "127.0.0.1:0") as (_, port):
            channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
            client = Client(channel)
            job = (await client.enqueue("shop:welcome", 1)).id
            waiting = asyncio.ensure_future(_awaited(client.jobs.Wait(pb.WaitRequest(id=job, seconds=1))))
            await aeventually(lambda: app.client.waiting.stored[0] == 1)
        assert (await waiting).status == "SENT"
        await channel.close()
