"""The part of a file that runs, so that a comment or a moved module does not make results stale."""

from __future__ import annotations

import ast
import io
import tokenize
from functools import lru_cache

from tunebench.tuner.signature import COMMENT_OR_LITERAL

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def running_text(text: str) -> str:
    """Return the text without comments, docstrings, blank lines, and imports from tunebench itself.

    Where tunebench keeps a thing says nothing of what a kernel does; the version is part of a result's environment.
    The rest is kept as it is written, since how a parser prints it would change with Python's version. A text that is
    not Python is returned as it is.
    """
    try:
        tree = ast.parse(text)
        comments = [token.start for token in tokenize.generate_tokens(io.StringIO(text).readline) if _is_comment(token)]
    except (SyntaxError, ValueError, tokenize.TokenError):
        return text
    lines = text.splitlines()
    for row, column in comments:
        lines[row - 1] = lines[row - 1][:column]
    for node in _silent(tree):
        for row in range(node.lineno, (node.end_lineno or node.lineno) + 1):
            lines[row - 1] = ""
    return "\n".join(line.rstrip() for line in lines if line.strip())


@lru_cache(maxsize=128)  # kernels share their headers
def running_source(text: str) -> str:
    """Return CUDA C++ without comments and blank lines; as it is where it has raw strings, which may hold either."""
    if 'R"' in text:
        return text
    bare = COMMENT_OR_LITERAL.sub(lambda match: " " if match[0].startswith("/") else match[0], text)
    return "\n".join(line.rstrip() for line in bare.splitlines() if line.strip())


def _is_comment(token: tokenize.TokenInfo) -> bool:
    return token.type == tokenize.COMMENT


def _silent(tree: ast.Module) -> list[ast.stmt]:
    """Return docstrings, and imports from tunebench that stand on lines of their own."""
    found: list[ast.stmt] = []
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            found.append(node.body[0])
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tunebench":
            found.append(node)
    busy = [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and not isinstance(node, _DOCUMENTED)]
    return [one for one in found if not any(other is not one and _share_a_line(one, other) for other in busy)]


def _share_a_line(one: ast.stmt, other: ast.stmt) -> bool:
    """Return whether a statement begins or ends on a line of another one: `import a; b()`."""
    lines = range(one.lineno, (one.end_lineno or one.lineno) + 1)
    return other.lineno in lines or (other.end_lineno or other.lineno) in lines


def names_bound_by(statement: ast.stmt | ast.ExceptHandler) -> list[str]:
    """Return the names that a statement of a module gives a meaning to, also in the branches that it has."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        return [statement.name]
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name.split(".")[0] for alias in statement.names]
    targets = [*getattr(statement, "targets", ()), getattr(statement, "target", None)]
    targets += [one.optional_vars for one in getattr(statement, "items", ())]
    nodes = [node for target in targets if target is not None for node in ast.walk(target)]
    names = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    inner = [one for name in ("body", "handlers", "orelse", "finalbody") for one in getattr(statement, name, ())]
    return names + [name for one in inner for name in names_bound_by(one)]
