"""Puts Python definitions of many modules into one text: those that a class needs, and of these what can run.

The text stays as people wrote it, comments included. What changes: docstrings become comments and annotations go, since
the file is run by harnesses that look for words in its text and that put lines of their own before its first; branches
that a fixed configuration decides are decided; names that mean different things in two modules are told apart.
"""

from __future__ import annotations

import ast
import builtins
import importlib.util
import inspect
import re
import symtable
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

from tunebench.tuner.errors import UserError

_FACE = "tunebench"
_OURS = f"{_FACE}."
_LONGEST_LINE = 120
_FOR_LINTERS = re.compile(r"  # (?:type: ignore|noqa)[^\n]*")
_STARTS_THREADS = ("threading", "multiprocessing", "concurrent", "asyncio")
"""Packages that a harness takes for an attempt to run where it does not look."""

Edit = tuple[int, int, str]
"""Of a text: from where, to where, and what stands there instead."""


class CannotExportError(UserError):
    """A kernel under a configuration cannot be one file."""


@dataclass(frozen=True)
class Linked:
    """The text of a file but for its head.

    Attributes:
        imports: lines.
        definitions: one text each, what is needed before what needs it.
    """

    imports: list[str]
    definitions: list[str]


@dataclass(frozen=True)
class Members:
    """What a file has of a class.

    Attributes:
        methods: these, and those of the class that they call.
        attributes: with their values, which are plain data.
        known: all such attributes that its objects have, by which branches are decided.
    """

    methods: frozenset[str]
    attributes: Mapping[str, object] = field(default_factory=dict)
    known: Mapping[str, object] = field(default_factory=dict)


def members_of(
    model: type, until: type, names: Iterable[str], known: Mapping[str, object]
) -> dict[tuple[str, str], Members]:
    """What a file needs of a class and of its bases before `until`: methods, and class attributes that they read.

    Args:
        names: the methods to begin with.
        known: what names of arguments stand for, which decides branches.
    """
    classes = [one for one in model.__mro__[: model.__mro__.index(until)] if one.__module__.startswith(_OURS)]
    plain = {name: getattr(model, name) for one in classes for name in vars(one) if not name.startswith("__")}
    plain = {name: value for name, value in plain.items() if _is_plain(value)}
    known = {**known, "self": SimpleNamespace(**plain)}
    reached: dict[str, None] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached[name] = None
            for one in classes:
                found = vars(one).get(name)
                found = found.__func__ if isinstance(found, classmethod | staticmethod) else found
                found = found.fget if isinstance(found, property) else found
                if inspect.isfunction(found):
                    text = textwrap.dedent(inspect.getsource(found))
                    method = ast.parse(_decided(text, known, vars(sys.modules[one.__module__]))).body[0]
                    assert isinstance(method, ast.FunctionDef)
                    waiting += _own_attributes(method, one.__name__)
    data = {name: plain[name] for name in reached if name in plain}
    methods = frozenset(reached) - data.keys()
    return {
        (one.__module__, one.__name__): Members(methods & vars(one).keys(), data if one is model else {}, plain)
        for one in classes
    }


def _is_plain(value: object) -> bool:
    if type(value) is tuple:
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str)


@dataclass
class _Home:
    """A module whose definitions may be needed."""

    module: ModuleType
    lines: list[str] = field(init=False)
    statements: dict[str, ast.stmt] = field(init=False)

    def __post_init__(self) -> None:
        text = inspect.getsource(self.module)
        self.lines = text.splitlines()
        self.statements = {}
        for statement in ast.parse(text).body:
            for name in _bound(statement):
                self.statements[name] = statement

    def text_of(self, statement: ast.stmt) -> str:
        """A top-level statement with its decorators and the comment above it."""
        first = min([statement.lineno, *(one.lineno for one in getattr(statement, "decorator_list", []))])
        while first > 1 and self.lines[first - 2].startswith("#"):
            first -= 1
        return "\n".join(self.lines[first - 1 : statement.end_lineno])


