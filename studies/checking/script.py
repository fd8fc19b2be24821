"""A script of a few lines that shows what was refused, with torch and the user's own files alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tunebench.studies.checking.report import NO_REPRODUCTION, CheckReport
from tunebench.tuner.errors import UserError
from tunebench.tuner.files import whole_file
from tunebench.tuner.gate.refusal import Claim, Refusal, Reproduction
from tunebench.tuner.settings import statements

_SCRIPT = '''"""{title}

{found}
It prints what is expected and what is got, and ends with 1 as long as they differ.
"""

import ast
import copy
import sys
import types
from pathlib import Path

import torch


def load(path, **constants):
    """What a file defines, with some of its constants changed."""
    tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    for line in tree.body:
        if isinstance(line, ast.Assign) and getattr(line.targets[0], "id", None) in constants:
            line.value = ast.copy_location(ast.Constant(constants[line.targets[0].id]), line.value)
    module = types.ModuleType("loaded")
    module.__file__ = path
    exec(compile(tree, path, "exec"), module.__dict__)
    return module


def made(model):
    """The model as the check makes it: from one seed, on its device, in its mode."""
    torch.manual_seed(0)
    with torch.device({device!r}):
        return model(*reference.get_init_inputs()).to({place}).{mode}()


{settings}reference = {reference}
candidate = {candidate}
model, new = made(reference.Model), made(candidate.ModelNew)
new.load_state_dict(model.state_dict())
{part}{inputs}
with torch.{recording}():
    torch.manual_seed({call_seed})
    wanted = model(*copy.deepcopy(inputs))
    torch.manual_seed({call_seed})
    output = new(*copy.deepcopy(inputs))
{comparison}
'''

_MODELS = ("model", "new")

_DRAWN = """torch.manual_seed({seed})
with torch.device({device!r}):
    inputs = reference.get_inputs()
inputs = [x.to({device!r}{dtype}) if isinstance(x, torch.Tensor) else x for x in inputs]"""

_KEPT = """inputs = torch.load(Path(__file__).with_name({name!r}))"""

_ELEMENT = """expected, got = {expected}, float({place})
print(f"{shown}: expected {{expected}} (in float64; the reference gives {{float({wanted})}}), got {{got}}")
right = expected == got or abs(expected - got) <= {allowed!r} or (expected != expected and got != got)
sys.exit(0 if right else 1)"""

_FORM = """

def form(x):
    return (type(x).__name__, tuple(x.shape), x.dtype, x.stride()) if isinstance(x, torch.Tensor) else type(x).__name__


print(f"expected {form(wanted)}, got {form(output)}")
sys.exit(0 if form(wanted) == form(output) else 1)"""


def write_script(file: Path, report: CheckReport) -> Refusal:
    """Write a script that shows a refusal of a file; inputs that no seed draws lie beside it, in `NAME.inputs.pt`.

    Returns:
        The refusal that it shows: the first about the problem, or else the first that one call shows.

    Raises:
        UserError: nothing was refused, one call shows none of it, or the file cannot be written.
    """
    if report.trusted:
        raise UserError("a reproduction is a script with the user's own files: name a file with a ModelNew")
    shown = [one for one in report.refusals if (call := one.reproduction) and (call.seed is not None or call.inputs)]
    if not shown:
        raise UserError(f"nothing to reproduce: {NO_REPRODUCTION if report.refusals else 'nothing was refused'}")
    refusal = min(shown, key=lambda one: one.claim is not Claim.PROBLEM)
    call = refusal.reproduction
    assert call is not None
    beside = file.with_suffix(".inputs.pt")
    if call.inputs is not None:
        with whole_file(beside) as stream:
            stream.write(call.inputs)
    with whole_file(file) as stream:
        stream.write(_script(report, refusal, call, beside.name).encode())
    return refusal


def _script(report: CheckReport, refusal: Refusal, call: Reproduction, beside: str) -> str:
    request, device = report.request, report.subject.place
    dtype = "" if request.dtype is None else f"torch.{request.dtype}"
    if call.seed is None:
        inputs = _KEPT.format(name=beside)
    else:
        cast = f", {dtype} if x.is_floating_point() else None" if dtype else ""
        inputs = _DRAWN.format(seed=call.seed, device=device, dtype=cast)
    comparison = _FORM
    if (one := call.element) is not None:
        wanted = one.place.replace("output", "wanted", 1)
        shown = one.place.replace("{", "{{").replace("}", "}}").replace('"', "'")
        comparison = _ELEMENT.format(
            expected=f"float('{one.expected!r}')", place=one.place, shown=shown, wanted=wanted, allowed=one.allowed
        )
    return _SCRIPT.format(
        title=_plain(f"What tunebench refused of {Path(request.target).name} in stage '{refusal.name}'."),
        found=_plain(f"{refusal.detail}\n{call}."),
        device=device,
        place=repr(device) + (f", {dtype}" if dtype else ""),
        mode="train" if call.mode == "train" else "eval",
        settings="".join(f"{line}\n" for line in statements(request.settings or {})) + "\n" * bool(request.settings),
        reference=_load(request.reference or request.target, call.sizes),
        candidate="reference" if request.reference is None else _load(request.target, {}),
        part="".join(f"{one}.get_submodule({call.part!r}).{call.part_mode}()\n" for one in _MODELS if call.part),
        inputs=inputs,
        recording=call.recording,
        call_seed=call.call_seed,
        comparison=comparison,
    )


def _load(path: str, constants: Mapping[str, int | float]) -> str:
    given = "".join(f", {name}={value!r}" for name, value in constants.items())
    return f"load({str(Path(path).resolve())!r}{given})"


def _plain(text: str) -> str:
    """Text that ends no docstring."""
    return text.replace("\\", "\\\\").replace('"""', "'''").rstrip('"')
