"""Definitions of many modules in one text: what goes, what stays, and what is told apart."""

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tunebench.studies.writing.export.linker import CannotExportError, Linker, Members

FACTORS = '''
"""Constants and a helper."""
import ctypes

LIMIT = 3  # of a grid


def helper(value: int) -> int:
    """Not what the other module means by the name."""
    return value * LIMIT
'''

MODEL = '''
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy

from tunebench.linked_example import factors
from tunebench.linked_example.factors import helper as times_three

LIMIT = 5
_WAYS = ("slow", "slower")


def is_slow(way: str) -> bool:
    return way in _WAYS


def helper(value: int, more: Sequence[int] = ()) -> int:
    """Adds.

    And says so in two lines: never write try: or pass here.
    """
    return value + LIMIT + sum(more)


@dataclass(frozen=True)
class Pair:
    """Two numbers."""

    left: int
    right: Sequence[int] | None = None


class Shadow:
    def run(self, helper: int) -> int:
        return helper

    def other(self) -> int:
        return helper(1)


class Base:
    def scaled(self, value: int) -> int:
        raise NotImplementedError


class Model(Base):
    """The model."""

    flag = object()

    def forward(self, plan: Plan, value: int) -> int:  # type: ignore[name-defined]
        way = plan.configuration["way"]
        if is_slow(way):
            return numpy.int64(value)  # this branch cannot be exported
        elif way == "fast":
            # The comment of the branch that is taken.
            pair: Pair = Pair(helper(value))
            return self.scaled(plan, pair.left)
        return self.unreached(value)

    def scaled(self, plan: Plan, value: int) -> int:  # type: ignore[name-defined]
        assert factors.LIMIT == 3
        extra = times_three(value) if plan.configuration["way"] == "fast" else unknown_name  # noqa: F821
        return extra

    def unreached(self, value: int) -> int:
        return missing(value)  # noqa: F821
'''


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The two modules above, as modules of tunebench's."""
    import tunebench

    folder = tmp_path / "linked_example"
    folder.mkdir()
    for name, text in (("__init__", ""), ("factors", FACTORS), ("model", MODEL)):
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.setattr(tunebench, "__path__", [*tunebench.__path__, str(tmp_path)])
    for module in [name for name in sys.modules if name.startswith("tunebench.linked_example")]:
        monkeypatch.delitem(sys.modules, module)
    importlib.invalidate_caches()
    return "tunebench.linked_example.model"


def linked(module: str, way: str, taken: tuple[str, ...] = ()) -> str:
    plan = SimpleNamespace(configuration={"way": way})
    members = {(module, "Model"): Members(frozenset({"forward"}))}
    linker = Linker({}, stated=("Plan",), taken=taken, known={"plan": plan}, members=members)
    found = linker.link((module, "Pair"), module, "Model")
    return "\n".join([*found.imports, *found.definitions])


def test_only_what_can_run_is_there_and_runs(example: str) -> None:
    text = linked(example, "fast")
    for gone in ("numpy", "unreached", "missing", "unknown_name", "is_slow", "flag", "->", '"""', "type: ignore"):
        assert gone not in text, gone
    assert "# The comment of the branch that is taken." in text and "# And says so in two lines" in text
    context: dict[str, object] = {}
    exec(text, context)
    model = context["Model"]
    assert isinstance(model, type)
    plan = SimpleNamespace(configuration={"way": "fast"})
    assert model().forward(plan, 7) == (7 + 5) * 3


def test_names_of_two_modules_are_told_apart(example: str) -> None:
    text = linked(example, "fast")
    assert text.count("def helper(") == 1 and text.count("LIMIT = ") == 2


def test_names_that_are_taken_are_left_alone(example: str) -> None:
    context: dict[str, object] = {"helper": 1, "LIMIT": 2}
    exec(linked(example, "fast", ("helper", "LIMIT")), context)
    assert (context["helper"], context["LIMIT"]) == (1, 2)


def test_a_name_that_would_be_mistaken_for_another_is_refused(example: str) -> None:
    for taken in ((), ("helper",)):
        members = {(example, "Shadow"): Members(frozenset({"run", "other"}))}
        linker = Linker({}, stated=(), taken=taken, known={}, members=members)
        if taken:
            with pytest.raises(CannotExportError, match="'helper' is a local name and one of the module"):
                linker.link((example, "Pair"), example, "Shadow")
        else:
            assert linker.link((example, "Pair"), example, "Shadow").definitions


def test_what_needs_another_package_is_refused(example: str) -> None:
    with pytest.raises(CannotExportError, match="needs the package numpy"):
        linked(example, "slow")


def test_what_is_defined_nowhere_is_refused(example: str) -> None:
    with pytest.raises(CannotExportError, match="'missing', which is defined nowhere"):
        linked(example, "other")