class Linker:
    """Links what a class needs.

    Args:
        substitutes: by name, the module whose definition takes the place of every other of that name in tunebench.
        stated: names that the file's head defines.
        taken: names that the file must not define.
        known: what names of a function's arguments stand for, wherever it is known before anything runs.
        members: by module and name, the classes of which the file has these methods and attributes alone.
    """

    def __init__(
        self,
        substitutes: Mapping[str, str],
        stated: Collection[str],
        taken: Collection[str],
        known: Mapping[str, object],
        members: Mapping[tuple[str, str], Members],
    ) -> None:
        self._members_of = members
        self._substitutes = substitutes
        self._stated = stated
        self._taken = set(taken)
        self._known = known
        self._imports: set[str] = set()
        self._names: dict[tuple[str, str], str] = {}  # what a module's definition is called in the file
        self._texts: dict[str, str] = {}  # by name in the file, in the order they are finished
        self._under_way: set[str] = set()
        self._homes: dict[str, _Home] = {}

    def link(self, first: tuple[str, str], module: str, name: str) -> Linked:
        """A class and all that it needs.

        Args:
            first: a module and what is needed of it besides.
        """
        self._define(*first)
        self._define(module, name)
        return Linked(sorted(self._imports, key=_import_order), _joined(self._texts.values()))

    def _home(self, module: str) -> _Home:
        if module not in self._homes:
            self._homes[module] = _Home(importlib.import_module(module))
        return self._homes[module]

    def _define(self, module: str, name: str) -> str:
        """Have a module's definition in the file; its name there."""
        if (own := self._names.get((module, name))) is not None:
            return own
        home = self._home(module)
        statement = home.statements.get(name)
        if statement is None:
            raise CannotExportError(f"{module} does not define '{name}' where a file of one kernel could have it from")
        if isinstance(statement, ast.Import | ast.ImportFrom):
            self._names[module, name] = found = self._import(module, statement, name)
            return found
        text = home.text_of(statement)
        text = _without_docstrings(_without_annotations(_FOR_LINTERS.sub("", text)))
        members = self._members_of.get((module, name))
        known = self._known if members is None else {**self._known, "self": SimpleNamespace(**members.known)}
        text = _decided(text, known, vars(home.module))
        if members is not None:
            text = _with_members(text, members)
        own = self._own_name(module, name, text)
        self._names[module, name] = own
        if own in self._texts or own in self._under_way:
            return own
        self._under_way.add(own)
        text = self._with_names_of_the_file(module, text, {name: own})
        self._texts[own] = text
        return own

    def _own_name(self, module: str, name: str, text: str) -> str:
        """A name that the file has for nothing else."""
        others = {file_name for (_, _), file_name in self._names.items()}
        if name in self._taken or (name in others and not self._is_the_same(module, name, text)):
            stem = module.rpartition(".")[2] if name not in self._taken else ""
            return f"_{stem}{name}" if name.startswith("_") else f"_{stem}_{name}".replace("__", "_")
        return name

    def _is_the_same(self, module: str, name: str, text: str) -> bool:
        """Whether another module's definition of that name is the very same text and needs nothing else."""
        if any(found == (module, name) for found in self._names):
            return True
        return self._texts.get(name) == text and not _needed(text)

    def _with_names_of_the_file(self, module: str, text: str, own: Mapping[str, str]) -> str:
        """The text with its needs defined, called what they are called in the file."""
        home, renamed = self._home(module), dict(own)
        members = self._members(module, text)
        for name in _needed(text):
            if name in own or name in self._stated or any(name == of for _, of, _ in members):
                continue
            if name in home.statements or (name in self._substitutes and not hasattr(builtins, name)):
                renamed[name] = self._resolve(module, name)
            elif not hasattr(builtins, name):
                raise CannotExportError(f"{module} needs '{name}', which is defined nowhere")
        if hidden := sorted(name for name in renamed.keys() & _local(text) if renamed[name] != name):
            raise CannotExportError(
                f"{module}: '{hidden[0]}' is a local name and one of the module, told apart nowhere"
            )
        at = _positions(text)
        edits = []
        for member, _, called in members:
            end = at(member.end_lineno or 0, member.end_col_offset or 0)
            edits.append((at(member.lineno, member.col_offset), end, called))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Name) and renamed.get(node.id, node.id) != node.id:
                start = at(node.lineno, node.col_offset)
                edits.append((start, start + len(node.id.encode()), renamed[node.id]))
            elif isinstance(node, ast.ClassDef | ast.FunctionDef) and node.col_offset == 0:
                word = "class " if isinstance(node, ast.ClassDef) else "def "
                start = at(node.lineno, len(word))
                if renamed.get(node.name, node.name) != node.name:
                    edits.append((start, start + len(node.name), renamed[node.name]))
        return _edited(text, edits)

    def _members(self, module: str, text: str) -> list[tuple[ast.Attribute, str, str]]:
        """Where a text has `module.name` of a module of ours: the module's name there, and what it is in the file."""
        found = []
        needed = set(_needed(text))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in needed:
                other = getattr(self._home(module).module, node.value.id, None)
                if isinstance(other, ModuleType) and other.__name__.startswith(_OURS):
                    found.append((node, node.value.id, self._resolve(other.__name__, node.attr)))
        return found

    def _resolve(self, module: str, name: str) -> str:
        if name in self._substitutes and module != self._substitutes[name]:
            return self._define(self._substitutes[name], name)
        return self._define(module, name)

    def _import(self, module: str, statement: ast.Import | ast.ImportFrom, name: str) -> str:
        """Have what an import statement binds in the file."""
        alias = next(one for one in statement.names if (one.asname or one.name.split(".")[0]) == name)
        if isinstance(statement, ast.Import):
            line = f"import {alias.name}" + (f" as {alias.asname}" if alias.asname else "")
            package = alias.name
        else:
            package = str(statement.module)
            if statement.level:
                within = importlib.import_module(module).__package__
                package = importlib.util.resolve_name("." * statement.level + (statement.module or ""), within)
            if package == _FACE:
                package = getattr(importlib.import_module(_FACE), alias.name).__module__
            if f"{package}.".startswith(_OURS):
                if name in self._substitutes:
                    return self._define(self._substitutes[name], name)
                return self._define(package, alias.name)
            line = f"from {package} import {alias.name}" + (f" as {alias.asname}" if alias.asname else "")
        package = package.split(".")[0]
        if package != "torch" and (package not in sys.stdlib_module_names or package in _STARTS_THREADS):
            raise CannotExportError(f"this configuration needs the package {package}, which a file cannot have")
        self._imports.add(line)
        return name


