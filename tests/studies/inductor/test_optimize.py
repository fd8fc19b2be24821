"""`optimize`: regions become problems that can be run, are tuned once, and are told as a table."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import CommandLine
from recorded_regions import record
from test_package import PROJECT
from torch import fx
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache, run_and_get_code

import tunebench
from tunebench.db.connection.database import open_database
from tunebench.db.queries.studies import studies
from tunebench.kernels.runtime.selection import Known, Offer
from tunebench.studies.inductor import optimize as module
from tunebench.studies.inductor.backend import tunebench as backend
from tunebench.studies.inductor.find import Probe, RegionInModel, find_regions
from tunebench.studies.inductor.known import RegionCall, over_compiled, regions_folder
from tunebench.studies.inductor.optimize import problem_text
from tunebench.studies.inductor.region import Region, Value
from tunebench.studies.inductor.verdicts import is_inductors, key_of, leave_to_inductor
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import find_device
from tunebench.tuner.errors import TunebenchError
from tunebench.tuner.problem import Problem
from tunebench.tuner.reference import load_reference
from tunebench.tuner.result import Ratio
from tunebench.tuner.space import SearchSpace, Tunable
from tunebench.tuner.timing.torch_compile import apart

MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return torch.tanh(self.layer(x)) + x

def get_inputs():
    return [torch.randn(4, 8)]

def get_init_inputs():
    return []
"""


def test_the_entry_point_is_the_back_end() -> None:
    (name, place), *others = PROJECT["entry-points"]["torch_dynamo_backends"].items()
    assert (name, others) == ("tunebench", [])
    assert EntryPoint(name, place, "torch_dynamo_backends").load() is backend


def test_a_region_is_a_problem_whose_inputs_are_like_those_that_it_met() -> None:
    text = "import torch\nfrom torch import nn\n\n\nclass Model(nn.Module):\n    def forward(self, x0, x1, x2, x3):\n"
    values = (
        Value("buf0", (0, 1), (5, 7), torch.float32),
        Value("buf1", (0, 1), (5, 1), torch.bfloat16),
        Value("buf2", (0,), (5,), torch.int64),
        Value("buf3", (), (), torch.bool),
    )
    region = Region(text + "        return x0\n", values, values[:1], (), torch.device("cpu"), False, "")
    made = problem_text(region, [(-2.0, 2.0), (0.0, 1.0), (3.0, 4.0), (0.0, 1.0)])
    reference = load_reference(Path("reference.py"), text=made)
    assert reference.sizes == {"n0": 5, "n1": 7}
    drawn = reference.make_inputs(0, torch.device("cpu"))
    assert [(one.dtype, tuple(one.shape)) for one in drawn] == [(one.dtype, one.shape) for one in values]
    assert drawn[0].min() < 0 <= drawn[1].min()
    assert set(drawn[2].tolist()) <= {3, 4}


def test_a_regions_opponent_is_compiled_in_the_models_mode() -> None:
    model, x = torch.nn.Linear(8, 8), torch.randn(4, 8)
    for mode, wanted in ((None, "default"), ("max-autotune", "max-autotune-no-cudagraphs")):
        with torch.no_grad():
            (found,) = find_regions(model, (x,), mode)
        assert (
            load_reference(Path("reference.py"), text=problem_text(found.region, found.ranges))
            .make_model(0, torch.device("cpu"))
            .compile_mode
            == wanted
        )


