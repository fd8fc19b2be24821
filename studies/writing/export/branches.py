"""Branches of a definition's text that a fixed configuration decides."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from tunebench.studies.writing.export.edits import edited, positions
from tunebench.tuner.errors import UserError

_OURS = "tunebench."
_UNKNOWN = object()


def decided(text: str, known: Mapping[str, object], globals_: Mapping[str, Any]) -> str:
    """Return the text without the branches that cannot be taken."""
    while True:
        for edit in _decisions(text, known, globals_):
            text = edit
            break
        else:
            return text


def _decisions(text: str, known: Mapping[str, object], globals_: Mapping[str, Any]) -> Iterator[str]:
    """Yield the text after one more branch is decided, for each that can be."""
    tree = ast.parse(text)
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        values = _Values(function, known, globals_)
        for node in ast.walk(function):
            if isinstance(node, ast.IfExp) and (truth := values.truth(node.test)) is not None:
                live = node.body if truth else node.orelse
                yield _replaced(text, node, ast.get_source_segment(text, live) or "")
            if isinstance(node, ast.Call) and (literal := values.literal(node)) is not None:
                yield _replaced(text, node, literal)
            for block in _blocks(node):
                for place, statement in enumerate(block):
                    if isinstance(statement, ast.If) and (truth := values.truth(statement.test)) is not None:
                        yield _without_branch(text, block, place, truth)


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield the blocks of a statement; the `elif` of an `if` is none."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
            is_elif = isinstance(node, ast.If) and name == "orelse" and block[0].col_offset == node.col_offset
            if not is_elif:
                yield block


def _replaced(text: str, node: ast.expr, segment: str) -> str:
    at = positions(text)
    start, end = at(node.lineno, node.col_offset), at(node.end_lineno or 0, node.end_col_offset or 0)
    return edited(text, [(start, end, segment)])


def _without_branch(text: str, block: list[ast.stmt], place: int, truth: bool) -> str:
    """Return the text with an `if` of a block decided; what would come behind a return goes too."""
    lines, node = text.splitlines(), block[place]
    assert isinstance(node, ast.If)
    body_end = node.body[-1].end_lineno or 0
    last = node.end_lineno or 0
    is_elif = bool(node.orelse) and node.orelse[0].col_offset == node.col_offset
    if truth:
        live = _dedented(lines[node.test.end_lineno or 0 : body_end])
        leaves = isinstance(node.body[-1], ast.Return | ast.Raise)
    elif is_elif:
        live = lines[body_end:last]
        first = next(number for number, line in enumerate(live) if line.lstrip().startswith("elif"))
        live[first] = live[first].replace("elif", "if", 1)
        leaves = False
    else:
        live = _dedented(lines[body_end + 1 : last]) if node.orelse else []
        leaves = bool(node.orelse) and isinstance(node.orelse[-1], ast.Return | ast.Raise)
    if leaves:
        last = block[-1].end_lineno or 0
    elif not live and len(block) == 1:
        live = [" " * node.col_offset + "..."]
    lines[node.lineno - 1 : last] = live
    return "\n".join(lines)


def _dedented(lines: list[str]) -> list[str]:
    return [line[4:] if line.startswith("    ") else line for line in lines]


class _Values:
    """The values of a function's expressions, where only the configuration and constants of its module decide."""

    def __init__(self, function: ast.FunctionDef, known: Mapping[str, object], globals_: Mapping[str, Any]) -> None:
        arguments = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
        stores = [n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        self._globals = globals_
        self._hidden = (arguments | set(stores)) - known.keys()
        self._names: dict[str, object] = {name: known[name] for name in arguments & known.keys()}
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                for target, value in _pairs(node.targets[0], node.value):
                    if stores.count(target) == 1 and target not in self._names:
                        self._learn(target, value)

    def _learn(self, name: str, value: ast.expr) -> None:
        found = self._value(value)
        if found is not _UNKNOWN:
            self._names[name] = found
            self._hidden.discard(name)

    def truth(self, test: ast.expr) -> bool | None:
        """Return whether a test holds; None where that is not known."""
        if isinstance(test, ast.BoolOp):
            truths = [self.truth(value) for value in test.values]
            decisive = isinstance(test.op, ast.Or)
            if decisive in truths:
                return decisive
            return None if None in truths else not decisive
        found = self._value(test)
        return None if found is _UNKNOWN else bool(found)

    def literal(self, call: ast.Call) -> str | None:
        """Return the literal that a call of a function of ours returns; None where it is no known number or text."""
        found = self._value(call) if isinstance(call.func, ast.Name) else _UNKNOWN
        return repr(found).replace("'", '"') if isinstance(found, int | float | str) else None

    def _value(self, expression: ast.expr) -> object:
        if not self._is_pure(expression):
            return _UNKNOWN
        try:
            code = compile(ast.Expression(expression), "<configuration>", "eval")
            return eval(code, {**self._globals, **self._names})
        except (AttributeError, KeyError, NameError, TypeError, UserError):
            return _UNKNOWN

    def _is_pure(self, expression: ast.expr) -> bool:
        """Return whether it reads nothing but known names and constants, and calls nothing but functions of these."""
        allowed = (ast.Constant, ast.Name, ast.Attribute, ast.Subscript, ast.Compare, ast.BoolOp, ast.UnaryOp, ast.Call)
        others = (ast.Tuple, ast.Load, ast.cmpop, ast.boolop, ast.unaryop)
        for node in ast.walk(expression):
            if not isinstance(node, allowed + others):
                return False
            if isinstance(node, ast.Name) and not self._is_known(node.id):
                return False
            if isinstance(node, ast.Call) and not self._is_plain_call(node):
                return False
        return any(isinstance(node, ast.Name) and node.id in self._names for node in ast.walk(expression))

    def _is_known(self, name: str) -> bool:
        if name in self._names:
            return True
        return name not in self._hidden and name in self._globals

    def _is_plain_call(self, call: ast.Call) -> bool:
        """Return whether a call is of our function, or of a known object's method, such as `plan.configuration.get`."""
        function: ast.expr = call.func
        if isinstance(function, ast.Name):
            found = self._globals.get(function.id)
            return inspect.isfunction(found) and found.__module__.startswith(_OURS)
        while isinstance(function, ast.Attribute):
            function = function.value
        return isinstance(function, ast.Name) and function.id in self._names


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[str, ast.expr]]:
    if isinstance(target, ast.Name):
        return [(target.id, value)]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        return [pair for one, other in zip(target.elts, value.elts, strict=True) for pair in _pairs(one, other)]
    return []
