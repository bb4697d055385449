"""Writes the pages and tables made from the code (`make docs`); --check only reports what is out of date.

Everything here reads the source, never a rendered type, so every version of Python writes the same.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, get_origin

DOCS: Final = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

import fennelq  # noqa: E402
from docs import source  # noqa: E402
from fennelq import dedupe, errors, testing  # noqa: E402
from fennelq.broker import key_kinds, keys  # noqa: E402
from fennelq.model import metrics  # noqa: E402
from fennelq.model.fields import MEANINGS  # noqa: E402
from fennelq.model.options import OptionArgs  # noqa: E402
from fennelq.settings.settings import SettingArgs, Settings  # noqa: E402
from fennelq.settings.sources import PREFIX  # noqa: E402

WRITTEN: Final = "<!-- written by docs/generate.py: change the code, then run `make docs` -->"

Rows = Iterable[Sequence[str]]


def main(arguments: Sequence[str]) -> int:
    """Write what is out of date, or only report it; returns the exit code."""
    stale = [path for path, text in wanted() if not path.is_file() or path.read_text("utf-8") != text]
    shown = ", ".join(str(path.relative_to(DOCS.parent)) for path in stale)
    if "--check" in arguments:
        if stale:
            print(f"out of date: {shown}; run `make docs`", file=sys.stderr)
        return 1 if stale else 0
    for path, text in wanted():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    print(f"written: {shown}" if stale else "nothing has changed")
    return 0


def wanted() -> Iterator[tuple[Path, str]]:
    """Every page with something generated in it, as it should be."""
    for name, page in PAGES.items():
        yield DOCS / name, f"{WRITTEN}\n\n{page().strip()}\n"
    for name, tables in TABLES.items():
        text = (DOCS / name).read_text("utf-8")
        for mark, table in tables.items():
            text = between_marks(text, mark, table())
        yield DOCS / name, text


def between_marks(text: str, mark: str, table: str) -> str:
    """The page, with a new table between `<!-- mark -->` and `<!-- /mark -->`."""
    pattern = re.compile(rf"(<!-- {mark} -->\n).*?(\n?<!-- /{mark} -->)", re.DOTALL)
    if not pattern.search(text):
        raise LookupError(f"the page has no <!-- {mark} --> … <!-- /{mark} --> to write to")
    return pattern.sub(lambda found: f"{found[1]}{table.strip()}\n<!-- /{mark} -->", text)


# ── settings ────────────────────────────────────────────────────────────────────────────────────────────────


def settings_page() -> str:
    """Every setting, in groups, with its default and meaning."""
    groups = "\n\n".join(f"## {title}\n\n{table_of(HEADS, rows)}" for title, rows in setting_groups())
    return f"""# Settings

You can set a setting in four places. A later place overrides an earlier one: `[tool.fennelq]` in
`pyproject.toml`, a variable `{PREFIX}<NAME>`, a keyword argument of `App(…)`, a flag of the command line. All
durations are in seconds. An unknown name is an error, which suggests the nearest valid one.

```toml
[tool.fennelq]
app = "shop.tasks:app"            # not a setting of the app: where the command line finds it
redis_url = "redis://localhost:6379/0"
result_ttl = 600
```

{groups}
"""


HEADS: Final = ("setting", "type", "default", "meaning")


def setting_groups() -> Iterator[tuple[str, Rows]]:
    """The title of each group of settings, and its rows."""
    module = {node.name: node for node in source.classes_in(inspect.getmodule(SettingArgs))}
    for base in module[SettingArgs.__name__].bases:
        group = module[ast.unparse(base)]
        yield (
            ast.get_docstring(group) or "",
            [
                (f"`{name}`", f"`{written_type(field.annotation)}`", default_of(field.default), meaning)
                for name, _, meaning in source.fields_of(group.body)
                for field in (Settings.model_fields[name],)
            ],
        )


def written_type(annotation: Any) -> str:
    """A type as one would write it: `str or None`, `"auto" or "json"`."""
    if annotation is type(None):
        return "None"
    if get_origin(annotation) is list:
        return f"list of {written_type(annotation.__args__[0])}"
    if isinstance(annotation, type):
        return annotation.__name__
    return " or ".join(
        f'"{part}"' if isinstance(part, str) else written_type(part) for part in annotation.__args__
    )


def default_of(value: object) -> str:
    """A default, with thousands in groups."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"`{value:,}`" if number else f'`"{value}"`' if value else f"`{value}`"


# ── keys ────────────────────────────────────────────────────────────────────────────────────────────────────

