"""Edits of a definition's text that leave the rest of it as people wrote it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable

_LONGEST_LINE = 120

Edit = tuple[int, int, str]
"""A replacement in a text: start, end, and the new text."""


def positions(text: str) -> Callable[[int, int], int]:
    """Return the function from a line (from 1) and a byte column, as in `ast`, to a place in the encoded text."""
    starts = [0]
    for line in text.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return lambda line, column: starts[line - 1] + column


def edited(text: str, edits: Iterable[Edit]) -> str:
    """Return the text with edits made, none of which overlap; their places are in the encoded text."""
    encoded = text.encode()
    for start, end, replacement in sorted(edits, reverse=True):
        encoded = encoded[:start] + replacement.encode() + encoded[end:]
    return encoded.decode()


def without_docstrings(text: str) -> str:
    """Return the text with its docstrings as comments."""
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


def without_annotations(text: str) -> str:
    """Return the text without annotations; those of a class, which may be a dataclass's fields, are quoted."""
    at = positions(text)
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
    return _with_short_heads(edited(text, edits))


def _with_short_heads(text: str) -> str:
    """Return the text with each function's parameters on one line, where they fit."""
    lines = text.splitlines()
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    for node in sorted(functions, key=lambda node: node.lineno, reverse=True):
        last = next(at for at in range(node.lineno, len(lines) + 1) if lines[at - 1].endswith(":"))
        head = " ".join(line.strip() for line in lines[node.lineno - 1 : last])
        head = " " * node.col_offset + head.replace("( ", "(").replace(", )", ")").replace(" )", ")")
        if last < node.body[0].lineno and len(head) <= _LONGEST_LINE and "#" not in head:
            lines[node.lineno - 1 : last] = [head]
    return "\n".join(lines)
