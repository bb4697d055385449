"""Reads definitions from the source: signatures and docstrings."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fennelq.declaring.registry import Registry
from fennelq.sync.gathering import BlockingGathering

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
PARTS = (Registry, BlockingGathering)
"""Classes that only exist as a part of the public class that is derived from them."""


def definition_of(thing: Any) -> ast.stmt:
    """A class or function, parsed; of an overloaded function the last definition, which has the text."""
    module = ast.parse(inspect.getsource(inspect.getmodule(thing) or thing))
    node = [node for node in module.body if getattr(node, "name", "") == thing.__name__][-1]
    if isinstance(node, ast.ClassDef):
        inherited = [part for base in thing.__bases__ if base in PARTS for part in class_of(base).body]
        methods = [part for part in [*inherited, *node.body] if isinstance(part, FunctionNode)]
        fields = [part for part in node.body if not isinstance(part, FunctionNode)]
        node.body = [*fields, *methods, *_offered(node, module)]
    return node


def _offered(node: ast.ClassDef, module: ast.Module) -> Iterator[FunctionNode]:
    """The operations that a class has from its family (`fennelq/manage/offered.py`), as one calls them."""
    bases = names_in(node.bases)
    families = [base for base in module.body if isinstance(base, ast.ClassDef) and base.name in bases]
    for function in (part for family in families for part in family.body if isinstance(part, FunctionNode)):
        marks = names_in(function.decorator_list)
        if marks & {"Operation", "Scan"} and isinstance(function.returns, ast.Subscript):
            awaited = "Awaiting" in bases
            found = function.returns.slice
            if "Scan" in marks:
                kind = ast.Name("AsyncIterator" if awaited else "Iterator")
                found = ast.Subscript(value=kind, slice=found, ctx=ast.Load())
            form = ast.AsyncFunctionDef if awaited else ast.FunctionDef
            yield form(function.name, function.args, function.body, decorator_list=[], returns=found)


def class_of(thing: type[Any]) -> ast.ClassDef:
    """A class, parsed."""
    node = definition_of(thing)
    assert isinstance(node, ast.ClassDef)
    return node


def classes_in(module: Any) -> list[ast.ClassDef]:
    """The classes that a module defines, parsed."""
    return [node for node in ast.parse(inspect.getsource(module)).body if isinstance(node, ast.ClassDef)]


class Alias(NamedTuple):
    """A name for a type, as `Seconds = float | timedelta`."""

    written: str
    text: str


def aliases_in(file: Path) -> dict[str, Alias]:
    """The aliases of types that a module makes."""
    body = ast.parse(file.read_text("utf-8")).body
    return {
        node.targets[0].id: Alias(ast.unparse(node.value), text_of(following))
        for node, following in zip(body, [*body[1:], None], strict=True)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id.isidentifier()
        and node.targets[0].id[0].isupper()
        and not node.targets[0].id.isupper()
        and isinstance(node.value, ast.Subscript | ast.BinOp)
    }


def annotations_of(node: ast.AST) -> Iterator[ast.expr]:
    """The types in a function's signature, without that of self; or the type of an attribute."""
    if isinstance(node, ast.AnnAssign):
        yield node.annotation
    elif isinstance(node, FunctionNode):
        args = node.args
        every = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
        yield from (
            arg.annotation for arg in every if arg and arg.annotation and arg.arg not in ("self", "cls")
        )
        if node.returns:
            yield node.returns


def names_in(nodes: Iterable[ast.expr]) -> set[str]:
    """The names that types are made of."""
    return {part.id for node in nodes for part in ast.walk(node) if isinstance(part, ast.Name)}


class Spelled(ast.NodeTransformer):
    """Replaces aliases by their values."""

    def __init__(self, aliases: Mapping[str, Alias]) -> None:
        self._aliases = aliases

    def visit_Name(self, node: ast.Name) -> ast.expr:
        alias = self._aliases.get(node.id)
        return ast.parse(alias.written, mode="eval").body if alias else node


def functions_of(body: Sequence[ast.stmt]) -> dict[str, FunctionNode]:
    """The functions of a class by name, in order."""
    return {node.name: node for node in body if isinstance(node, FunctionNode)}


def fields_of(body: Sequence[ast.stmt]) -> Iterator[tuple[str, str, str]]:
    """Name, type and text of each attribute that a class declares."""
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, ast.unparse(_type_in(node.annotation)), text_of(following)


def _type_in(annotation: ast.expr) -> ast.expr:
    """The type, without the other arguments of `Annotated`."""
    if not isinstance(annotation, ast.Subscript) or ast.unparse(annotation.value) != "Annotated":
        return annotation
    assert isinstance(annotation.slice, ast.Tuple)
    return annotation.slice.elts[0]


def members_of(body: Sequence[ast.stmt]) -> Iterator[str]:
    """Names that a class assigns without declaring them, like the members of an enum."""
    targets = (node.targets[0] for node in body if isinstance(node, ast.Assign))
    yield from (name.id for name in targets if isinstance(name, ast.Name) and not name.id.startswith("_"))


def assigned_in(body: Sequence[ast.stmt]) -> set[str]:
    """Names of the attributes that something in it sets."""
    nodes = (node for statement in body for node in ast.walk(statement))
    return {
        node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }


def text_of(node: ast.stmt | None) -> str:
    """The text of a docstring, as below an attribute."""
    if (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ):
        return " ".join(node.value.value.split())
    return ""


def is_property(node: FunctionNode) -> bool:
    """Whether it is read like an attribute."""
    return any(isinstance(mark, ast.Name) and mark.id.endswith("property") for mark in node.decorator_list)


def called(node: FunctionNode, name: str = "") -> str:
    """How it is called, as one writes it."""
    returned = ast.unparse(node.returns) if node.returns else "Any"
    if is_property(node):
        return f"{node.name}: {returned}"
    awaited = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    call = f"{awaited}{name or node.name}({', '.join(_parameters(node.args))})"
    return call if name else f"{call} -> {returned}"


def _parameters(args: ast.arguments) -> Iterator[str]:
    """The parameters, without self."""
    yield from _positional(args)
    if args.vararg:
        yield f"*{_parameter(args.vararg, None)}"
    elif args.kwonlyargs:
        yield "*"
    for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        yield _parameter(arg, default)
    if args.kwarg:
        yield f"**{_parameter(args.kwarg, None)}"


def _positional(args: ast.arguments) -> Iterator[str]:
    every = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(every) - len(args.defaults)) + list(args.defaults)
    for place, (arg, default) in enumerate(zip(every, defaults, strict=True), 1):
        if arg.arg not in ("self", "cls"):
            yield _parameter(arg, default)
        if place == len(args.posonlyargs):
            yield "/"


def _parameter(arg: ast.arg, default: ast.expr | None) -> str:
    kind = f": {ast.unparse(arg.annotation)}" if arg.annotation else ""
    return f"{arg.arg}{kind}{f' = {ast.unparse(default)}' if default else ''}"