OF_THE_APP: Final = "{app} "
"""How KEY_KINDS marks keys that belong to an app and to no queue."""
OF_THE_SERVER: Final = "{server} apps"
"""How it marks the only key that belongs to no app."""


def every_key() -> Iterator[key_kinds.KeyKind]:
    """The kinds of keys of a queue, of an app and of the server, the latter by whole names: `fq:{<app>}:queues`."""
    prefix = keys.AppKeys("<app>").prefix
    of_the_app = [kind for kind in key_kinds.KEY_KINDS if kind.pattern.startswith(OF_THE_APP)]
    (of_the_server,) = (kind for kind in key_kinds.KEY_KINDS if kind.pattern == OF_THE_SERVER)
    yield from (kind for kind in key_kinds.KEY_KINDS if kind not in (*of_the_app, of_the_server))
    for kind in of_the_app:
        yield kind._replace(pattern=prefix + kind.pattern.removeprefix(OF_THE_APP))
    yield of_the_server._replace(pattern=keys.APPS)


def keys_page() -> str:
    """Every key, and every field of a record."""
    prefix = keys.queue_keys("<app>", "<queue>").prefix
    app_prefix = keys.AppKeys("<app>").prefix
    return f"""# Keys in Redis

The names of all keys of a queue begin with `{prefix}`, which the table omits. All of them have the same hash tag, so
each step of a job is one script on one slot. Keys that begin with `{app_prefix}` belong to the app.
`{keys.APPS}` belongs to all apps of a server: `fennelq web` shows them as a choice.
[Redis data](../concepts/redis-data.md) describes how the keys relate, and [lifetimes](../concepts/lifetimes.md) when
they end.

{lifetimes_table()}

## Fields of a record

Each field has a name of one letter, because every job needs memory for it.

{table_of(("field", "holds"), [(f"`{name}`", holds) for name, holds in MEANINGS.items()])}

## Not a key

`{keys.channel_name("<app>", "<process>")}` is the pub/sub channel on which one process receives the ends of the
jobs that it waits for.

`{keys.AppKeys("<app>").questions("<executor>")}` is the sharded channel on which one executor receives what people ask
of it, such as `fennelq worker stacks`. Only clients publish on it.
"""


def lifetimes_table() -> str:
    """Every key, with the scripts that create it and end it."""
    heads = ("key", "type", "holds", "created by", "ended by")
    return table_of(
        heads, [(patterns(k.pattern), k.type, k.holds, k.created_by, k.ended_by) for k in every_key()]
    )


def permanent_keys() -> str:
    """The keys that may be there without a TTL though no job needs them."""
    return ", ".join(patterns(kind.pattern) for kind in every_key() if kind.permanent) + "."


def patterns(text: str) -> str:
    """`a, b` as two pieces of code."""
    return ", ".join(f"`{part}`" for part in text.split(", "))


# ── errors ──────────────────────────────────────────────────────────────────────────────────────────────────


def errors_page() -> str:
    """The tree of errors, and the attributes of each error."""
    tree = "\n".join(line[4:] for line in (errors.__doc__ or "").splitlines() if line.startswith("    "))
    kinds = [
        kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__
    ]
    kinds.sort(key=lambda kind: inspect.getsourcelines(kind)[1])
    return "\n\n".join(
        [
            "# Errors",
            "All errors derive from `FennelqError`. They have attributes with the facts, and their message "
            "describes what to do.",
            f"```text\n{tree.strip()}\n```",
            *map(error_section, kinds),
        ]
    )


def error_section(kind: type[Any]) -> str:
    """One error: its docstring and its attributes."""
    facts = sorted(source.assigned_in(source.class_of(kind).body))
    carries = f"\n\nAttributes: {', '.join(f'`{name}`' for name in facts)}." if facts else ""
    return f"## {kind.__name__}\n\n{inspect.getdoc(kind)}{carries}"


# ── API ─────────────────────────────────────────────────────────────────────────────────────────────────────

ALIASES: Final = {
    ".".join(file.relative_to(DOCS.parent).with_suffix("").parts): source.aliases_in(file)
    for file in sorted((DOCS.parent / "fennelq").rglob("*.py"))
}
"""Names for types, by module."""

ELSEWHERE: Final = {"OptionArgs": "#task-options"}
"""Classes whose fields are described in another place."""


