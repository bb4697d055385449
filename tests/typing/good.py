"""What users write, and the types they get. Never run: it must be accepted as it stands by every type checker."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import Annotated, Any, assert_type

from fennelq import (
    AnyEvent,
    App,
    AsyncResult,
    AsyncTask,
    BlockingApp,
    BlockingQueue,
    BlockingResult,
    BlockingTask,
    BrokerUnavailable,
    DeadLetter,
    Dedupe,
    Depends,
    DuplicateJob,
    EnqueueFailed,
    Event,
    FennelqError,
    Group,
    ImportReport,
    InvalidArguments,
    Job,
    JobAnswer,
    JobCancelled,
    JobContext,
    JobDied,
    JobError,
    JobFailure,
    JobFinished,
    JobInfo,
    JobSent,
    Limit,
    Moment,
    OnDuplicate,
    OnProgress,
    OperationInfo,
    OperationPlan,
    OptionArgs,
    Overlap,
    PayloadTooLarge,
    Place,
    Plugin,
    Priority,
    Progress,
    Queue,
    QueueInfo,
    QueuePause,
    QueuePaused,
    Rate,
    RateLimited,
    Reject,
    ReplayPlan,
    ReplayReport,
    ResultExpired,
    ResultTimeout,
    Retry,
    RetryPolicy,
    Schedule,
    ScheduleInfo,
    Seconds,
    SettingArgs,
    Settings,
    Shared,
    Snooze,
    Status,
    Story,
    StoryLine,
    StoryRun,
    Task,
    TaskDecorator,
    TaskFailed,
    ThreadTask,
    UnknownTask,
    When,
    as_completed,
    current_job,
    dedupe,
    gather,
    injected,
    wait,
)
from fennelq.testing import BlockingTesting, SentJob, Summary, Testing, testing


@dataclass
class Order:
    id: int


app = App("shop", redis_url="redis://localhost", result_ttl=60)


# Tasks: bare and with options, of both kinds


@app.task
async def welcome(user_id: int, template: str = "hello") -> str:
    return f"{template} {user_id}"


@app.task(queue="mail", retries=5, timeout=30)
async def charge(order: Order, *, currency: str = "EUR") -> Order:
    return order


@app.task(timeout=timedelta(minutes=5))
def resize(path: str, width: int) -> tuple[int, int]:
    return (width, len(path))


@app.task(name="shop.jobs:report", priority="low", retry=RetryPolicy.explicit([1, 60]), headers={"team": "a"})
def report() -> None:
    return None


@app.task(expires=timedelta(hours=1), result_ttl=0, failure_ttl=60.5, max_deliveries=2)
async def spread(*paths: str, **sizes: int) -> dict[str, int]:
    return sizes


@app.task
def triple(number: int, text: str, flag: bool) -> int:
    return number


@app.cron("0 9 * * 1-5", tz="Europe/Paris", queue="mail")
async def digest() -> int:
    return 1


@app.every(timedelta(minutes=5), name="sweeper", overlap="skip")
def sweep() -> int:
    return 1


# A plain call involves no queue


async def plain_calls() -> None:
    assert_type(await welcome(42), str)
    assert_type(await welcome(user_id=42, template="x"), str)
    assert_type(await charge(Order(1), currency="USD"), Order)
    assert_type(resize("a.png", 10), tuple[int, int])
    assert_type(await spread("a", "b", c=1), dict[str, int])
    assert_type(await digest(), int)
    assert_type(sweep(), int)
    report()


# delay() takes the task's parameters, get() returns what the task returns


async def sending() -> None:
    result = await welcome.delay(42)
    assert_type(result, AsyncResult[str])
    assert_type(await result.get(), str)
    assert_type(await result.get(timeout=30), str)
    assert_type(await (await welcome.delay(42, template="x")).get(), str)
    assert_type(await (await charge.delay(Order(1), currency="USD")).get(), Order)
    assert_type(await (await resize.delay(path="a.png", width=10)).get(), tuple[int, int])
    assert_type(await (await spread.delay("a", "b", c=1)).get(), dict[str, int])
    assert_type(await report.delay(), AsyncResult[None])
    assert_type(await digest.delay(), AsyncResult[int])


async def handles(result: AsyncResult[str]) -> None:
    assert_type(result.id, str)
    assert_type(result.deduplicated, bool)
    assert_type(await result.status(), Status)
    assert_type((await result.status()).ended, bool)
    assert_type(await result.info(), JobInfo | None)
    assert_type(await result.cancel(), bool)
    assert_type(await result.cancel("no longer needed", wait=0.5), bool)
    assert_type({result}, set[AsyncResult[str]])


# options() is the same task, equally typed


async def options() -> None:
    later = welcome.options(delay=60, priority="high", key="welcome:42", ttl=timedelta(days=1))
    assert_type(await later.delay(42), AsyncResult[str])
    assert_type(await later(42), str)
    assert_type(await later.options(at=datetime.now(UTC)).delay(42), AsyncResult[str])
    assert_type(resize.options(job_id="a", timeout=None)("a.png", 1), tuple[int, int])
    await welcome.options(retry=RetryPolicy.exponential(5, cap=60).giving_up_on(KeyError)).delay(42)


# Deduplication


@app.task(key=dedupe.arguments("user_id"), dedupe="debounce", wait=timedelta(seconds=2), max_wait=30)
async def indexed(user_id: int, text: str) -> None: ...


def digit_of(call: Mapping[str, Any]) -> str:
    return f"{call['user_id'] % 10}"


async def deduplicated(mode: Dedupe, how: OnDuplicate) -> None:
    result = await indexed.options(dedupe=mode, on_duplicate=how, key=digit_of).delay(7, "a")
    assert_type(result, AsyncResult[None])
    indexed.sync.options(key="all", dedupe="throttle", ttl=60).delay(7, "a")
    info = await result.info()
    if info is not None:
        assert_type(info.dedupe, Dedupe | None)
        assert_type(info.due_by, datetime | None)
    try:
        await indexed.delay(7, "a")
    except DuplicateJob as error:
        assert_type(error.key, str | None)


# Limits


@app.task(concurrency=Limit(1, key="tenant_id"), rate_limit=Rate("10/s", burst=5), fair_key="tenant_id")
async def of_a_tenant(tenant_id: int) -> None:
    raise RateLimited(retry_after=timedelta(seconds=5))


@app.every(30, concurrency=Limit(1, per_queue=True))
def limited_again_and_again() -> None:
    raise RateLimited(5)


def account_of(call: Mapping[str, Any]) -> str:
    return f"account-{call['user_id']}"


async def limits() -> None:
    keyed = welcome.options(concurrency=Limit(3, account_of, name="account"), fair_key=account_of)
    assert_type(await keyed.delay(42), AsyncResult[str])
    job = welcome.options(rate_limit=Rate(key=lambda call: call["user_id"], name="api", per_queue=True)).job(
        42
    )
    assert_type(job, Job[str])
    await app.send("shop.tasks:sync", _kwargs={"account": 7}, concurrency=Limit(1, "account"))


# Describing first, sending afterwards


async def describing() -> None:
    job = welcome.job(42, template="x")
    assert_type(job, Job[str])
    assert_type(job.id, str)
    assert_type(await app.enqueue([job, welcome.job(43)]), list[AsyncResult[str]])
    assert_type(await app.enqueue(charge.job(Order(n)) for n in range(3)), list[AsyncResult[Order]])
    assert_type(await app.call(job), str)
    assert_type(await app.call(charge.job(Order(1)), timeout=30), Order)
    assert_type(await welcome.map([1, 2, 3]), list[AsyncResult[str]])
    assert_type(await resize.map(["a", "b"], [1, 2]), list[AsyncResult[tuple[int, int]]])
    assert_type(welcome.jobs(range(3)), list[Job[str]])


# map() takes a column for each parameter


async def mapping(task: Task[[int], str], any_task: Task[..., int], columns: Sequence[Sequence[Any]]) -> None:
    assert_type(await task.map([1, 2]), list[AsyncResult[str]])
    assert_type(await welcome.map(n for n in range(3)), list[AsyncResult[str]])
    assert_type(await welcome.map([1], ["hello"]), list[AsyncResult[str]])
    assert_type(await charge.map([Order(1)]), list[AsyncResult[Order]])
    assert_type(await spread.map(["a"]), list[AsyncResult[dict[str, int]]])
    assert_type(await spread.map(["a"], ["b"], ["c"]), list[AsyncResult[dict[str, int]]])
    assert_type(await triple.map([1], ["a"], [True]), list[AsyncResult[int]])
    assert_type(await any_task.map([1], ["a"]), list[AsyncResult[int]])
    assert_type(await triple.map(*columns), list[AsyncResult[int]])
    assert_type(await welcome.options(delay=5).map([1]), list[AsyncResult[str]])
    assert_type(welcome.sync.map([1], ["hello"]), list[BlockingResult[str]])
    assert_type(triple.sync.map([1], ["a"], [True]), list[BlockingResult[int]])


async def cancelling() -> None:
    assert_type(await app.cancel(task=welcome, status=Status.SENT, older_than=timedelta(hours=1)), int)
    assert_type(await app.cancel(queue=["mail", "sms"], task="welcome", limit=10, reason="closed"), int)
    assert_type(await app.cancel(status=[Status.RETRY, Status.SCHEDULED], all=True), int)
    assert_type(await app.jobs.cancel("mail:0199", "no longer needed", wait=0), JobAnswer)
    info = await app.result("mail:0199").info()
    assert info is not None
    assert_type(info.stopping, str | None)
    story = await app.jobs.story("mail:0199")
    assert story is not None
    assert_type(story, Story)
    assert_type(story.runs, tuple[StoryRun, ...])
    assert_type(story.lines, tuple[StoryLine, ...])


async def jobs_of_different_tasks_go_together() -> None:
    jobs: list[Job[object]] = [welcome.job(1), resize.job("a", 1)]
    assert_type(await app.enqueue(jobs), list[AsyncResult[object]])
    await app.enqueue([welcome.job(1), resize.job("a", 1), report.job()])
    await gather(await welcome.delay(1), await resize.delay("a", 1))
    await wait([await welcome.delay(1), await report.delay()])


async def without_the_code() -> None:
    assert_type(await app.send("shop.tasks:welcome", 42, queue="mail"), AsyncResult[Any])
    assert_type(app.describe("shop.tasks:welcome", 42, _kwargs={"template": "x"}), Job[Any])
    assert_type(app.result("mail:0199"), AsyncResult[Any])


async def finding_and_acting() -> None:
    async for job in app.jobs.find("state:dead task:welcome", limit=5):
        assert_type(job, JobInfo)
    assert_type(await app.jobs.count("since:2h"), int)
    plan = await app.operations.plan("cancel", "task:welcome")
    assert_type(plan, OperationPlan)
    operation = await app.operations.begin(plan, limit=5, reason="too many")
    assert_type(await app.operations.resume(operation.id), OperationInfo)
    assert_type(await app.operations.get("3f9a21c0"), OperationInfo | None)
    assert_type(app.sync.operations.list(), list[OperationInfo])
    assert_type(app.sync.jobs.run("mail:0199"), JobAnswer)


# Without an event loop


def synchronous() -> None:
    result = welcome.sync.delay(42)
    assert_type(result, BlockingResult[str])
    assert_type(result.get(timeout=30), str)
    assert_type(result.status(), Status)
    assert_type(result.info(), JobInfo | None)
    assert_type(result.history(), list[Event])
    assert_type(result.cancel(), bool)
    assert_type(result.cancel("no longer needed", wait=0.5), bool)
    assert_type(app.sync.cancel(queue="mail", older_than=60), int)
    assert_type(app.sync.jobs.cancel(result.id, "no longer needed", wait=0), JobAnswer)
    assert_type(app.sync.jobs.story(result.id), Story | None)
    assert_type((result.id, result.deduplicated), tuple[str, bool])
    assert_type(welcome.sync.options(delay=5).delay(42, template="x").get(), str)
    assert_type(welcome.options(delay=5).sync.delay(42).get(), str)
    assert_type(resize.sync.map(["a"], [1]), list[BlockingResult[tuple[int, int]]])
    assert_type(report.sync.delay(), BlockingResult[None])


def everything_synchronous() -> None:
    assert_type(app.sync, BlockingApp)
    task: BlockingTask[[int, str], str] | BlockingTask[..., str] = welcome.sync
    assert_type(task.delay(1, "x"), BlockingResult[str])
    assert_type(app.sync.result("mail:0199"), BlockingResult[Any])
    assert_type(app.sync.enqueue([welcome.job(1)]), list[BlockingResult[str]])
    assert_type(app.sync.send("shop.tasks:welcome", 42, queue="mail"), BlockingResult[Any])
    assert_type(app.sync.call(welcome.job(1), timeout=5), str)
    with app.sync as blocking:
        assert_type(blocking, BlockingApp)


def several_synchronous() -> None:
    text, pair, none = welcome.sync.delay(1), resize.sync.delay("a", 1), report.sync.delay()
    assert_type(app.sync.gather(text, pair), tuple[str, tuple[int, int]])
    assert_type(app.sync.gather(text, pair, none, timeout=5), tuple[str, tuple[int, int], None])
    assert_type(app.sync.gather(*welcome.sync.map([1])), list[str])
    assert_type(
        app.sync.gather(text, none, return_exceptions=True),
        tuple[str | BaseException, BaseException | None],
    )
    done, pending = app.sync.wait([text], timeout=5, return_when="first")
    assert_type((done, pending), tuple[set[BlockingResult[str]], set[BlockingResult[str]]])
    for result in app.sync.as_completed([text], timeout=5):
        assert_type(result.get(), str)


def operating_synchronously() -> None:
    dlq, schedules, queues = app.sync.dlq, app.sync.schedules, app.sync.queues
    assert_type(dlq.list(task=welcome, since=timedelta(hours=1), order="oldest"), list[DeadLetter])
    assert_type([letter.id for letter in dlq.scan(queue="mail")], list[str])
    assert_type(dlq.get("mail:1"), DeadLetter | None)
    assert_type((dlq.count(error="KeyError"), dlq.purge(limit=5, all=True)), tuple[int, int])
    assert_type(dlq.groups(), list[Group])
    assert_type(dlq.replay(rate=10, progress=print), ReplayReport)
    assert_type(dlq.plan(arguments={"user_id": 42}, limit=5), ReplayPlan)
    assert_type(dlq.replay(plan=dlq.plan(), canary=5, canary_timeout=timedelta(minutes=1)), ReplayReport)
    assert_type(dlq.replay(arguments=lambda arguments: {**arguments, "n": 1}, continue_=True), ReplayReport)
    assert_type(dlq.edit("mail:1", {"user_id": 42}, who="anna"), JobAnswer)
    assert_type(dlq.import_(list(dlq.export(queue="mail")), dead=True), ImportReport)
    assert_type(schedules.add(welcome.job(1), every=60, overlap="skip"), ScheduleInfo)
    assert_type(schedules.run("x"), BlockingResult[Any])
    assert_type(schedules.get("x").schedule, Schedule)
    assert_type(schedules.list(), list[ScheduleInfo])
    assert_type(queues.names(), list[str])
    assert_type((queues.info("mail"), queues.purge("mail")), tuple[QueueInfo, int])
    assert_type(queues.list(), list[QueueInfo])
    assert_type(queues.peek("mail", place="retry"), list[JobInfo])


async def operating() -> None:
    assert_type(await app.queues.list(), list[QueueInfo])
    assert_type(await app.queues.pause("mail", only="consume", why="down"), QueuePause)
    assert_type(await app.queue("mail").pause(), QueuePause)
    assert_type(app.queue("mail", max_waiting=10, when_full="wait"), Queue)
    assert_type(app.sync.queue("mail", max_waiting=10), BlockingQueue)
    assert_type((await app.queue("mail").info()).fullness, float | None)
    assert_type(await app.queue("mail").resume(only="enqueue"), QueuePause | None)
    assert_type(app.sync.queue("mail").pause(who="anna"), QueuePause)
    assert_type(app.sync.queue("mail").resume(), QueuePause | None)
    assert_type((await app.queue("mail").info()).paused, QueuePause | None)
    assert_type(await app.dlq.list(), list[DeadLetter])
    assert_type(await app.schedules.list(), list[ScheduleInfo])


# In a process of its own


@app.task(isolation="process", queue="cpu", timeout=60, idempotent=True, speculate=0.95)
def crunch(n: int, *, precise: bool = False) -> float:
    return n / 3


async def in_processes() -> None:
    as_thread: ThreadTask[..., float] = crunch
    assert_type(as_thread(7), float)
    assert_type(crunch(7, precise=True), float)
    assert_type(await crunch.delay(7), AsyncResult[float])
    assert_type(await crunch.options(timeout=None).map([1, 2]), list[AsyncResult[float]])
    assert_type(crunch.sync.delay(7).get(), float)


# Progress: from inside of a task, and from outside


async def reporting() -> None:
    job = current_job()
    await job.progress(3)
    await job.progress(0.5, 1, note="rows")
    job.sync.progress(3, 10, "rows")


async def following(sent: AsyncResult[str]) -> None:
    assert_type(await sent.progress(), Progress | None)
    async for progress in sent.watch():
        assert_type(progress, Progress)
        assert_type(progress.fraction, float | None)
    async with aclosing(sent.watch()) as reports:
        assert_type(await anext(reports), Progress)
    info = await sent.info()
    assert info is not None
    assert_type(info.progress, Progress | None)


def following_in_a_thread(sent: BlockingResult[str]) -> None:
    assert_type(sent.progress(), Progress | None)
    for progress in sent.watch():
        assert_type(progress, Progress)


# What one meets in a signature can be imported


def of_public_types(
    place: Place, priority: Priority, overlap: Overlap, seconds: Seconds, moment: Moment, progress: OnProgress
) -> tuple[OptionArgs, When, SettingArgs]:
    welcome.options(priority=priority, delay=seconds)
    app.sync.queues.peek("mail", place=place)
    app.sync.dlq.replay(since=moment, progress=progress)
    return {"queue": "mail", "retries": 5}, {"overlap": overlap}, {"result_ttl": 5}


def of_public_classes(
    sent: AsyncTask[[int], str],
    threaded: ThreadTask[[str], int],
    decorate: TaskDecorator,
    failure: JobFailure,
) -> None:
    assert_type(threaded("a"), int)
    assert_type(failure.error_type, str)
    assert_type(sent.sync.delay(1).get(), str)


# Several at once


async def several() -> None:
    results = await welcome.map([1, 2])
    first, second = results
    assert_type(await gather(*results), list[str])
    assert_type(await gather(*results, timeout=5), list[str])
    assert_type(await gather(first), list[str])
    assert_type(await gather(first, return_exceptions=True), list[str | BaseException])
    assert_type(await gather(*results, return_exceptions=True), list[str | BaseException])
    ended, pending = await wait([first, second], timeout=5, return_when="first")
    assert_type(ended, set[AsyncResult[str]])
    assert_type(pending, set[AsyncResult[str]])
    async for result in as_completed([first, second], timeout=5):
        assert_type(await result.get(), str)


async def several_of_different_types(
    a: AsyncResult[int],
    b: AsyncResult[str],
    c: AsyncResult[None],
    d: AsyncResult[bytes],
    e: AsyncResult[Order],
) -> None:
    number, text = await gather(a, b)
    assert_type(number, int)
    assert_type(text, str)
    assert_type(await gather(a, a), tuple[int, int])
    assert_type(await gather(a, b, c, timeout=5), tuple[int, str, None])
    assert_type(await gather(a, b, c, d), tuple[int, str, None, bytes])
    assert_type(await gather(a, b, c, d, e), tuple[int, str, None, bytes, Order])
    assert_type(await gather(a, b, c, d, e, a), tuple[int, str, None, bytes, Order, int])
    assert_type(await gather(a, a, a, a, a, a, a), list[int])
    assert_type(await gather(a, b, return_exceptions=True), tuple[int | BaseException, str | BaseException])


# Inside a task


@app.task(retries=3)
async def careful(order: Order) -> str:
    job = current_job()
    assert_type(job, JobContext)
    assert_type((job.id, job.task, job.queue), tuple[str, str, str])
    assert_type((job.tries, job.max_retries, job.fence), tuple[int, int, int])
    assert_type(job.enqueued_at, datetime)
    assert_type(job.headers, Mapping[str, str])
    assert_type(job.cancelled, str | None)
    if job.tries > 2:
        raise Reject("no such order")
    if job.tries > 1:
        raise Snooze(until=datetime.now(UTC) + timedelta(hours=1))
    raise Retry(delay=timedelta(seconds=5))


# Errors carry facts


async def send_again() -> None:
    try:
        await welcome.delay(1)
    except QueuePaused as paused:
        assert_type(paused.pause, QueuePause)
        assert_type(await app.enqueue(paused.jobs), list[AsyncResult[Any]])


async def errors(result: AsyncResult[str]) -> None:
    try:
        await result.get(timeout=1)
    except TaskFailed as failed:
        assert_type((failed.job_id, failed.error_type, failed.message), tuple[str, str, str])
        assert_type((failed.traceback, failed.tries), tuple[str, int])
    except (JobCancelled, ResultExpired) as ended:
        assert_type(ended.job_id, str)
    except JobError as ended:
        assert_type(ended.job_id, str)
    except ResultTimeout as late:
        assert_type((late.job_id, late.timeout), tuple[str, float])
    except BrokerUnavailable as away:
        assert_type(await app.enqueue(away.jobs), list[AsyncResult[Any]])
        assert_type(away.reason, str)
    except InvalidArguments as refused:
        assert_type((refused.task, refused.parameter), tuple[str, str | None])
    except (PayloadTooLarge, DuplicateJob, UnknownTask) as refused:
        raise refused
    except EnqueueFailed as some:
        assert_type(some.failures, dict[int, Exception])
    except FennelqError:
        pass


def a_timeout_is_a_timeout(error: ResultTimeout) -> TimeoutError:
    return error


# Middleware, events, plugins, context


@app.sending
def stamp(job: Job[Any]) -> Job[Any]:
    assert_type(job.headers, Mapping[str, str])
    return job.with_headers({"trace": "1"}).with_options(priority="low", expires=60)


@app.performing
async def timed(job: JobContext, call: Callable[[], Awaitable[Any]]) -> Any:
    assert_type(job.headers, Mapping[str, str])
    return await call()


@app.task(sending=[stamp], performing=[timed], queue="mail")
async def surrounded(n: int) -> str:
    return str(n)


@app.on(JobDied)
def died(event: JobDied) -> None:
    assert_type((event.id, event.tries, event.error), tuple[str, int, JobFailure])


@app.on(JobFinished)
async def finished(event: JobFinished) -> None:
    assert_type(event.seconds, float | None)
    if event.outcome == "success":
        return


def any_event(event: AnyEvent) -> None: ...


async def flush() -> float:
    return 60.0


tenant: ContextVar[str] = ContextVar("tenant")
locale: ContextVar[str | None] = ContextVar("locale", default=None)


def extensions() -> None:
    call: Callable[[int], Coroutine[Any, Any, str]] = surrounded
    asyncio.run(call(1))
    assert_type(surrounded.job(1).with_headers({}), Job[str])
    assert_type(surrounded.job(1).with_options(retries=2), Job[str])
    plain: Callable[[JobDied], None] = died
    later: Callable[[JobFinished], Coroutine[Any, Any, None]] = finished
    app.on(JobSent)(any_event)
    app.use(Plugin("metrics", [stamp], [timed], {JobDied: plain, JobFinished: later}, [flush]))
    app.route("shop.images.*", queue="gpu")
    app.carry(tenant)
    app.carry(locale)
    App("shop", carry=["request_id"])


# Tasks as values


def names_of(tasks: Sequence[Task[..., Any]]) -> list[str]:
    return [task.name for task in tasks]


def as_values() -> None:
    names_of([welcome, charge, resize, report])
    assert_type(app.tasks, Mapping[str, Task[Any, Any]])
    call: Callable[[int], Coroutine[Any, Any, str]] = welcome
    plain: Callable[[str, int], tuple[int, int]] = resize
    assert_type(plain("a", 1), tuple[int, int])
    asyncio.run(call(1))


@asynccontextmanager
async def an_app() -> AsyncGenerator[App]:
    async with App("shop") as shop:
        assert_type(shop.settings, Settings)
        assert_type(shop.settings.result_ttl, float)
        assert_type(shop.settings.redis_url, str | None)
        yield shop


# Injection: a provider of every kind fills a parameter of the type that it makes


class Db:
    def __enter__(self) -> int:
        return 1

    def __exit__(self, *error: object) -> None: ...


async def async_generator() -> AsyncGenerator[Db]:
    yield Db()


async def async_iterator() -> AsyncIterator[Db]:
    yield Db()


def generator() -> Generator[Db]:
    yield Db()


@asynccontextmanager
async def async_manager() -> AsyncGenerator[Db]:
    yield Db()


@contextmanager
def manager() -> Generator[Db]:
    yield Db()


async def coroutine(settings: dict[str, str] = Shared(dict[str, str])) -> Db:
    return Db()


def plain() -> Db:
    return Db()


@app.task
async def injecting(
    order: int,
    a: Db = Depends(async_generator),
    b: Db = Depends(async_iterator),
    c: Db = Depends(generator),
    d: Db = Depends(async_manager),
    e: Db = Depends(manager),
    f: Db = Depends(coroutine),
    g: Db = Depends(plain),
    h: Db = Depends(Db),
    i: Db = Shared(async_generator),
    j: Db = Shared(manager),
    k: Db = Shared(plain),
    lock: Lock = Shared(Lock),
    job: JobContext = Depends(current_job),
    annotated: Annotated[Db, Depends(plain)] = injected,
) -> int:
    return order


@app.task
def injecting_in_thread(
    order: int, /, db: Db = Depends(generator), *, user: str = Shared(lambda: "ann")
) -> int:
    return order


async def resources(shop: App, db: Db = Shared(plain)) -> AsyncIterator[Db]:
    yield db


@asynccontextmanager
async def other_resources(shop: App) -> AsyncGenerator[None]:
    yield


async def calling_what_is_injected() -> None:
    assert_type(await (await injecting.delay(7)).get(), int)
    assert_type(injecting_in_thread.job(7), Job[int])
    assert_type(injecting_in_thread(7, Db(), user="bob"), int)
    assert_type(await injecting.map([1, 2]), list[AsyncResult[int]])
    assert_type(Depends(async_manager), Db)
    assert_type(Depends(Db), Db)
    assert_type(Shared(resources), Db)
    with App("shop", lifespan=resources).overrides({plain: lambda: Db(), generator: plain}) as nothing:
        assert_type(nothing, None)
    assert_type(App("shop", lifespan=other_resources, result_ttl=5).state, Any)


# Testing


async def testing_an_app() -> None:
    async with testing(app, overrides={plain: Db}, schedules=True, leave_jobs=True) as t:
        assert_type(t, Testing)
        assert_type(await t.run_until_idle(), Summary)
        assert_type(await t.run_until_idle(timeout=5), Summary)
        assert_type(await t.call(injecting, 7), int)
        assert_type(await t.call(injecting_in_thread, 7), int)
        assert_type(t.assert_enqueued(injecting, 7, queue="mail", delay=timedelta(hours=1)), JobInfo)
        assert_type(t.assert_enqueued(injecting, _kwargs={"order": 7}), JobInfo)
        assert_type(t.sent(injecting), list[SentJob])
        assert_type(t.left(), list[JobInfo])
        assert_type(t.sync, BlockingTesting)
        t.tick(60)
        t.tick(timedelta(days=1))
        await t.kill_executor(during=injecting)
        with t.eager(), t.deliver_twice():
            await injecting.delay(7)


def testing_without_a_loop() -> None:
    with testing(app, redis_url="redis://localhost") as t:
        assert_type(t, BlockingTesting)
        assert_type(t.run_until_idle().succeeded, int)
        assert_type([failure.message for failure in t.run_until_idle().failures], list[str])
        assert_type(t.call(injecting, 7), int)
        t.kill_executor(during=injecting_in_thread)
        t.assert_enqueued(injecting)
