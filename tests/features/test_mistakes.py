"""What beginners write: each mistake is refused where it is written, with a sentence that names what to write instead.

The sentence is compared as a whole, up to its first line break: nothing of a library's internals is in it.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

import fennelq
from fennelq import (
    App,
    ConfigurationError,
    FennelqError,
    InvalidArguments,
    InvalidJobId,
    Retry,
    RetryPolicy,
    Status,
    TaskFailed,
    UsageError,
)
from tests.features.conftest import MakeApp
from tests.kit.workers import running

HERE = __name__


async def welcome(user_id: int, template: str = "hello") -> str:
    return f"{template} {user_id}"


def report() -> None: ...


def numbers() -> Any:
    yield 1


class Mailer:
    def send(self, to: str) -> None: ...

    @staticmethod
    def ping() -> None: ...


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


class Socket: ...


def take(conn: Socket) -> None: ...


def give() -> dict[str, Socket]:
    return {}


class OwnJob(fennelq.Job[int]):
    def __init__(self) -> None: ...


DELAYED = "a coroutine (delay() sends the job by itself)"
ID_RULE = "an id has the form queue:key, like 'mail:0199c0de…', each part with 1-128 of A-Z a-z 0-9 _ . -"
NAME_RULE = "use 1-128 of A-Z a-z 0-9 _ . -"
IN_CLASS = (
    "is defined in a class, and a task has no self: "
    "make it a function of the module, or give a static method a name:"
)
NO_NAME = "has no name: a task is a function: write a def that calls it"
NEEDS = f"{HERE}:welcome: missing a required argument: 'user_id'; it takes (user_id: int, template: str = 'hello')"
WHAT_CAN = "JSON values, dataclasses, pydantic models, enums, bytes, dates, UUIDs and Decimals can be"
A_URL = "use redis://, rediss://, unix:// or embedded://"

Mistakes = dict[str, tuple[type[FennelqError], str]]

DECLARED: Mistakes = {
    "app.task(lambda: 1)": (
        ConfigurationError,
        f"{HERE}:<lambda>: a lambda has no name by which a worker could find it: "
        f'write a def, or give the task a name="{HERE}:lambda"',
    ),
    "app.task(decorated(report))": (
        ConfigurationError,
        f"{HERE}:decorated.<locals>.wrapper is defined inside a function, and a worker that imports {HERE} does not "
        "find it there: move it to the top level of the module, or give it a name: "
        f'@app.task(name="{HERE}:wrapper"). A decorator below @app.task needs functools.wraps',
    ),
    "app.task(Mailer.send)": (
        ConfigurationError,
        f'{HERE}:Mailer.send {IN_CLASS} @app.task(name="{HERE}:send")',
    ),
    "app.task(Mailer().send)": (
        ConfigurationError,
        f'{HERE}:Mailer.send {IN_CLASS} @app.task(name="{HERE}:send")',
    ),
    "app.task(Mailer.ping)": (
        ConfigurationError,
        f'{HERE}:Mailer.ping {IN_CLASS} @app.task(name="{HERE}:ping")',
    ),
    "app.task(name='shop:send')(Mailer.send)": (
        ConfigurationError,
        "shop:send is a method, and a task has no self: make it a function, and pass it what it needs to know",
    ),
    "app.task(Mailer)": (
        ConfigurationError,
        "Mailer is a class, and a task is a function: decorate a function that makes and uses it",
    ),
    "app.task(staticmethod(report))": (
        ConfigurationError,
        "@app.task comes below @staticmethod, not above it",
    ),
    "app.task(functools.partial(report))": (ConfigurationError, f"a partial object {NO_NAME}"),
    "app.task(name='a:b')(functools.partial(report))": (ConfigurationError, f"a partial object {NO_NAME}"),
    "app.task(welcome(1))": (
        ConfigurationError,
        "welcome() is the coroutine of one call: pass the function, app.task(welcome)",
    ),
    "app.task(task)": (
        ConfigurationError,
        f"{HERE}:welcome is a task already: one @app.task is enough, and it comes below @app.cron and @app.every. "
        "For other options write welcome.options(…)",
    ),
    "app.task('mail')": (
        ConfigurationError,
        "app.task('mail'): options are given by name, like @app.task(queue=\"mail\")",
    ),
    "app.task(5)": (ConfigurationError, "app.task takes a function, not an int object"),
    "app.task(numbers)": (
        ConfigurationError,
        f"{HERE}:numbers is a generator: a task returns its result. Return a list, or send a job for each element",
    ),
    "app.task(take)": (
        ConfigurationError,
        f"{HERE}:take, parameter 'conn' is annotated {HERE}.Socket, which cannot be sent: {WHAT_CAN}",
    ),
    "app.task(give)": (
        ConfigurationError,
        f"{HERE}:give: its result is annotated {HERE}.Socket, which cannot be sent: {WHAT_CAN}",
    ),
    "app.task(name='report')(report)": (
        ConfigurationError,
        "task name 'report' is not valid: write module:function, at most 256 characters",
    ),
    "app.task(quue='mail')(report)": (
        ConfigurationError,
        "unknown option 'quue': did you mean 'queue'?",
    ),
    "app.task(delay=5)(report)": (
        ConfigurationError,
        "delay= belongs to a call: use report.options(delay=…).delay()",
    ),
    "app.task(timeout=0)(report)": (
        ConfigurationError,
        "timeout must be more than 0; None means no timeout",
    ),
    "app.task(retries='3')(report)": (
        ConfigurationError,
        "retries must be a whole number, 0 or more, not '3'",
    ),
    "app.task(retry=3)(report)": (
        ConfigurationError,
        "retry must be a RetryPolicy, like RetryPolicy.fixed(5, delay=10), not 3: a number of runs is retries=",
    ),
    "app.task(retry=RetryPolicy.fixed)(report)": (
        ConfigurationError,
        "retry must be a RetryPolicy, like RetryPolicy.fixed(5, delay=10), not RetryPolicy.fixed: "
        "a number of runs is retries=",
    ),
    "RetryPolicy.fixed(3, delay='10')": (
        ConfigurationError,
        "a retry policy's numbers are seconds, 0 or more and finite: not ('10',)",
    ),
    "RetryPolicy.explicit(5)": (
        ConfigurationError,
        "RetryPolicy.explicit takes a list of seconds, like [1, 10, 60], not 5",
    ),
    "RetryPolicy().only_on('OSError')": (
        ConfigurationError,
        "only_on and giving_up_on take classes of exceptions, one by one, like only_on(OSError, ValueError): "
        "not ('OSError',)",
    ),
    "app.cron(report)": (
        ConfigurationError,
        '@app.cron takes the schedule: write @app.cron("0 9 * * *")',
    ),
    "app.every(report)": (ConfigurationError, "@app.every takes the schedule: write @app.every(30)"),
    "app.cron('* * * *')(report)": (
        ConfigurationError,
        f"schedule {HERE}.report: cron expression '* * * *' cannot be read: "
        "it has five fields (minute hour day month weekday), or six with the seconds last",
    ),
    "app.cron('@dialy')(report)": (
        ConfigurationError,
        f"schedule {HERE}.report: cron expression '@dialy' cannot be read: "
        "this alias does not exist: did you mean '@daily'?",
    ),
    "app.cron('0 0 30 2 *')(report)": (
        ConfigurationError,
        f"schedule {HERE}.report: '0 0 30 2 *' never happens",
    ),
    "app.cron('0 9 * * *', tz='Paris')(report)": (
        ConfigurationError,
        f"schedule {HERE}.report: 'Paris' is not a time zone: write an IANA name like Europe/Paris",
    ),
    "app.cron('0 9 * * *', tz=ZoneInfo('Europe/Paris'))(report)": (
        ConfigurationError,
        f'schedule {HERE}.report: tz= is the name of a zone, like tz="Europe/Paris", '
        "not zoneinfo.ZoneInfo(key='Europe/Paris')",
    ),
    "app.cron('0 9 * * *')(task)": (
        InvalidArguments,
        f"{NEEDS}. A task that needs arguments is declared with @app.task and scheduled with "
        "welcome.cron(…, args=(…,)) or welcome.every(…, args=(…,))",
    ),
    "app.every('30')(report)": (
        ConfigurationError,
        f"schedule {HERE}.report: the interval must be seconds or a timedelta, up to ten years, not '30'",
    ),
    "task.every(30, args=(42))": (
        InvalidArguments,
        f"{HERE}:welcome: args= is a tuple, like args=(42,), not 42",
    ),
}

CONFIGURED: Mistakes = {
    "App('shop', 'redis://localhost')": (
        ConfigurationError,
        'App takes its settings by name, and was given a URL without: write App("shop", redis_url="redis://…")',
    ),
    "App('my shop')": (ConfigurationError, f"app name 'my shop' is not valid: {NAME_RULE}"),
    "App(None)": (ConfigurationError, "app name must be a string, not None"),
    "App('__main__')": (
        ConfigurationError,
        "App(__name__) is named __main__ in a script and after the module in its worker, "
        'which would not find the jobs: write a fixed name, like App("shop")',
    ),
    "App('shop', broker='redis://localhost')": (
        ConfigurationError,
        "App(…): unknown setting 'broker': did you mean 'redis_url'?",
    ),
    "App('shop', leese=3)": (ConfigurationError, "App(…): unknown setting 'leese': did you mean 'lease'?"),
    "App('shop', lease='soon')": (
        ConfigurationError,
        "setting lease: Input should be a valid number, unable to parse string as a number, got 'soon'",
    ),
    "App('shop', redis_url='localhost:6379')": (
        ConfigurationError,
        f"redis_url 'localhost:6379' is not understood: {A_URL}",
    ),
    "App('shop', redis_url='http://localhost')": (
        ConfigurationError,
        f"redis_url 'http://localhost' is not understood: {A_URL}",
    ),
    "App('shop', redis_url='redis://localhost:port')": (
        ConfigurationError,
        "redis_url 'redis://localhost:port' is not understood: write redis://user:password@host:port/db, "
        "with every special character of the password percent-escaped",
    ),
    "App('shop', redis_url='embedded://tmp/jobs')": (
        ConfigurationError,
        "redis_url 'embedded://tmp/jobs' names a relative directory: "
        "write embedded:///tmp/jobs, with three slashes, for /tmp/jobs",
    ),
}

CALLED: Mistakes = {
    "task.job('1')": (
        InvalidArguments,
        f"{HERE}:welcome, parameter 'user_id': Input should be a valid integer, got str",
    ),
    "task.job()": (InvalidArguments, NEEDS),
    "task.job(1, queue='mail')": (
        InvalidArguments,
        f"{HERE}:welcome: queue= is an option, not an argument: write welcome.options(queue=…).delay(…)",
    ),
    "task.options('mail')": (
        UsageError,
        'welcome.options takes options by name, like welcome.options(queue="mail")',
    ),
    "task.options(job_id='a b')": (ConfigurationError, f"job_id 'a b' is not valid: {NAME_RULE}"),
    "task.options(job_id='mail:42')": (
        ConfigurationError,
        "job_id 'mail:42' is not valid: it is the part of an id after the colon, and queue= is the part before it",
    ),
    "task.options(job_id=UUID(int=1))": (ConfigurationError, "job_id must be a string, not a UUID object"),
    "task.options(key=42)": (ConfigurationError, "idempotency key must be a string, not an int object"),
    "task.options(timeout='30')": (ConfigurationError, "timeout must be seconds or a timedelta, not '30'"),
    "task.options(at=datetime(2030, 1, 1))": (
        ConfigurationError,
        "at must be a datetime with a time zone, for example datetime.now(UTC) + timedelta(hours=1)",
    ),
    "await task.map('abc')": (
        InvalidArguments,
        f"{HERE}:welcome: map takes a list of values: write map(['abc'])",
    ),
    "await task.map(5)": (InvalidArguments, f"{HERE}:welcome: map takes a list of values: write map([5])"),
    "await task.map([1, 2], ['a'])": (
        InvalidArguments,
        f"{HERE}:welcome: map takes columns of the same length: these have 2, 1",
    ),
    "await task.map(iter([1, 2]), ['a'])": (
        InvalidArguments,
        f"{HERE}:welcome: map takes columns of the same length",
    ),
    "await task.map()": (
        InvalidArguments,
        f"{HERE}:welcome: map takes the values of each parameter: write map([1, 2, 3])",
    ),
    "await app.enqueue(task.job(42))": (
        UsageError,
        "app.enqueue takes a list of jobs: write app.enqueue([welcome.job(42)])",
    ),
    "await app.enqueue(task.job(42, template='x' * 100))": (
        UsageError,
        "app.enqueue takes a list of jobs: write app.enqueue([welcome.job(…)])",
    ),
    "await app.enqueue(task.job(1), task.job(2))": (
        UsageError,
        "app.enqueue takes one list of jobs: write app.enqueue([welcome.job(1), welcome.job(2)])",
    ),
    "await app.enqueue(task)": (
        UsageError,
        "app.enqueue takes a list of jobs, not a task: write app.enqueue([welcome.job(…)])",
    ),
    "await app.enqueue([task.job(1), task])": (
        UsageError,
        "app.enqueue takes a list of jobs, and element 1 is a task: write app.enqueue([welcome.job(…)])",
    ),
    "await app.enqueue([task.delay(1), task.delay(2)])": (
        UsageError,
        f"app.enqueue takes a list of jobs, and element 0 is {DELAYED}: write app.enqueue([welcome.job(…)])",
    ),
    "await app.enqueue(task.delay(1))": (
        UsageError,
        f"app.enqueue takes a list of jobs, not {DELAYED}: write app.enqueue([welcome.job(…)])",
    ),
    "await app.enqueue([task.job])": (
        UsageError,
        "app.enqueue takes a list of jobs, and element 0 is a function that was not called: "
        "write app.enqueue([welcome.job(…)])",
    ),
    "await app.enqueue([result])": (
        UsageError,
        "app.enqueue takes a list of jobs, and element 0 is the result of a job that was sent: "
        "write app.enqueue([task.job(…)])",
    ),
    "await app.enqueue('mail')": (
        UsageError,
        "app.enqueue takes a list of jobs, not a str object: write app.enqueue([task.job(…)])",
    ),
    "fennelq.Job()": (UsageError, "a Job is made by task.job(…): write await app.enqueue([task.job(…)])"),
    "fennelq.Job('mail', key='1')": (
        UsageError,
        "a Job is made by task.job(…): write await app.enqueue([task.job(…)])",
    ),
    "await app.enqueue([task.job(1), OwnJob()])": (
        UsageError,
        "app.enqueue takes a list of jobs, and element 1 is a Job that no task has made: "
        "write app.enqueue([task.job(…)])",
    ),
    "await app.enqueue(OwnJob())": (
        UsageError,
        "app.enqueue takes a list of jobs, not a Job that no task has made: write app.enqueue([task.job(…)])",
    ),
    "await app.call(OwnJob())": (
        UsageError,
        "app.call takes a job, not a Job that no task has made: write app.call(task.job(…))",
    ),
    "await app.call(task)": (UsageError, "app.call takes a job, not a task: write app.call(welcome.job(…))"),
    "await app.call(task.delay(1))": (
        UsageError,
        f"app.call takes a job, not {DELAYED}: write app.call(welcome.job(…))",
    ),
    "await app.send(task)": (
        UsageError,
        "app.send takes the name of a task, not a task: write await welcome.delay(…)",
    ),
    "await app.send('welcome')": (
        ConfigurationError,
        "task name 'welcome' is not valid: write module:function, at most 256 characters; "
        f"did you mean '{HERE}:welcome'?",
    ),
    "await app.send('other.tasks.welcom')": (
        ConfigurationError,
        "task name 'other.tasks.welcom' is not valid: write module:function, at most 256 characters; "
        f"did you mean '{HERE}:welcome'?",
    ),
    "await app.send('mail')": (
        ConfigurationError,
        "task name 'mail' is not valid: write module:function, at most 256 characters",
    ),
    "await app.send('shop:welcome', user_id=42)": (
        ConfigurationError,
        "unknown option 'user_id'. Arguments of the task that have a name go into _kwargs: _kwargs={'user_id': …}",
    ),
    "await app.schedules.add(task, every=30)": (
        UsageError,
        "app.schedules.add takes a job, not a task: write app.schedules.add(welcome.job(…), cron=…)",
    ),
    "await app.schedules.add(task.job(1))": (
        ConfigurationError,
        f"schedule {HERE}.welcome: give either a cron expression or an interval",
    ),
}

WAITED_FOR: Mistakes = {
    "app.result(result)": (
        InvalidJobId,
        "an AsyncResult object is not a job id: pass its id, 'mail:7'",
    ),
    "app.result(UUID(int=1))": (InvalidJobId, f"a UUID object is not a job id: {ID_RULE}"),
    "app.result('0199c0de')": (InvalidJobId, f"'0199c0de' is not a job id: {ID_RULE}"),
    "await fennelq.gather(task.delay(1), task.delay(2))": (
        UsageError,
        f"gather takes results, not {DELAYED}: `await welcome.delay(…)` returns a result",
    ),
    "await fennelq.gather([result])": (
        UsageError,
        "gather takes results one by one, not a list of them: write gather(*results)",
    ),
    "await fennelq.gather([task.delay(1)])": (
        UsageError,
        "gather takes results one by one, not a list of them: write gather(*results)",
    ),
    "await fennelq.gather(task.job(1))": (
        UsageError,
        "gather takes results, not a job: `await welcome.delay(…)` returns a result",
    ),
    "await fennelq.wait(result)": (
        UsageError,
        "wait takes a list of results, not one: write wait([result])",
    ),
    "await fennelq.wait(result, result)": (
        UsageError,
        "wait takes one list of results: write wait([first, second])",
    ),
    "await fennelq.wait(task.delay(1))": (
        UsageError,
        f"wait takes a list of results, not {DELAYED}: `await welcome.delay(…)` returns a result",
    ),
    "await fennelq.wait([result, task.delay(1)])": (
        UsageError,
        f"wait takes a list of results, and element 1 is {DELAYED}: "
        "`await welcome.delay(…)` returns a result",
    ),
    "[one async for one in fennelq.as_completed(result)]": (
        UsageError,
        "as_completed takes a list of results, not one: write as_completed([result])",
    ),
    "[one async for one in fennelq.as_completed(result, result)]": (
        UsageError,
        "as_completed takes one list of results: write as_completed([first, second])",
    ),
    "[one async for one in fennelq.as_completed([task.job(1)])]": (
        UsageError,
        "as_completed takes a list of results, and element 0 is a job: "
        "`await welcome.delay(…)` returns a result",
    ),
    "await result.get(timeout='5')": (UsageError, "timeout is a number of seconds, not '5'"),
    "await result.get(timeout=timedelta(seconds=5))": (
        UsageError,
        "timeout is a number of seconds, not datetime.timedelta(seconds=5)",
    ),
    "await fennelq.wait([result], timeout='5')": (UsageError, "timeout is a number of seconds, not '5'"),
}

KINDS: tuple[type, ...] = (App, Mailer, RetryPolicy, UUID, ZoneInfo, datetime, timedelta)
FUNCTIONS: tuple[Callable[..., Any], ...] = (welcome, report, numbers, decorated, take, give)
AT_HAND: dict[str, Any] = {
    "__name__": HERE,
    "fennelq": fennelq,
    "OwnJob": OwnJob,
    "functools": functools,
    **{kind.__name__: kind for kind in KINDS},
    **{function.__name__: function for function in FUNCTIONS},
}

MISTAKES = {**DECLARED, **CONFIGURED, **CALLED, **WAITED_FOR}


@pytest.mark.parametrize("code", MISTAKES)
async def test_a_mistake_is_refused_where_it_is_written_with_what_to_write_instead(code: str) -> None:
    kind, sentence = MISTAKES[code]
    with pytest.raises(FennelqError) as refused:
        await written(code)
    assert str(refused.value).partition("\n")[0] == sentence
    assert type(refused.value) is kind
    assert not isinstance(refused.value.__cause__, AttributeError)


@pytest.mark.parametrize("code", [code for code in MISTAKES if MISTAKES[code][0] is UsageError])
async def test_what_was_passed_wrongly_is_a_type_error_as_well(code: str) -> None:
    with pytest.raises(TypeError):
        await written(code)


async def written(code: str) -> object:
    """Runs the line, as a user would write it in a module: with an app, a task `welcome` and a result at hand."""
    app = App("shop", redis_url="redis://127.0.0.1:1", enqueue_timeout=0.01)
    names = {**AT_HAND, "app": app, "task": app.task(welcome), "result": app.result("mail:7")}
    line = compile(code, "user.py", "eval", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    value = eval(line, names)
    return await value if line.co_flags & inspect.CO_COROUTINE else value


def test_a_local_function_is_a_task_when_it_has_a_name() -> None:
    app = App("shop", redis_url="redis://127.0.0.1:1")

    @app.task(name="shop:local")
    async def local() -> None: ...

    named = app.task(name="shop:lambda")(lambda: 1)
    assert list(app.tasks) == ["shop:local", "shop:lambda"]
    assert named() == 1


def test_a_wrapped_function_is_found_by_its_own_name() -> None:
    def wrapping(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any) -> Any:
            return function(*args)

        return wrapper

    app = App("shop", redis_url="redis://127.0.0.1:1")
    assert app.task(wrapping(report)).name == f"{HERE}:report"


def test_two_tasks_of_one_name_are_refused_with_the_place_of_the_first() -> None:
    app = App("shop", redis_url="redis://127.0.0.1:1")
    app.task(name="shop:send")(report)
    with pytest.raises(ConfigurationError) as refused:
        app.task(name="shop:send")(welcome)
    line = report.__code__.co_firstlineno
    assert str(refused.value) == (
        f"task 'shop:send' is declared twice: give one of them another name= (the first is at {__file__}, line {line})"
    )


def test_options_beside_a_function_are_not_lost() -> None:
    app = App("shop", redis_url="redis://127.0.0.1:1")
    made: Any = app.task
    task = made(report, name="shop:report", queue="mail")
    assert (task.name, task.queue) == ("shop:report", "mail")


# In the worker: what a task returns


async def fetch() -> int:
    return 7


async def liar() -> str:
    return 5  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


async def forgetful() -> int:
    return fetch()  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


def threaded() -> int:
    return fetch()  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


async def polite() -> None:
    return Retry(delay=1)  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


async def handing_out() -> Any:
    return {"conn": Socket()}


ONLY_JSON = "without a return annotation only JSON values can be: annotate what it returns"
RETURNED: dict[Callable[[], Any], str] = {
    liar: "liar returned int, but its annotation is str",
    forgetful: "forgetful returned a coroutine: write `return await fetch(…)`, in an async def task",
    threaded: "threaded returned a coroutine: write `return await fetch(…)`, in an async def task",
    polite: "polite returned Retry instead of raising it: write raise Retry(…)",
    handing_out: f"handing_out returned a Socket object in ['conn'], which cannot be sent: {ONLY_JSON}",
}


async def test_a_task_that_returns_what_cannot_be_its_result_is_dead_and_the_error_has_the_reason(
    make_app: MakeApp,
) -> None:
    app = make_app()
    tasks = {app.task(function): sentence for function, sentence in RETURNED.items()}
    async with running(app):
        for task, sentence in tasks.items():
            with pytest.raises(TaskFailed) as failed:
                await (await task.delay()).get(timeout=30)
            assert failed.value.message == f"{HERE}:{sentence}"
            assert (failed.value.tries, failed.value.traceback) == (1, "")


async def test_of_a_list_with_a_mistake_nothing_is_sent(make_app: MakeApp) -> None:
    app = make_app()
    task = app.task(welcome)
    good = task.job(1)
    wrong: Any = [good, task]
    with pytest.raises(UsageError):
        await app.enqueue(wrong)
    assert await app.result(good.id).status() is Status.UNKNOWN
