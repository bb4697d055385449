"""Makes mutants of a Python module: each lacks one statement or one guard, or mixes up what belongs together.

Only what functions do is changed, and it is changed as text in its place, so every other line keeps its number. Left
alone are docstrings, annotations, what is logged (but not that it is logged), points of `crash` and everything at the
level of modules and classes.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from tests.mutation.mutants import Mutant, shortened

Function = ast.FunctionDef | ast.AsyncFunctionDef
Loop = ast.For | ast.AsyncFor

BOUNDARIES: Final[dict[type[ast.cmpop], str]] = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
INVERSE: Final[dict[type[ast.operator], str]] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.BitOr: "&",
    ast.BitAnd: "|",
}
EMPTY: Final = {"list": "[]", "dict": "{}", "set": "set()", "tuple": "()", "Sequence": "[]"}
"""By the first word of what a function is declared to return."""
NUMBERS: Final = {"int": "0", "float": "0.0"}
LOGS: Final = ("_logger", "log", "warnings")


class Change(NamedTuple):
    node: ast.expr | ast.stmt | ast.keyword
    """What is replaced."""
    text: str
    what: str


def mutants_of(file: str, source: str) -> list[Mutant]:
    """Every mutant of a module that can be compiled, in the order of its lines."""
    lines = source.splitlines()
    seen = Counter[tuple[str, str]]()
    mutants: list[Mutant] = []
    for name, function in functions_in(ast.parse(source)):
        for change in sorted(changes_of(function), key=lambda c: (c.node.lineno, c.node.col_offset)):
            changed = replaced(source, change.node, change.text)
            if not compiles(changed):
                continue
            seen[name, change.what] += 1
            nth = seen[name, change.what]
            what = change.what if nth == 1 else f"{change.what} ({nth})"
            line = change.node.lineno
            mutants.append(Mutant(file, line, lines[line - 1].strip(), what, changed, name))
    return mutants


def functions_in(
    tree: ast.Module | ast.ClassDef | Function, prefix: str = ""
) -> Iterator[tuple[str, Function]]:
    """Functions and methods with their qualified names; one inside another is part of the outer one."""
    for node in tree.body:
        if isinstance(node, Function):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from functions_in(node, f"{prefix}{node.name}.")


def changes_of(function: Function) -> Iterator[Change]:
    for node in nodes_of(function):
        yield from statement_removed(node, function)
        yield from condition_decided(node)
        yield from operand_removed(node)
        yield from comparison_moved(node)
        yield from sign_inverted(node)
        yield from loop_changed(node)
        yield from order_reversed(node)
        yield from argument_removed(node)
        yield from handler_removed(node)
        yield from guard_removed(node)
    yield from answer_replaced(function)


def nodes_of(function: Function) -> Iterator[ast.AST]:
    """What a function does, in no particular order."""
    pending: list[ast.AST] = list(function.body)
    while pending:
        node = pending.pop()
        if is_crash_point(node):
            continue
        yield node
        if isinstance(node, Function):
            pending.extend(node.body)
        elif isinstance(node, ast.AnnAssign):
            pending.extend([node.value] if node.value is not None else [])
        elif isinstance(node, ast.Call) and is_log(node):
            continue
        else:
            pending.extend(ast.iter_child_nodes(node))


def is_crash_point(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "crash.at is not None"


def is_log(call: ast.Call) -> bool:
    root = call.func
    while isinstance(root, ast.Attribute):
        root = root.value
    return isinstance(root, ast.Name) and root.id in LOGS


# One kind of change each


def statement_removed(node: ast.AST, function: Function) -> Iterator[Change]:
    """A call, an assignment to something that is kept, a jump, an error that is raised."""
    match node:
        case ast.Expr(value=ast.Constant()):
            return
        case ast.Expr() | ast.AugAssign() | ast.Delete() | ast.Raise() | ast.Continue() | ast.Break():
            yield removed(node)
        case ast.Return() if node not in function.body and not always_returns_a_value(function):
            yield removed(node)
        case ast.Assign() | ast.AnnAssign(value=ast.expr()):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(is_kept(target, function) for target in targets):
                yield removed(node)
        case _:
            return


def removed(node: ast.stmt) -> Change:
    # `super()` reads the cell `__class__`. Without it, the code would not fit the function that exists.
    text = "__class__" if "super()" in ast.unparse(node) else "pass"
    return Change(node, text, f"removed: {shown(node)}")


def always_returns_a_value(function: Function) -> bool:
    """Whether callers always get something from it: without one of its returns it has only a wrong type."""
    annotation = function.returns
    return (
        annotation is not None
        and ast.unparse(annotation) not in ("None", "bool")
        and "None" not in ast.unparse(annotation)
    )


def is_kept(target: ast.expr, function: Function) -> bool:
    """Whether an assignment replaces something; without any other only a NameError would be left of its readers."""
    if isinstance(target, ast.Tuple):
        return any(is_kept(part, function) for part in target.elts)
    if isinstance(target, ast.Name):
        return sum(target.id == name for name in assigned_in(function)) > 1
    own = isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self"
    return not (own and function.name == "__init__")


def assigned_in(function: Function) -> Iterator[str]:
    yield from (argument.arg for argument in (*function.args.args, *function.args.kwonlyargs))
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def condition_decided(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.If(test=test) | ast.IfExp(test=test):
            yield from decided(test, "if", (True, False))
        case ast.While(test=test) if not isinstance(test, ast.Constant):
            yield from decided(test, "while", (False,))
        case ast.comprehension(ifs=ifs):
            for test in ifs:
                yield from decided(test, "if", (True, False))
        case _:
            return


def decided(test: ast.expr, word: str, choices: Sequence[bool]) -> Iterator[Change]:
    names = any(isinstance(part, ast.NamedExpr) for part in ast.walk(test))
    for choice in choices:
        text = f"(({ast.unparse(test)}), {choice})[1]" if names else str(choice)
        yield Change(test, text, f"{word} {shown(test)} → {str(choice).lower()}")


def operand_removed(node: ast.AST) -> Iterator[Change]:
    if not isinstance(node, ast.BoolOp):
        return
    word = " and " if isinstance(node.op, ast.And) else " or "
    for place, operand in enumerate(node.values):
        rest = [f"({ast.unparse(other)})" for i, other in enumerate(node.values) if i != place]
        yield Change(node, f"({word.join(rest)})", f"without '{shown(operand)}' in: {shown(node)}")


def comparison_moved(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in BOUNDARIES:
        sign = BOUNDARIES[type(node.ops[0])]
        text = f"({ast.unparse(node.left)} {sign} {ast.unparse(node.comparators[0])})"
        yield Change(node, text, f"{shown(node)} → {sign}")


def sign_inverted(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.BinOp) and type(node.op) in INVERSE:
        sign = INVERSE[type(node.op)]
        text = f"(({ast.unparse(node.left)}) {sign} ({ast.unparse(node.right)}))"
        yield Change(node, text, f"{shown(node)} → {sign}")
    elif isinstance(node, ast.AugAssign) and type(node.op) in INVERSE:
        sign = INVERSE[type(node.op)]
        text = f"{ast.unparse(node.target)} {sign}= {ast.unparse(node.value)}"
        yield Change(node, text, f"{shown(node)} → {sign}=")


def loop_changed(node: ast.AST) -> Iterator[Change]:
    """A loop that ends after the first, and one that goes the other way."""
    match node:
        case ast.For(iter=over) | ast.comprehension(iter=over, is_async=0):
            text = ast.unparse(over)
            yield Change(over, f"list({text})[:1]", f"only the first of: {shown(over)}")
            if isinstance(node, ast.For) and not text.startswith("zip("):
                yield Change(over, f"list({text})[::-1]", f"backwards: {shown(over)}")
        case _:
            return


def order_reversed(node: ast.AST) -> Iterator[Change]:
    """Each gets what belongs to another: the second half of a zip, and a list that answers place by place."""
    match node:
        case ast.Call(func=ast.Name(id="zip"), args=[_, *_, last]):
            yield Change(last, f"list({ast.unparse(last)})[::-1]", f"swapped: {shown(last)}")
        case ast.Return(value=ast.ListComp() as answers):
            yield Change(answers, f"{ast.unparse(answers)}[::-1]", f"swapped: {shown(answers)}")
        case _:
            return


def argument_removed(node: ast.AST) -> Iterator[Change]:
    """A named argument, or a word at the end: where there is a default, it is what counts then."""
    if not isinstance(node, ast.Call) or is_log(node):
        return
    for keyword in node.keywords:
        if keyword.arg not in (None, "strict", "name"):
            yield without(node, keyword)
    match node.args:
        case [_, *_, ast.Constant(value=str() | bool()) as last]:
            yield without(node, last)
        case _:
            return


def without(call: ast.Call, gone: ast.keyword | ast.expr) -> Change:
    args = [ast.unparse(argument) for argument in call.args if argument is not gone]
    keywords = [ast.unparse(keyword) for keyword in call.keywords if keyword is not gone]
    text = f"{ast.unparse(call.func)}({', '.join([*args, *keywords])})"
    return Change(call, text, f"{shown(call.func)}() without {shown(gone)}")


def handler_removed(node: ast.AST) -> Iterator[Change]:
    """An error that is not caught."""
    if isinstance(node, ast.ExceptHandler) and node.type is not None:
        yield Change(node.type, "()", f"not caught: {shown(node.type)}")


def guard_removed(node: ast.AST) -> Iterator[Change]:
    """A wait without a limit, work without a shield."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="asyncio"), attr="timeout"), args=[limit]):
            yield Change(limit, "None", "without the limit: " + shown(node))
        case ast.Call(func=ast.Attribute(value=ast.Name(id="asyncio"), attr="shield"), args=[work]):
            yield Change(node, ast.unparse(work), f"without the shield: {shown(work)}")
        case _:
            return


