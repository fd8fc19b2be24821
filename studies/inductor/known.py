"""Looks up regions: their folders, and the results by which their kernels are faster than Inductor's own code."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map

from tunebench import __version__
from tunebench.db.connection.location import default_file, file_named
from tunebench.db.queries.look_up import state_of_best
from tunebench.kernels.runtime.policy import accuracy_for
from tunebench.kernels.runtime.registry import import_model
from tunebench.kernels.runtime.selection import Known, Offer, what_is_known
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.studies.inductor.region import PREFIX, Region
from tunebench.tuner.compile.building import build_plan
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.configuration import Configuration, Value
from tunebench.tuner.device import device_of
from tunebench.tuner.errors import DatabaseError, DatabaseMissingError, TunebenchError
from tunebench.tuner.problem import Accuracy, Problem, problem_distance
from tunebench.tuner.result import Decision, Ratio
from tunebench.tuner.settings import Setting, in_force, meta_stands_for


def regions_folder() -> Path:
    """Return the folder of all regions' kernels: beside the results database, or in the user's data folder."""
    return (file_named(None) or default_file()).parent / "regions"


def state_of_regions(*names: str) -> str:
    """Return a text that changes with the regions' kernels, what is best of them, and the accuracy asked for.

    Args:
        names: of the regions; without any, all that there are.
    """
    beginnings = names or (PREFIX,)
    found = (file for beginning in beginnings for file in regions_folder().glob(f"{beginning}*/**/*"))
    stamps = sorted((str(file), file.stat().st_mtime_ns) for file in found if file.suffix in (".py", ".cu", ".json"))
    try:
        results = "".join(map(state_of_best, beginnings))
    except DatabaseMissingError:
        results = ""
    except DatabaseError as error:
        warnings.warn(f"graphs are compiled without results for their regions: {error}", RuntimeWarning, stacklevel=2)
        results = ""
    asked = accuracy_for(None), *(in_force(Setting, kind) for kind in ("cuda", "cpu"))
    return f"tunebench {hashlib.sha256(repr((__version__, stamps, results, asked)).encode()).hexdigest()}"


@dataclass
class RegionCall:
    """The call of a region's kernel in a compiled graph, whose text has the `repr` of this."""

    folder: str
    configuration: Mapping[str, Value]
    accuracy: str
    _runs: dict[tuple[torch.Size, ...], Any] = field(default_factory=dict, init=False, repr=False)

    def __call__(self, *inputs: torch.Tensor) -> Any:
        """Run the kernel; it is loaded in the first call of each shape."""
        key = tuple([one.shape for one in inputs])
        run = self._runs.get(key)
        if run is None:
            run = self._runs[key] = self._made(inputs)
        return run(*inputs)

    def _made(self, inputs: tuple[torch.Tensor, ...]) -> Any:
        module = model_in(Path(self.folder))().eval()
        problem, device = module.problem(*inputs), device_of(inputs[0].device)
        if problem is None:  # at another shape than it was measured for
            return partial(_in_memory_of_its_own, module.reference_forward)
        problem = problem.at(Accuracy(self.accuracy))
        kernel, configuration = module.kernel, Configuration(self.configuration)
        if not kernel.space.admits(configuration, problem, device):
            configuration = kernel.space.default_for(problem, device)
        compiler = compiler_for(device, languages=kernel.languages)
        plan = build_plan(kernel, configuration, problem, device, compiler)
        module.make_ready(plan)
        return partial(module.tuned_forward, plan)


def _in_memory_of_its_own(run: Callable[..., Any], *inputs: torch.Tensor) -> Any:
    """Run a function whose results are no views of its inputs, which Inductor may write over."""
    memory = {one.untyped_storage().data_ptr() for one in inputs}
    return tree_map(lambda one: one.clone() if one.untyped_storage().data_ptr() in memory else one, run(*inputs))


def call_of(region: Region) -> RegionCall | None:
    """Return the call of a region's kernel, where results say that it is faster than Inductor's own code."""
    try:
        evidence = evidence_for(region)
    except TunebenchError as error:
        warnings.warn(f"{region.name} is left to Inductor: {error}", RuntimeWarning, stacklevel=2)
        return None
    if evidence is None or not evidence.is_faster:
        return None
    return RegionCall(str(regions_folder() / region.name), dict(evidence.configuration), evidence.accuracy.value)


@dataclass(frozen=True)
class Evidence:
    """A result that decides between a region's kernel and Inductor's own code.

    Attributes:
        accuracy: that the program asked for.
        ratio: of the kernel's speed to that of the reference, or of the reference under torch.compile where it is less.
    """

    configuration: Configuration
    accuracy: Accuracy
    ratio: Ratio

    @property
    def is_faster(self) -> bool:
        """Whether the kernel is faster for certain."""
        return self.ratio.decision is Decision.FASTER


def is_lost(region: Region) -> bool:
    """Whether results say that Inductor's own code is as fast as a region's kernel, or that it has no kernel."""
    try:
        evidence = evidence_for(region)
    except TunebenchError:
        return True
    return evidence is not None and not evidence.is_faster


def evidence_for(region: Region) -> Evidence | None:
    """Return what decides between a region's kernel and Inductor's own code; None where nothing was measured.

    Raises:
        TunebenchError: the kernel cannot be loaded.
    """
    folder = regions_folder() / region.name
    if not folder.is_dir():
        return None
    model, device = model_in(folder), device_of(region.device)
    problem = problem_of(model, region)
    if problem is None or (region.is_dynamic and model.kernel.compiled_axes):  # no call waits for another build
        return None
    known = over_compiled(what_is_known(model.kernel, problem, device))
    choice = known.evidence()
    offers = [one for one in (*known.recorded, *known.shipped) if one.over_reference and one.configuration is not None]
    if choice is None or not offers:
        return None
    # Where the choice is none of the kernel's, the nearest result has the ratio by which it was slower.
    best = min(
        offers, key=lambda one: (one.configuration != choice.configuration, problem_distance(one.problem, problem))
    )
    assert best.configuration is not None and best.over_reference is not None
    return Evidence(Configuration(best.configuration), problem.accuracy, best.over_reference)


def problem_of(model: type[TunedModule], region: Region) -> Problem | None:
    """Return the problem of a region's kernel at the sizes of a graph, at the accuracy that the program asks for; None
    where the kernel cannot serve it."""
    settings = in_force(Setting, region.device.type)
    inputs = [one.on_meta for one in region.inputs]
    with meta_stands_for(region.device.type, settings), torch._subclasses.fake_tensor.unset_fake_temporarily():
        problem = model().eval().identify(*inputs)
    return problem and problem.at(Accuracy.under(problem.options, accuracy_for(model.accuracy)))


def over_compiled(known: Known) -> Known:
    """Return what is known where the opponent is the reference under torch.compile, if that is the faster one."""

    def changed(offer: Offer) -> Offer:
        compiled, reference = offer.over_compiled, offer.over_reference
        if compiled is None or reference is None:
            return offer if offer.was_slower else replace(offer, over_reference=None)
        return replace(offer, over_reference=min(compiled, reference, key=attrgetter("low")))

    return replace(known, recorded=[*map(changed, known.recorded)], shipped=[*map(changed, known.shipped)])


def model_in(folder: Path) -> type[TunedModule]:
    """Return the model of a region's folder as it is now, loaded once."""
    return _loaded(folder, tuple((file.name, file.stat().st_mtime_ns) for file in sorted(folder.glob("*.*"))))


@cache
def _loaded(folder: Path, _state: tuple[tuple[str, int], ...]) -> type[TunedModule]:
    return import_model(str(folder))