def test_regions_are_found_where_pytorch_compiles_no_more_programs_of_a_function(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(MODEL, encoding="utf-8")
    model, given = load_reference(file).make_model(0, torch.device("cpu")).eval(), (torch.randn(4, 8),)
    with torch.no_grad():
        for rows in range(2, 4 + torch._dynamo.config.recompile_limit):
            torch.compile(model, backend="eager", dynamic=False)(torch.randn(rows, 8))
        (found,) = find_regions(model, given)
        module.write_kernel(found, regions_folder() / found.region.name)
        record(found.region, Ratio(1.25, 1.2, 1.3, 40, 0.99))
        _, codes = run_and_get_code(lambda: tunebench.optimize(model, *given)(*given))
    assert any("tunebench_inductor.region" in code for code in codes)  # though Inductor's own may be faster here


@pytest.mark.parametrize("is_product", [False, True])
def test_regions_are_looked_for_again_behind_a_product_that_lost(
    is_product: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, x, searches = torch.nn.Linear(8, 8, bias=False).eval(), torch.randn(4, 8), list[object]()

    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(layer(x) if is_product else torch.sin(x))

    def find(*given: Any) -> list[RegionInModel]:
        found = find_regions(*given)
        if not searches:
            module.write_kernel(found[0], regions_folder() / found[0].region.name)
            record(found[0].region, Ratio(0.8, 0.75, 0.85, 40, 0.99))
        searches.append(found)
        return found

    monkeypatch.setattr(module, "find_regions", find)
    with torch.no_grad(), open_database() as database:
        report = module.optimize_regions(model, (x,), 0, database, lambda _: lambda _: None)
    assert sorted(one.found.region.is_product for one in report.regions) == [False] * is_product + [is_product]
    assert len(searches) == 1 + is_product


def test_what_is_measured_of_a_product_has_no_gaps() -> None:
    """On a GPU alone Inductor's own code leaves some behind rows of 479 elements: here a function stands for it."""
    value = Value("buf0", (0, 1), (4, 5), torch.float32)
    probe = Probe()
    probe.regions.append(Region("", (value,), (value,), (), torch.device("cpu"), False, ""))
    probe._compiled[probe.regions[0].key] = lambda x: torch.nn.functional.pad(x, (0, 3))[:, :5]
    found = probe.run(0, [torch.ones(4, 5)])
    assert found.is_contiguous() and torch.equal(found, torch.ones(4, 5))


def test_a_graph_is_inductors_until_something_else_is_known_of_its_regions() -> None:
    (folder := regions_folder() / "region_x").mkdir(parents=True)
    leave_to_inductor(["0"], {"region_x"})
    assert is_inductors("0") and not is_inductors("1")
    (regions_folder() / "region_y").mkdir()
    (regions_folder() / "region_y" / "model.py").touch()
    assert is_inductors("0")
    (folder / "model.py").touch()
    assert not is_inductors("0")
    leave_to_inductor(["0"], {"region_x"})
    assert is_inductors("0")
    (file,) = regions_folder().glob("inductor/0.json")
    file.write_text(file.read_text(encoding="utf-8")[:-3], encoding="utf-8")
    assert not is_inductors("0")


def test_a_graph_has_one_key_whatever_its_values_are_called() -> None:
    layer, x, keys = torch.nn.Linear(8, 8), torch.randn(4, 8), list[str]()

    def model(x: torch.Tensor) -> torch.Tensor:
        y = layer(x)
        return torch.tanh(y)

    def backend(graph: fx.GraphModule, inputs: list[torch.Tensor]) -> fx.GraphModule:
        keys.append(key_of(graph, inputs, {}))
        return graph

    for one in (model, apart(model), lambda x: torch.sin(layer(x))):
        torch.compile(one, backend=backend)(x)
    assert keys[0] == keys[1] != keys[2]


@pytest.mark.slow
def test_a_model_without_a_faster_region_has_the_code_that_inductor_made_of_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    x, model = torch.randn(4, 8), torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh())
    for found in find_regions(model, (x,)):
        with suppress(TunebenchError):
            module.write_kernel(found, regions_folder() / found.region.name)
            record(found.region, Ratio(0.9, 0.88, 0.92, 40, 0.99))

    def kept(compiled: Callable[..., torch.Tensor]) -> int:
        """Compile a training step anew, and count the programs that were in PyTorch's cache."""
        torch._dynamo.reset()
        counters.clear()
        compiled(x).sum().backward()
        return counters["inductor"]["fxgraph_cache_hit"]

    with fresh_cache():
        assert kept(torch.compile(model)) == 0
        optimized = tunebench.optimize(model, x, seconds=0)
        assert kept(optimized) == kept(torch.compile(model, backend="tunebench")) == 2
        told = capsys.readouterr().out
        assert told.count("slower") > 1 and "the model's code is Inductor's own" in told
        assert "torch_compile.py" not in told  # no code of ours is the region's
        (verdict,) = regions_folder().glob("inductor/*.json")
        verdict.unlink()
        assert kept(torch.compile(model, backend="tunebench")) == 0


def test_a_call_is_written_as_python() -> None:
    call = RegionCall("/a/region_1", {"block_size": 64}, "tf32")
    assert eval(repr(call), {"RegionCall": RegionCall}) == call


@pytest.mark.parametrize(
    "compiled, reference, wanted",
    [(1.2, 3.0, 1.2), (1.2, 1.1, 1.1), (0.9, 3.0, 0.9), (None, 3.0, None), (None, 0.5, 0.5)],
)
def test_the_opponent_is_the_faster_one(compiled: float | None, reference: float, wanted: float | None) -> None:
    def ratio(value: float | None) -> Ratio | None:
        return None if value is None else Ratio(value, 0.99 * value, 1.01 * value, 40, 0.99)

    cpu, problem = find_device("cpu"), Problem({"n": 4})
    winner = Configuration({"block": 64})
    offer = Offer(winner, problem, cpu.name, cpu.architecture, "trial 1", (), ratio(reference), ratio(compiled))
    known = over_compiled(Known(SearchSpace((Tunable("block", (64,)),)), problem, cpu, [offer], []))
    assert known.recorded[0].over_reference == ratio(wanted)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("nothing.py", "nothing.py: cannot read it"),
        ("model.py --seconds -1", "'--seconds'"),
        ("model.py --device cuda:99", "cuda:99"),
    ],
)
def test_a_question_that_is_wrong_is_one_line(
    run: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODEL, encoding="utf-8")
    assert message in run("optimize", *arguments.split()).error