def _joined(texts: Iterable[str]) -> list[str]:
    """Definitions, with constants that follow each other in one."""
    joined: list[str] = []
    for text in texts:
        is_short = "\n" not in text
        if joined and is_short and _is_constants(joined[-1]):
            joined[-1] += f"\n{text}"
        else:
            joined.append(text)
    return joined


def _is_constants(text: str) -> bool:
    return all(isinstance(statement, ast.Assign | ast.AnnAssign) for statement in ast.parse(text).body)


def _import_order(line: str) -> tuple[bool, bool, str]:
    module = line.split()[1]
    return module.split(".")[0] == "torch", line.startswith("from"), module


def _bound(statement: ast.stmt) -> list[str]:
    """The names that a top-level statement gives a meaning to."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.Assign):
        return [node.id for target in statement.targets for node in ast.walk(target) if isinstance(node, ast.Name)]
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return [statement.target.id] if statement.value is not None else []
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name.split(".")[0] for alias in statement.names]
    return []


def _needed(text: str) -> list[str]:
    """The names of a definition that it does not itself give a meaning to, in the order they come."""
    table = symtable.symtable(text, "<definition>", "exec")
    own = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_namespace()}
    found = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_referenced()}
    scopes = table.get_children()
    for scope in scopes:
        found |= {symbol.get_name() for symbol in scope.get_symbols() if symbol.is_referenced() and symbol.is_global()}
        scopes += scope.get_children()
    order = [node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)]
    return sorted(found - own, key=order.index)


def _local(text: str) -> set[str]:
    """The names that functions of a definition have for their own."""
    nodes = [node for one in ast.walk(ast.parse(text)) if isinstance(one, ast.FunctionDef) for node in ast.walk(one)]
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return stored | {node.arg for node in nodes if isinstance(node, ast.arg)}


# ---------------------------------------------------------------------------------------------------- edits of a text


def _positions(text: str) -> Callable[[int, int], int]:
    """From a line (from 1) and a column in bytes, as `ast` counts, to a place in the encoded text."""
    starts = [0]
    for line in text.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return lambda line, column: starts[line - 1] + column


def _edited(text: str, edits: Iterable[Edit]) -> str:
    """The text with edits made, none of which overlap; their places are in the encoded text."""
    encoded = text.encode()
    for start, end, replacement in sorted(edits, reverse=True):
        encoded = encoded[:start] + replacement.encode() + encoded[end:]
    return encoded.decode()


def _without_docstrings(text: str) -> str:
    """The text with its docstrings as comments."""
    lines = text.splitlines()
    documented = (ast.ClassDef, ast.FunctionDef)
    found = [
        (node, node.body[0])
        for node in ast.walk(ast.parse(text))
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None
    ]
    for node, doc in sorted(found, key=lambda pair: pair[1].lineno, reverse=True):
        indent = " " * doc.col_offset
        told = (ast.get_docstring(node) or "").splitlines()
        comment = [f"{indent}# {line}".rstrip() for line in told]
        lines[doc.lineno - 1 : doc.end_lineno] = comment + ([f"{indent}..."] if len(node.body) == 1 else [])
    return "\n".join(lines)


def _without_annotations(text: str) -> str:
    """The text without annotations; those of a class, which may be a dataclass's fields, are quoted."""
    at = _positions(text)
    encoded = text.encode()
    tree = ast.parse(text)
    fields = {one for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for one in node.body}
    edits: list[Edit] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.annotation is not None:
            start = at(node.lineno, node.col_offset) + len(node.arg.encode())
            end = at(node.annotation.end_lineno or 0, node.annotation.end_col_offset or 0)
            is_optional = encoded[end : end + 3] == b" = "
            edits.append((start, end + 3, "=") if is_optional else (start, end, ""))
        elif isinstance(node, ast.FunctionDef) and node.returns is not None:
            end = at(node.returns.end_lineno or 0, node.returns.end_col_offset or 0)
            start = encoded.rindex(b"->", 0, at(node.returns.lineno, node.returns.col_offset))
            edits.append((len(encoded[:start].rstrip()), end, ""))
        elif isinstance(node, ast.AnnAssign):
            annotation = node.annotation
            span = (
                (annotation.lineno, annotation.col_offset),
                (annotation.end_lineno or 0, annotation.end_col_offset or 0),
            )
            if node in fields:
                edits.append((at(*span[0]), at(*span[1]), repr(ast.unparse(annotation)).replace("'", '"')))
            elif node.value is not None:
                edits.append((at(node.target.end_lineno or 0, node.target.end_col_offset or 0), at(*span[1]), ""))
    return _with_short_heads(_edited(text, edits))


