"""The checks of a declared task, and the name by which a worker finds it. They raise where the task is declared."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, cast

from fennelq.errors import ConfigurationError, InvalidArguments
from fennelq.model.options import OptionArgs
from fennelq.wording import a_kind_of

if TYPE_CHECKING:
    from fennelq.model.job import Job
    from fennelq.task import Task

_PER_JOB = ("delay", "at", "key", "job_id")
_RECURRING = {"cron": '"0 9 * * *"', "every": "30"}
_MAKE_ONE = "a task is a function: write a def that calls it"


def check_app(name: object, nameless: tuple[object, ...]) -> None:
    """Raises ConfigurationError for settings without a name, and for a name that depends on how a module is run."""
    if nameless:
        given = "a URL" if "://" in str(nameless[0]) else "one"
        raise ConfigurationError(
            f'App takes its settings by name, and was given {given} without: write App("shop", redis_url="redis://…")'
        )
    if name == "__main__":
        raise ConfigurationError(
            "App(__name__) is named __main__ in a script and after the module in its worker, which would not find "
            'the jobs: write a fixed name, like App("shop")'
        )


def check_fingerprint(function: object) -> None:
    """Raises ConfigurationError when this cannot make fingerprints: it is called in the middle of a failure."""
    if function is None or (callable(function) and not inspect.iscoroutinefunction(function)):
        return
    given = "an async function" if callable(function) else repr(function)
    raise ConfigurationError(
        "App(fingerprint=…) takes a function of the task's name and the exception, which returns a text: "
        f"not {given}"
    )


def check_when(decorator: str, when: object) -> None:
    """Raises ConfigurationError for a bare `@app.cron` or `@app.every`, without a call: it would take the function for
    the schedule, and the function would never run."""
    if callable(when):
        raise ConfigurationError(
            f"@app.{decorator} takes the schedule: write @app.{decorator}({_RECURRING[decorator]})"
        )


def call_without_arguments(task: Task[..., Any]) -> Job[Any]:
    """The call of a schedule that passes no arguments; raises InvalidArguments when the task needs some."""
    try:
        return task.job()
    except InvalidArguments as error:
        function = task.name.rpartition(":")[2]
        raise InvalidArguments(
            task.name,
            f"{error.reason}. A task that needs arguments is declared with @app.task "
            f"and scheduled with {function}.cron(…, args=(…,)) or {function}.every(…, args=(…,))",
        ) from None


def check_function(given: object) -> None:
    """Raises ConfigurationError, with the right code, when this cannot be made a task."""
    if problem := _why_no_function(given):
        raise ConfigurationError(problem)


def name_for(function: Callable[..., Any]) -> str:
    """The default name of a task: `module:function`.

    Raises ConfigurationError when a worker that imports the module would not find the function, or could find another
    one by this name.
    """
    if getattr(function, "__module__", None) is None:
        raise ConfigurationError(
            f"{function.__qualname__} belongs to no module, so a worker does not find it: "
            f'give the task a name, @app.task(name="module:{function.__name__}")'
        )
    name = task_name(function)
    module, _, qualified = name.partition(":")
    example = f'name="{module}:{function.__name__.strip("<>")}"'
    if "<lambda>" in qualified:
        raise ConfigurationError(
            f"{name}: a lambda has no name by which a worker could find it: write a def, or give the task a {example}"
        )
    if "<locals>" in qualified:
        raise ConfigurationError(
            f"{name} is defined inside a function, and a worker that imports {module} does not find it there: "
            f"move it to the top level of the module, or give it a name: @app.task({example}). "
            "A decorator below @app.task needs functools.wraps"
        )
    if "." in qualified:
        raise ConfigurationError(
            f"{name} is defined in a class, and a task has no self: "
            f"make it a function of the module, or give a static method a name: @app.task({example})"
        )
    return name


def task_name(function: Callable[..., Any]) -> str:
    """`module:function`; one of `__main__` is named after its file, so that a worker importing it agrees."""
    return f"{name_of_module(function).removesuffix('.__main__')}:{function.__qualname__}"


def name_of_module(function: Callable[..., Any]) -> str:
    """The name by which its module would be imported; `__main__` if it cannot be imported."""
    return main_module() if function.__module__ == "__main__" else function.__module__


def main_module() -> str:
    """The name by which the module that runs as `__main__` would be imported."""
    from pathlib import Path

    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name:
        name: str = spec.name
        return name
    file = getattr(main, "__file__", None)
    return Path(file).stem if file else "__main__"


def check_declared(name: str, function: Callable[..., Any], options: OptionArgs) -> None:
    """Raises ConfigurationError for a function that cannot be a task, and for options that only one call can have."""
    for option in _PER_JOB:
        if option in options and not _is_for_all(option, options):
            mode = ', or add dedupe="until_done"' if option == "key" else ""
            raise ConfigurationError(
                f"{option}= belongs to a call: use {function.__name__}.options({option}=…).delay(){mode}"
            )
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise ConfigurationError(
            f"{name} is a generator: a task returns its result. Return a list, or send a job for each element"
        )
    _check_no_self(name, function)
    check_name(name)


def _is_for_all(option: str, options: OptionArgs) -> bool:
    """Whether all calls of a task may have this option, although each job has a value of its own: a key that is
    computed, or one with a mode that frees it."""
    return option == "key" and ("dedupe" in options or not isinstance(options.get("key"), str))


def check_isolation(name: str, function: Callable[..., Any], service: str, isolation: object) -> None:
    """Raises ConfigurationError when a function cannot run in a process of its own."""
    if isolation != "process":
        raise ConfigurationError(f'{name}: isolation= is "process", not {isolation!r:.80}')
    if sys.platform not in ("linux", "darwin"):
        raise ConfigurationError(
            f'{name}: isolation="process" needs Linux or macOS, and this is {sys.platform}: leave it out, and the '
            "function runs in a thread"
        )
    if inspect.iscoroutinefunction(function):
        raise ConfigurationError(
            f'{name} is async def, and isolation="process" is for def functions: make it a def, or leave isolation= '
            "out, and it runs on the event loop"
        )
    if "__main__" in (service.partition(":")[0], name_of_module(function)):
        raise ConfigurationError(
            f'{name} is declared in a program that has no file, like a shell, and isolation="process" runs it in a '
            "process that imports its module: put the app and the task into a file, and import that"
        )


def check_speculation(speculate: object, idempotent: object) -> None:
    """Raises ConfigurationError for a `speculate=` that is not between 0 and 1, and for a task that must not run twice
    at the same time."""
    if not isinstance(idempotent, bool):
        raise ConfigurationError(f"idempotent= is True or False, not {idempotent!r:.80}")
    if speculate is None:
        return
    if isinstance(speculate, bool) or not isinstance(speculate, int | float) or not 0 < speculate < 1:
        raise ConfigurationError(
            f"speculate= is a part of the runs, more than 0 and less than 1, like 0.95, not {speculate!r:.80}"
        )
    if not idempotent:
        raise ConfigurationError(
            "speculate= runs a job a second time while its first run goes on: if the task does no harm when it runs "
            "twice, write idempotent=True as well, and leave speculate= out if it does"
        )


def check_name(name: object) -> None:
    """Raises ConfigurationError when this cannot be the name of a task."""
    if not isinstance(name, str):
        raise ConfigurationError(
            f"a task name is a string of the form module:function, not {a_kind_of(name)}"
        )
    module, _, function_name = name.partition(":")
    if len(name) > 256 or not module or not function_name or any(c.isspace() for c in name):
        raise ConfigurationError(
            f"task name {name[:80]!r} is not valid: write module:function, at most 256 characters"
        )


def place_of(function: Callable[..., Any]) -> str:
    """File and line of a function, for messages; empty when it was not written in Python."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}, line {code.co_firstlineno}" if code else ""


