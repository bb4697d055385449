"""Makes a call of a task from the words of a command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import orjson
import typer

from fennelq.errors import InvalidArguments, UnknownTask

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.model.job import AnyJob
    from fennelq.model.options import OptionArgs
    from fennelq.task import AnyTask


def only_given(options: dict[str, Any]) -> dict[str, Any]:
    """The options that the command line contains."""
    return {name: value for name, value in options.items() if value is not None}


def array_of(args: str | None) -> list[str]:
    """The elements of the array of `--args`, each as JSON text."""
    if args is None:
        return []
    try:
        values: Any = orjson.loads(args)
    except ValueError:
        values = None
    if not isinstance(values, list):
        raise typer.BadParameter(f"--args {args!r} is not a JSON array: write '[7, \"daily\"]'")
    return [orjson.dumps(value).decode() for value in values]  # pyright: ignore[reportUnknownVariableType]


def described(
    app: App, name: str, arguments: list[str], kwargs: list[str], options: OptionArgs, *, anyway: bool
) -> AnyJob:
    """The job for this call; raises UnknownTask, with the most similar name, or InvalidArguments."""
    task = _task(app, name)
    if task is not None:
        args, named = _call_of(task, arguments, kwargs)
        return task.options(**options).job(*args, **named)
    if not anyway:
        raise UnknownTask(name, app.tasks)
    return app.describe(name, *map(_value, arguments), _kwargs=_keywords(kwargs, _value), **options)


def _task(app: App, name: str) -> AnyTask | None:
    if name in app.tasks:
        return app.tasks[name]
    alike = [task for known, task in app.tasks.items() if known.rpartition(":")[2] == name]
    return alike[0] if len(alike) == 1 else None


def _call_of(
    task: AnyTask, arguments: list[str], kwargs: list[str]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments, decoded by the task's annotations: as JSON values if possible, otherwise as texts."""
    try:
        return _decoded(task, [_value(text) for text in arguments], _keywords(kwargs, _value))
    except InvalidArguments as refusal:
        # In `greet 42` with a parameter `name: str`, 42 is a text. It becomes a number if the annotation requires one.
        try:
            return _decoded(task, arguments, _keywords(kwargs, str))
        except InvalidArguments:
            raise refusal from None


def _decoded(
    task: AnyTask, args: list[Any], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return task.calls.decode(orjson.dumps([args, kwargs]))


def _keywords(texts: list[str], value: Any) -> dict[str, Any]:
    keywords: dict[str, Any] = {}
    for text in texts:
        if text.lstrip().startswith("{"):
            keywords.update(_object(text))
            continue
        name, equals, value_text = text.partition("=")
        if not equals or not name.isidentifier():
            raise typer.BadParameter(f"--kwargs {text!r} is neither name=value nor a JSON object")
        keywords[name] = value(value_text)
    return keywords


def _object(text: str) -> dict[str, Any]:
    try:
        return cast("dict[str, Any]", orjson.loads(text))
    except ValueError as error:
        raise typer.BadParameter(f"--kwargs {text!r} is not a JSON object: {error}") from None


def _value(text: str) -> Any:
    try:
        return orjson.loads(text)
    except ValueError:
        return text