def _with_short_heads(text: str) -> str:
    """The text with each function's parameters on one line, where they fit."""
    lines = text.splitlines()
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    for node in sorted(functions, key=lambda node: node.lineno, reverse=True):
        last = next(at for at in range(node.lineno, len(lines) + 1) if lines[at - 1].endswith(":"))
        head = " ".join(line.strip() for line in lines[node.lineno - 1 : last])
        head = " " * node.col_offset + head.replace("( ", "(").replace(", )", ")").replace(" )", ")")
        if last < node.body[0].lineno and len(head) <= _LONGEST_LINE and "#" not in head:
            lines[node.lineno - 1 : last] = [head]
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------------- what is decided


def _decided(text: str, known: Mapping[str, object], globals_: Mapping[str, Any]) -> str:
    """The text without the branches that cannot be taken."""
    while True:
        for edit in _decisions(text, known, globals_):
            text = edit
            break
        else:
            return text


def _decisions(text: str, known: Mapping[str, object], globals_: Mapping[str, Any]) -> Iterator[str]:
    """The text after one more branch is decided, for each that can be."""
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
    """The blocks of a statement; the `elif` of an `if` is none."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
            is_elif = isinstance(node, ast.If) and name == "orelse" and block[0].col_offset == node.col_offset
            if not is_elif:
                yield block


def _replaced(text: str, node: ast.expr, segment: str) -> str:
    at = _positions(text)
    start, end = at(node.lineno, node.col_offset), at(node.end_lineno or 0, node.end_col_offset or 0)
    return _edited(text, [(start, end, segment)])


def _without_branch(text: str, block: list[ast.stmt], place: int, truth: bool) -> str:
    """The text with an `if` of a block decided; what would come behind a return goes too."""
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
    """What expressions of a function are, where only the configuration and constants of its module decide."""

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
        """Whether a test holds; None where that is not known."""
        if isinstance(test, ast.BoolOp):
            truths = [self.truth(value) for value in test.values]
            decisive = isinstance(test.op, ast.Or)
            if decisive in truths:
                return decisive
            return None if None in truths else not decisive
        found = self._value(test)
        return None if found is _UNKNOWN else bool(found)

    def literal(self, call: ast.Call) -> str | None:
        """What a call of a function of ours returns, where that is known and is a number or a text."""
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
        """Whether it reads nothing but known names and constants, and calls nothing but functions of these."""
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
        """Of a function of ours, or a method of what is known, such as `plan.configuration.get`."""
        function: ast.expr = call.func
        if isinstance(function, ast.Name):
            found = self._globals.get(function.id)
            return inspect.isfunction(found) and found.__module__.startswith(_OURS)
        while isinstance(function, ast.Attribute):
            function = function.value
        return isinstance(function, ast.Name) and function.id in self._names


_UNKNOWN = object()


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[str, ast.expr]]:
    if isinstance(target, ast.Name):
        return [(target.id, value)]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        return [pair for one, other in zip(target.elts, value.elts, strict=True) for pair in _pairs(one, other)]
    return []


def _with_members(text: str, members: Members) -> str:
    """A class with some of its methods, and what they call of it; of its attributes those that are stated."""
    tree = ast.parse(text)
    (found,) = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    methods = {node.name: node for node in found.body if isinstance(node, ast.FunctionDef)}
    reached: dict[str, None] = {}
    waiting = [name for name in methods if name in members.methods]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached[name] = None
            waiting += [attribute for attribute in _own_attributes(methods[name], found.name) if attribute in methods]
    lines = text.splitlines()
    starts = {node: min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))]) for node in found.body}
    parts = ["\n".join(lines[: starts[found.body[0]] - 1]).rstrip()]
    stated = [f"    {name} = {value!r}".replace("'", '"') for name, value in members.attributes.items()]
    if stated or not reached:
        parts.append("\n".join(stated or ["    ..."]))
    for name, node in methods.items():
        if name in reached:
            parts.append("\n".join(lines[starts[node] - 1 : node.end_lineno]))
    return "\n\n".join(parts)


def _own_attributes(method: ast.FunctionDef, class_name: str) -> list[str]:
    """What a method asks of its object or its class."""
    attributes = [node for node in ast.walk(method) if isinstance(node, ast.Attribute)]
    return [n.attr for n in attributes if isinstance(n.value, ast.Name) and n.value.id in ("self", "cls", class_name)]
