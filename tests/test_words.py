"""Docstrings are sentences: none opens with a word that leaves out the subject or the verb."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
from test_architecture import FILES, ROOT

OPENING = re.compile(r"(?:What|Of|Those|That|So|As of|Whose|Nobody|At once)\b")

Documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def openings(text: str) -> Iterator[int]:
    """Yield the line of each docstring of a module, class or function that opens with such a word."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, Documented) and OPENING.match(ast.get_docstring(node) or ""):
            yield node.body[0].lineno


def test_no_docstring_lacks_its_subject_or_verb() -> None:
    found = [
        f"{path.relative_to(ROOT).as_posix()}:{line}"
        for path in FILES.values()
        for line in openings(path.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    "text", ['"""What a file holds."""', 'class A:\n    """Of a class."""', 'async def f():\n    """As of any f."""']
)
def test_every_such_docstring_is_found(text: str) -> None:
    assert len([*openings(text)]) == 1


@pytest.mark.parametrize("text", ['"""Office hours."""', 'def f():\n    """Return what f makes."""', "x = 'What'"])
def test_sentences_are_not_found(text: str) -> None:
    assert not [*openings(text)]
