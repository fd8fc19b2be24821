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
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace

from tunebench.studies.writing.export.branches import decided
from tunebench.studies.writing.export.edits import edited, positions, without_annotations, without_docstrings
from tunebench.tuner.errors import UserError
from tunebench.tuner.running_text import names_bound_by

_FACE = "tunebench"
_OURS = f"{_FACE}."
_FOR_LINTERS = re.compile(r"  # (?:type: ignore|noqa)[^\n]*")
_STARTS_THREADS = ("threading", "multiprocessing", "concurrent", "asyncio")
"""Packages that a harness takes for an attempt to run where it does not look."""


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
    """The members of a class that a file contains.

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
    """Return the members that a file needs of a class and of its bases before `until`, and those that they use.

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
                    method = ast.parse(decided(text, known, vars(sys.modules[one.__module__]))).body[0]
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
            for name in () if isinstance(statement, ast.If | ast.Try) else names_bound_by(statement):
                self.statements[name] = statement

    def text_of(self, statement: ast.stmt) -> str:
        """Return a top-level statement with its decorators and the comment above it."""
        first = min([statement.lineno, *(one.lineno for one in getattr(statement, "decorator_list", []))])
        while first > 1 and self.lines[first - 2].startswith("#"):
            first -= 1
        return "\n".join(self.lines[first - 1 : statement.end_lineno])


class Linker:
    """A linker of what a class needs.

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
        """Return a class and all that it needs.

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
        text = without_docstrings(without_annotations(_FOR_LINTERS.sub("", text)))
        members = self._members_of.get((module, name))
        known = self._known if members is None else {**self._known, "self": SimpleNamespace(**members.known)}
        text = decided(text, known, vars(home.module))
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
        """Return a name that the file has for nothing else."""
        others = {file_name for (_, _), file_name in self._names.items()}
        if name in self._taken or (name in others and not self._is_the_same(module, name, text)):
            stem = module.rpartition(".")[2] if name not in self._taken else ""
            return f"_{stem}{name}" if name.startswith("_") else f"_{stem}_{name}".replace("__", "_")
        return name

    def _is_the_same(self, module: str, name: str, text: str) -> bool:
        """Return whether another module's definition of that name is the very same text and needs nothing else."""
        if any(found == (module, name) for found in self._names):
            return True
        return self._texts.get(name) == text and not _needed(text)

    def _with_names_of_the_file(self, module: str, text: str, own: Mapping[str, str]) -> str:
        """Return the text with its needs defined, called what they are called in the file."""
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
        at = positions(text)
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
        return edited(text, edits)

    def _members(self, module: str, text: str) -> list[tuple[ast.Attribute, str, str]]:
        """Return where a text has `module.name` of ours: node, the module's name there, and its name in the file."""
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
    """Join definitions, with constants that follow each other in one."""
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


def _needed(text: str) -> list[str]:
    """Return the names of a definition that it does not itself give a meaning to, in the order they come."""
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
    """Return the names that functions of a definition have for their own."""
    nodes = [node for one in ast.walk(ast.parse(text)) if isinstance(one, ast.FunctionDef) for node in ast.walk(one)]
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return stored | {node.arg for node in nodes if isinstance(node, ast.arg)}


def _with_members(text: str, members: Members) -> str:
    """Return a class with some of its methods, and what they call of it; of its attributes those that are stated."""
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
    """Return the names of the attributes that a method reads from its object or its class."""
    attributes = [node for node in ast.walk(method) if isinstance(node, ast.Attribute)]
    return [n.attr for n in attributes if isinstance(n.value, ast.Name) and n.value.id in ("self", "cls", class_name)]