@pytest.mark.slow
@pytest.mark.usefixtures("short_studies")
def test_regions_are_tuned_and_told(run: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST_SECONDS", 4.0)
    file = tmp_path / "model.py"
    file.write_text(MODEL, encoding="utf-8")
    done = run("optimize", file, "--device", "cpu", "--seconds", "6")
    assert done.code == 0, done.err
    assert "region_" in done.out and "model.py:11" in done.out
    with open_database(read_only=True) as database:
        (study,) = studies(database)
    assert study.kernel in done.out and study.trials > 0


SLOW = """
import time

own = ModelNew.tuned_forward


def after_a_while(*given):
    time.sleep(0.02)
    return own(*given)


ModelNew.tuned_forward = after_a_while
"""


@pytest.mark.slow
def test_what_was_tuned_is_not_tuned_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "model.py"
    file.write_text(MODEL, encoding="utf-8")
    reference = load_reference(file)
    model, given = reference.make_model(0, torch.device("cpu")).eval(), reference.make_inputs(0, torch.device("cpu"))
    with torch.no_grad():
        (found,) = find_regions(model, given)
        module.write_kernel(found, folder := regions_folder() / found.region.name)
        with (folder / "model.py").open("a", encoding="utf-8") as text:
            text.write(SLOW)
        record(found.region, Ratio(1.25, 1.2, 1.3, 40, 0.99))
        compiled, codes = run_and_get_code(lambda: tunebench.optimize(model, *given, mode="reduce-overhead")(*given))
        torch.testing.assert_close(compiled, model(*given))
    assert any("tunebench_inductor.region" in code for code in codes)  # the first is of the model as Inductor runs it
    told = capsys.readouterr().out
    assert "1.250× [1.200, 1.300] faster" in told
    # A kernel that was said to be faster, and that costs this model more than all of its own code.
    assert "the whole model: 0." in told and "slower than by Inductor's own code, which is what" in told
    assert "tunebench_inductor.region" not in codes[-1]
    # Every other program compiles the model so, until there is another result.
    for ratio in (None, Ratio(1.26, 1.2, 1.3, 40, 0.99)):
        if ratio is not None:
            record(found.region, ratio)
        torch.compiler.reset()
        with torch.no_grad():
            _, codes = run_and_get_code(torch.compile(model, backend="tunebench", mode="reduce-overhead"), *given)
        assert ("tunebench_inductor.region" in codes[-1]) is (ratio is not None)
    with open_database(read_only=True) as database:
        assert len(studies(database)) == 1