def _why_no_function(given: object) -> str:
    """Why this is not a function that can be made a task, and the right code; empty when it can be made one."""
    if isinstance(given, type):
        return f"{given.__name__} is a class, and a task is a function: decorate a function that makes and uses it"
    if isinstance(name := getattr(given, "name", None), str) and hasattr(given, "delay"):
        return (
            f"{name} is a task already: one @app.task is enough, and it comes below @app.cron and @app.every. "
            f"For other options write {name.rpartition(':')[2]}.options(…)"
        )
    if inspect.iscoroutine(given):
        called = given.__name__
        cast(
            "Coroutine[Any, Any, Any]", given
        ).close()  # it will not be awaited: Python need not warn of that
        return f"{called}() is the coroutine of one call: pass the function, app.task({called})"
    if isinstance(given, str):
        return f'app.task({given[:60]!r}): options are given by name, like @app.task(queue="mail")'
    if (kind := type(given)) in (staticmethod, classmethod):
        return f"@app.task comes below @{kind.__name__}, not above it"
    if not callable(given):
        return f"app.task takes a function, not {a_kind_of(given)}"
    if not hasattr(given, "__qualname__"):
        return f"{a_kind_of(given)} has no name: {_MAKE_ONE}"
    return "" if inspect.isfunction(given) else _why_no_signature(given)


def _why_no_signature(given: Callable[..., Any]) -> str:
    """Why Python cannot read the signature: functions written in C may lack one. Empty when it can."""
    try:
        inspect.signature(given)
    except (ValueError, TypeError):
        return f"{given.__qualname__} has no signature that Python can read: {_MAKE_ONE}"
    return ""


def _check_no_self(name: str, function: Callable[..., Any]) -> None:
    """Raises ConfigurationError for a method: a worker calls the function without an object, whatever the task's
    name."""
    if "." not in function.__qualname__.rpartition("<locals>.")[2]:
        return
    first = next(iter(inspect.signature(function).parameters), "")
    if first in ("self", "cls"):
        raise ConfigurationError(
            f"{name} is a method, and a task has no {first}: make it a function, and pass it what it needs to know"
        )