def api_page() -> str:
    """The exports of `fennelq`."""
    public = [thing for name in fennelq.__all__ if is_described(thing := getattr(fennelq, name))]
    return "\n\n".join(
        [
            "# API",
            "Everything here is imported from `fennelq`. [Errors](errors.md) and [settings](settings.md) "
            "have pages of their own. Attributes and methods that this page does not list, such as `app.client`, are "
            "internal and may change in any version.",
            *map(api_section, public),
            "## dedupe.arguments",
            "`from fennelq import dedupe`. [How to use it](../guides/dedupe.md)",
            *function_parts(dedupe.arguments),
            "## Task options",
            "`@app.task(…)` and `task.options(…)` take these options; `task.options(…)` overrides the "
            "decorator. `delay`, `at` and `job_id` belong to a single call: the decorator refuses them, and a `key` "
            "that is a text, unless it has a mode (`dedupe`). "
            "A duration is a number of "
            "seconds or a `timedelta`.",
            table_of(
                ("option", "type", "meaning"),
                [
                    (f"`{n}`", f"`{k}`", text)
                    for n, k, text in source.fields_of(source.class_of(OptionArgs).body)
                ],
            ),
            "## Names for types",
            "Use them in your own annotations.",
            table_of(("name", "stands for", "meaning"), names_for_types()),
        ]
    )


def testing_page() -> str:
    """The exports of `fennelq.testing`."""
    every: list[Any] = [getattr(testing, name) for name in sorted(testing.__all__, key=str.lower)]
    return "\n\n".join(
        [
            "# fennelq.testing",
            "Everything here is imported from `fennelq.testing`. [How to use it](../guides/testing.md)",
            *map(api_section, every),
        ]
    )


def is_described(thing: object) -> bool:
    """Whether it has a section: errors have a page, and names for types a table."""
    return inspect.isfunction(thing) or (isinstance(thing, type) and not is_error(thing))


def names_for_types() -> Iterator[tuple[str, str, str]]:
    """The aliases that are exported. A module of the command line may use the name of a public class for an option."""
    every = {name: alias for aliases in ALIASES.values() for name, alias in aliases.items()}
    for name in fennelq.__all__:
        if name in every and not isinstance(getattr(fennelq, name), type):
            yield f"`{name}`", f"`{every[name].written}`", every[name].text


def unexported_aliases(module: str) -> dict[str, source.Alias]:
    """Names in a module that stand for a type and cannot be imported: the page shows the type."""
    every = {name: alias for aliases in ALIASES.values() for name, alias in aliases.items()} | ALIASES[module]
    return {name: alias for name, alias in every.items() if name not in fennelq.__all__}


def is_error(thing: object) -> bool:
    """Whether it is on the page of errors."""
    return isinstance(thing, type) and issubclass(thing, errors.FennelqError)


def api_section(thing: Any) -> str:
    """A class with its public parts, or a function."""
    parts = class_parts(thing) if isinstance(thing, type) else function_parts(thing)
    return "\n\n".join(part for part in [f"## {thing.__name__}", *parts] if part)


def function_parts(thing: Any) -> Iterator[str]:
    """The signature and the docstring."""
    node = spelled(thing)
    assert isinstance(node, source.FunctionNode)
    yield method_part(node)


def class_parts(kind: type[Any]) -> Iterator[str]:
    """The docstring, attributes and methods of a class; a constructor with a docstring is for users."""
    node = spelled(kind)
    assert isinstance(node, ast.ClassDef)
    functions = source.functions_of(node.body)
    if (made := functions.get("__init__")) and ast.get_docstring(made):
        yield f"**`{source.called(made, kind.__name__)}`**"
    yield inspect.getdoc(kind) or ""
    if kind is Settings:
        return
    if kind.__name__ in ELSEWHERE:
        yield f"They are described [here]({ELSEWHERE[kind.__name__]})."
        return
    shown = [field for field in source.fields_of(node.body) if is_public(field[0])]
    yield "\n".join(f"* `{name}: {type_}`{f': {text}' if text else ''}" for name, type_, text in shown)
    yield ", ".join(f"`{name}`" for name in source.members_of(node.body))
    for name, function in functions.items():
        if is_public(name) and ast.get_docstring(function):
            yield method_part(function)
    for name in ("__call__", "__aenter__", "__enter__"):
        if name in functions:
            yield ast.get_docstring(functions[name]) or ""


def is_public(name: str) -> bool:
    """Whether this part of a class is for users: a part inherited from a class of another module is not."""
    return not name.startswith("_")


def spelled(thing: Any) -> ast.stmt:
    """A definition in which every type is one that can be imported."""
    node = source.Spelled(unexported_aliases(thing.__module__)).visit(source.definition_of(thing))
    assert isinstance(node, ast.stmt)
    return node