def answer_replaced(function: Function) -> Iterator[Change]:
    """What a function returns is nothing, zero, always true or never."""
    annotation = ast.unparse(function.returns) if function.returns is not None else ""
    for node in returns_of(function):
        if node.value is None:
            continue
        kind = annotation.partition("[")[0]
        if kind == "bool":
            texts = [text for text in ("True", "False") if text != ast.unparse(node.value)]
        else:
            texts = [text for known in (EMPTY, NUMBERS) if (text := known.get(kind)) is not None]
        for text in texts:
            if text != ast.unparse(node.value):
                yield Change(node.value, text, f"return {shown(node.value)} → {text}")


def returns_of(function: Function) -> Iterator[ast.Return]:
    """Its own, not those of functions inside."""
    pending: list[ast.AST] = list(function.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Return):
            yield node
        if not isinstance(node, Function | ast.Lambda):
            pending.extend(ast.iter_child_nodes(node))


# Text


def shown(node: ast.AST) -> str:
    text = ast.unparse(node)
    return shortened(text, 60) if len(text) <= 60 else f"{' '.join(text.split())[:57]}…"


def replaced(source: str, node: ast.expr | ast.stmt | ast.keyword, text: str) -> str:
    """The source with something else in the place of a node, on as many lines as before."""
    code = source.encode()
    starts = [0, *accumulate(map(len, code.splitlines(keepends=True)))]
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    start = starts[node.lineno - 1] + node.col_offset
    end = starts[node.end_lineno - 1] + node.end_col_offset
    return (code[:start] + text.encode() + code[end:]).decode()


def compiles(source: str) -> bool:
    try:
        compile(source, "mutant", "exec")
    except SyntaxError:
        return False
    return True
