"""GPU MODE's submissions, in KernelBench's form: `custom_kernel` in one file, the task's `reference.py` the other.

The two texts get a `Model`, a `ModelNew`, `get_inputs` and constants at their ends, one for each argument of
`generate_input`. What they import from `task` and `utils` comes with them, so that they need no other file.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from pathlib import Path

from tunebench.studies.checking.submissions import TextFile
from tunebench.tuner.errors import KernelFolderError, UserError
from tunebench.tuner.running_text import names_bound_by

_KERNEL, _REFERENCE, _INPUT, _SEED = "custom_kernel", "ref_kernel", "generate_input", "seed"
_MODULES = ("task", "utils")

_UNKNOWN_MODULE = '''\
class _Anything:
    """Stands for whatever a file that is not here defines: a type, a context, a function that makes functions."""

    def __call__(self, *_, **__):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _Anything()
'''

_IMPORTED = """\
import sys, types
for name, text in {modules!r}.items():
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(text, name + ".py", "exec"), module.__dict__)
"""

_MODEL = """


class {name}(__import__("torch").nn.Module):
    def forward(self, data):
        return {function}({data})
"""

_COPIED = """


def _copied(data):
    if isinstance(data, (tuple, list)):
        return type(data)(map(_copied, data))
    if isinstance(data, dict):
        return {key: _copied(value) for key, value in data.items()}
    return data.clone() if isinstance(data, __import__("torch").Tensor) else data
"""

_INPUTS = """

{constants}

def _a_seed():
    return int(__import__("torch").randint(1 << 31, ()))


def get_inputs():
    return [generate_input({arguments})]


def get_init_inputs():
    return []
"""

_TESTS = re.compile(r"^tests:[^\n]*\n(?:\s*(?:#[^\n]*)?\n)*\s*-\s*(\{[^\n}]*\})", re.M)
_BOOLEAN = re.compile(r"\b(?:True|False)\b")  # legal in YAML, not in JSON
_BARE_KEY = re.compile(r"(?<=[{,])\s*([A-Za-z_]\w*)\s*:")


def is_gpu_mode(text: str) -> bool:
    """Whether this is the text of a submission to GPU MODE, and not in KernelBench's form."""
    return _KERNEL in text and "ModelNew" not in text and _KERNEL in _bound(text)


def in_kernelbench_form(
    reference: TextFile, submission: TextFile, sizes: Mapping[str, int | float], *, copies: bool = True
) -> tuple[TextFile, TextFile]:
    """Return a task's reference and a submission as files that the gate takes.

    Args:
        sizes: arguments of `generate_input` that are given; others are as in the first test of the task's `task.yml`.
        copies: both get copies of their inputs, as in GPU MODE's tests, and may write into them or return them.

    Raises:
        UserError: the reference is no task's, or there is an argument without a value.
    """
    path, text = reference
    if missing := {_REFERENCE, _INPUT} - _bound(text):
        raise KernelFolderError(
            f"{path}: no {' and no '.join(sorted(missing))}; the reference of a GPU MODE task has it"
        )
    constants, arguments = _arguments(path, text, sizes)
    inputs = _INPUTS.format(constants=constants, arguments=arguments)
    before, data = (_COPIED, "_copied(data)") if copies else ("", "data")
    model = before + _MODEL.format(name="Model", function=_REFERENCE, data=data)
    new = before + _MODEL.format(name="ModelNew", function=_KERNEL, data=data)
    modules = {name: _module(path.parent, name) for name in _MODULES}
    return (path, _importing(text, modules) + model + inputs), (submission[0], _importing(submission[1], modules) + new)


def _bound(text: str) -> set[str]:
    """Return the names that a file defines at its top; none where it cannot be read, which others have words for."""
    try:
        return {name for one in ast.parse(text).body for name in names_bound_by(one)}
    except (SyntaxError, ValueError):
        return set()


def _module(folder: Path, name: str) -> str:
    """Return the text of a module that a task's files import: beside the reference, or one folder above."""
    for place in (folder, folder.parent):
        if (file := place / f"{name}.py").is_file():
            return file.read_text(encoding="utf-8", errors="replace")
    return _UNKNOWN_MODULE


def _importing(text: str, modules: Mapping[str, str]) -> str:
    """Return a text that has the modules before its first import of one, in the same line: lines keep their numbers."""
    imports = [
        one
        for one in ast.walk(ast.parse(text))
        if (isinstance(one, ast.ImportFrom) and one.module in modules)
        or (isinstance(one, ast.Import) and any(alias.name in modules for alias in one.names))
    ]
    if not imports:
        return text
    first = min(imports, key=lambda one: one.lineno)
    lines = text.splitlines(keepends=True)
    line = lines[first.lineno - 1].encode()
    made = f"exec({_IMPORTED.format(modules=dict(modules))!r}, {{}}); "
    lines[first.lineno - 1] = (line[: first.col_offset] + made.encode() + line[first.col_offset :]).decode()
    return "".join(lines)


def _arguments(path: Path, text: str, sizes: Mapping[str, int | float]) -> tuple[str, str]:
    """Return the lines of the constants, and the arguments of the call of `generate_input`.

    Raises:
        UserError: an argument has no value.
    """
    (function,) = (one for one in ast.parse(text).body if getattr(one, "name", None) == _INPUT)
    assert isinstance(function, ast.FunctionDef)
    plain = [*function.args.posonlyargs, *function.args.args]
    optional = {one.arg for one in plain[len(plain) - len(function.args.defaults) :]}
    optional |= {
        one.arg for one, value in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True) if value
    }
    case = {**_first_case(path.parent / "task.yml"), **sizes}
    taken = _bound(text)
    constants, arguments = [], []
    for name in (one.arg for one in (*plain, *function.args.kwonlyargs)):
        if name == _SEED:
            arguments.append(f"{name}=_a_seed()")
        elif name in case:
            constant = f"{name}_" if name in taken else name
            constants.append(f"{constant} = {case[name]!r}\n")
            arguments.append(f"{name}={constant}")
        elif name not in optional:
            raise UserError(
                f"{path}: {_INPUT} takes '{name}', and no task.yml beside it has a test with that: "
                f"give --size {name}=NUMBER"
            )
    return "".join(constants), ", ".join(arguments)


def _first_case(path: Path) -> Mapping[str, object]:
    """Return the first of a task's tests; nothing where there is no such file.

    Raises:
        UserError: it cannot be read.
    """
    if not path.is_file():
        return {}
    found = _TESTS.search(path.read_text(encoding="utf-8", errors="replace"))
    try:
        flow = _BOOLEAN.sub(lambda one: one[0].lower(), _BARE_KEY.sub(r'"\1":', found[1])) if found else "{}"
        case: Mapping[str, object] = json.loads(flow)
    except ValueError as error:
        raise UserError(f"{path}: cannot read its first test, '{found and found[1]:.80}': {error}") from error
    return case