def method_part(node: source.FunctionNode) -> str:
    """The signature and the docstring."""
    return f"**`{source.called(node)}`**\n\n{ast.get_docstring(node) or ''}"


# ── command line ────────────────────────────────────────────────────────────────────────────────────────────


def cli_page() -> str:
    """Every command with its arguments and options."""
    from typer.main import get_command

    from fennelq.cli import program
    from fennelq.cli.exits import MEANINGS as EXITS

    parts = [
        "# Command line",
        "`fennelq …` and `python -m fennelq …` are the same.",
        "On a terminal, commands print tables that fit its width: long texts are shortened with `…`. If that is not "
        "enough, the least important columns are omitted and named below the table. Ids are never shortened. Times "
        "are local (those of a schedule are in its own time zone), and "
        "numbers have thousands separators. For an empty list, commands print a sentence. Set `NO_COLOR`, or "
        "`TERM=dumb`, for output without colours and bold text.",
        "In a pipe, commands print one complete line per row, separated by tabs and without a heading; times are UTC. "
        "`--json` prints JSON.",
        "Ctrl-C in long work (`dlq replay`, `dlq purge`, `dlq export`, `queue purge`) ends it after the "
        "current step (one call to Redis, for up to a hundred jobs) and prints how far it got. No job is left half "
        "done, and you can continue with the same command (an export begins again). A second Ctrl-C does not wait for "
        "the step.",
        "## Shell completion",
        "`fennelq --install-completion` adds completion to the current shell (bash, zsh, fish, PowerShell), "
        "`fennelq --show-completion` prints the script instead. It completes commands, options, and the names "
        "of tasks, queues and schedules that the app's code declares; it never connects to Redis.",
        *commands_of("fennelq", get_command(program)),
        "## Exit codes",
        table_of(("code", "meaning"), [(str(code.value), meaning) for code, meaning in EXITS.items()]),
    ]
    return "\n\n".join(parts)


def commands_of(name: str, command: Any) -> Iterator[str]:
    """A command, or those of a group."""
    inner: Mapping[str, Any] = getattr(command, "commands", {})
    if not inner or (getattr(command, "invoke_without_command", False) and name != "fennelq"):
        yield command_section(name, command)
    elif name != "fennelq":
        yield f"## {name}\n\n{command.help}"
    for word in command.list_commands(None) if inner else ():
        yield from commands_of(f"{name} {word}", inner[word])


def command_section(name: str, command: Any) -> str:
    """One command."""
    from fennelq.cli.helps import meaning

    level = "#" * name.count(" ") + "#"
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    usage = " ".join([name, *(metavar(p) for p in arguments), "[options]"])
    rows = [(f"`{metavar(p)}`", meaning(p)) for p in arguments]
    rows += [(option_words(p), meaning(p)) for p in command.params if p not in arguments]
    return f"{level} {name}\n\n```text\n{usage}\n```\n\n{command.help}\n\n{table_of(('', ''), rows)}"


def option_words(option: Any) -> str:
    """`-p`, `--processes N`."""
    names = sorted(option.opts, key=len)
    worth = "" if option.is_flag else f" {metavar(option)}"
    return ", ".join([*(f"`{name}`" for name in names[:-1]), f"`{names[-1]}{worth}`"])


def metavar(parameter: Any) -> str:
    """The text in place of the value."""
    return str(parameter.metavar or parameter.name.upper())


# ── Markdown and source ─────────────────────────────────────────────────────────────────────────────────────


def table_of(heads: Sequence[str], rows: Rows) -> str:
    """A Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "reference/settings.md": settings_page,
    "reference/keys.md": keys_page,
    "reference/errors.md": errors_page,
    "reference/api.md": api_page,
    "reference/testing.md": testing_page,
    "reference/cli.md": cli_page,
}
# ── metrics ─────────────────────────────────────────────────────────────────────────────────────────────────


def metrics_table(every: Iterable[metrics.Metric]) -> str:
    """Metrics with their type, their labels and their meaning."""
    rows = ((f"`{one.name}`", one.kind, _labels_of(one), one.help) for one in every)
    return table_of(("metric", "type", "labels", "meaning"), rows)


def _labels_of(metric: metrics.Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"{labels}: {' '.join(metric.values)}" if metric.values else labels


TABLES: Final[Mapping[str, Mapping[str, Callable[[], str]]]] = {
    "concepts/lifetimes.md": {"keys": lifetimes_table, "permanent": permanent_keys},
    "guides/metrics.md": {
        "workers": lambda: metrics_table(metrics.OF_WORKERS),
        "redis": lambda: metrics_table(metrics.OF_REDIS),
    },
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
