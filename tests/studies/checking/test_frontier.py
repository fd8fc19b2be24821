"""`tunebench frontier`: its classes are all there is, its errors are float64's, and its frontier is Pareto's."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
import torch
from command_line import CommandLine

import tunebench
from tunebench.kernels.shared.products import ROUNDING
from tunebench.studies.checking.frontier import (
    Frontier,
    Point,
    _emulation,
    _known,
    _measure,
    _point,
    _problem,
    _resolve,
    _try,
    classes_of,
    sizes_of,
)
from tunebench.studies.faces.cli.frontier import _figure, _print
from tunebench.studies.request.measure import FrontierRequest
from tunebench.tuner.compile.cpu.compiler import CpuCompiler
from tunebench.tuner.device import find_device
from tunebench.tuner.environment import current_environment
from tunebench.tuner.errors import UserError
from tunebench.tuner.gate.accuracy import Wrong
from tunebench.tuner.kernel import Mode
from tunebench.tuner.problem import Accuracy, Problem
from tunebench.tuner.result import CacheRegime, Measurement, TrialStatus

SIZES = sizes_of("6x40x24")


def request(**options: object) -> FrontierRequest:
    return FrontierRequest(device="cpu", **options)  # type: ignore[arg-type]


def point(ms: float, rms: float, message: str = "") -> Point:
    return Point(
        "one",
        Measurement((ms,), ms, ms, ms, CacheRegime.WARM, "monotonic"),
        Wrong(9 * rms, rms),
        None,
        None,
        0,
        message,
    )


def of(*points: Point) -> Frontier:
    device = find_device("cpu")
    return Frontier(Problem({"rows": 1}), device, current_environment(device, CpuCompiler().version()), points)


@pytest.mark.parametrize(
    "wrong", ["", "64x256", "64x256x128x1", "0x1x1", "-1x2x3", "1x2x3.0", "²x1x1", "9" * 5000, "1X2X3"]
)
def test_a_size_has_three_parts(wrong: str) -> None:
    with pytest.raises(UserError, match=r"is no size of a product: give ROWSxINxOUT, such as 1024x8192x8192"):
        sizes_of(wrong)


def test_nothing_beats_the_frontier_and_it_beats_all_else() -> None:
    dice = random.Random(1)
    costs = [(dice.randint(1, 30), dice.randint(1, 30)) for _ in range(60)]
    found = of(*(point(float(ms), rms * 1e-7) for ms, rms in costs))
    best = {(one.measurement.median_ms, one.wrong.rms) for one in found.best if one.measurement and one.wrong}
    for cost in {(float(ms), rms * 1e-7) for ms, rms in costs}:
        beaten = any(other != cost and other[0] <= cost[0] and other[1] <= cost[1] for other in best)
        assert beaten is (cost not in best)


def test_what_is_no_contender_is_not_on_the_frontier() -> None:
    slow, exact = point(2.0, 1e-7), point(3.0, 1e-8)
    others = point(1.0, 1e-9, "refused"), point(1.0, math.nan), Point("none", message="not here")
    assert of(*others, slow, exact).best == [slow, exact]


def test_classes_are_the_space_by_how_it_rounds() -> None:
    found = {}
    for accuracy in Accuracy:
        resolved = _resolve(SIZES, request(), accuracy)
        space = resolved.space.enumerate(_problem(resolved, Mode.EVAL), resolved.device)
        classes = classes_of(space, _known(resolved, space, Mode.EVAL), 3)
        found[accuracy] = {one.rounding for one in classes}
        assert len(found[accuracy]) == len(classes)
        for one in classes:
            assert 1 <= len(one.candidates) == len(set(one.candidates)) <= 3
            for candidate in one.candidates:
                assert {name: value for name, value in candidate.items() if name in ROUNDING} == dict(one.rounding)
        every = {tuple((name, row[name]) for name in ROUNDING if name in row) for row in space}
        assert every == {tuple((name, row[name]) for name in ROUNDING if name in row) for row in found[accuracy]}
    rounded = [dict(one) for one in found[Accuracy.TF32] - found[Accuracy.TOLERANCE]]
    assert {"product": "parts", "part_type": "fp16", "corrections": "none", "pieces": 1} in rounded
    assert all(one["pieces"] == 7 for one in found[Accuracy.EAGER] - found[Accuracy.TOLERANCE])


@pytest.mark.slow
def test_errors_are_those_of_float64() -> None:
    points, ours = _measure(SIZES, request(), [])
    by_name = {one.product: one for one in points}
    reference = _resolve(SIZES, request(), Accuracy.EAGER).reference
    weight = reference.make_model(0, torch.device("cpu")).get_parameter("linear.weight").detach()
    for name, dtype in (("torch matmul=ieee", torch.float32), ("torch bfloat16", torch.bfloat16)):
        largest, squares = 0.0, []
        for seed in range(1, 5):
            (x,) = reference.make_inputs(seed, torch.device("cpu"))
            exact = x.double() @ weight.double().t()
            error = (x.to(dtype) @ weight.to(dtype).t()).double() - exact
            size = exact.square().mean(1, keepdim=True).sqrt()
            largest = max(largest, float((error / size).abs().max()))
            squares.append(float(error.norm() / exact.norm()) ** 2)
        told = by_name[name].wrong
        assert told is not None and told.rms == pytest.approx((sum(squares) / 4) ** 0.5, rel=0.2)
        assert told.largest == pytest.approx(largest, rel=0.3)
    assert ours == []
    assert by_name["torch bfloat16"].message == "a point of reference: operands rounded beforehand"
    assert by_name["cuBLAS's emulation of fp32"].message == "cuBLAS is for GPUs"
    tf32 = by_name["torch matmul=tf32"]
    assert tf32.message or tf32.wrong != by_name["torch matmul=ieee"].wrong
    assert torch.get_float32_matmul_precision() == "highest"


def test_half_types_have_their_own_products() -> None:
    points, _ = _measure(SIZES, request(dtype="bfloat16"), [])
    assert [one.product for one in points] == ["torch reductions=reduced", "torch reductions=float32"]
    assert all(one.wrong is not None and 1e-4 < one.wrong.rms < 1e-2 for one in points)


def test_an_emulation_that_torch_does_not_have_is_not_faked() -> None:
    with pytest.raises(UserError, match="cuBLAS is for GPUs"), _emulation(find_device("cpu")):
        pass


def test_wrong_uses(run: CommandLine, tmp_path: Path) -> None:
    for arguments, message in (
        ("64x256", "give ROWSxINxOUT"),
        ("4x4x4 --dtype float64", "the frontier has no dtype 'float64': use float32, float16, bfloat16"),
        ("4x4x4 --mode train", "a product alone has no mode 'train': use eval or frozen"),
        (f"4x4x4 --picture {tmp_path}/a.svg", "name a file that ends in .html"),
        (f"4x4x4 --picture {tmp_path}/no/a.html", "no"),
        ("4x4x4 --device gpu", "gpu"),
    ):
        assert message in run("frontier", *arguments.split()).error
    with pytest.raises(UserError, match="give ROWSxINxOUT"):
        tunebench.frontier("1x1", device="cpu")


def test_the_table_and_the_picture_mark_the_frontier(capsys: pytest.CaptureFixture[str]) -> None:
    fast, exact, beaten, refused = point(1.0, 1e-5), point(4.0, 1e-7), point(5.0, 1e-6), point(0.5, 1e-8, "refused")
    found = of(refused, fast, exact, beaten)
    _print(found, verbose=False)
    marks = [line.split()[0] for line in capsys.readouterr().out.splitlines()[3:]]
    assert marks == ["-", "*", "*", "one", "one:"]
    *_, shown, line = _figure(found).plot["data"]
    assert (shown["x"], shown["y"]) == ([1e-8], [0.5])
    assert (line["x"], line["y"], line["line"]["shape"]) == ([1e-5, 1e-7], [1.0, 4.0], "vh")


@pytest.mark.slow
def test_what_the_gate_refuses_is_told_with_its_errors() -> None:
    """TF32 is no less exact than fp32 on this CPU, and operands rounded to fp16 are."""
    resolved = _resolve(SIZES, request(), Accuracy.TF32)
    space = resolved.space.enumerate(_problem(resolved, Mode.EVAL), resolved.device)
    classes = classes_of(space, _known(resolved, space, Mode.EVAL), 1)
    (rounded,) = (one for one in classes if one.rounding.get("corrections") == "none")
    _try(resolved, request(trials=1), [rounded], math.inf, lambda _: None)
    assert rounded.chosen is not None and rounded.chosen.status is TrialStatus.CORRECTNESS
    torchs, ours = _measure(SIZES, request(), [(Accuracy.TF32, rounded.chosen.configuration)])
    told = _point(Accuracy.TF32, rounded, iter(ours))
    assert told.message.startswith("refused: ") and told.measurement and told.wrong and 1e-4 < told.wrong.rms < 1e-3
    half = next(one for one in torchs if one.product == "torch float16")
    assert half.wrong is not None and told.wrong.rms < half.wrong.rms


@pytest.mark.slow
def test_a_run_has_a_row_for_each_class_and_a_picture(run: CommandLine, tmp_path: Path) -> None:
    picture = tmp_path / "frontier.html"
    options = ("--device", "cpu", "--trials", "1", "--seconds", "12", "--json", "--picture", str(picture))
    done = run("frontier", "3x32x16", *options)
    points = done.json["points"]
    ours = [one for one in points if one["accuracy"]]
    timed = [one for one in ours if one["measurement"]]
    assert timed and all(one["wrong"]["rms"] > 0 and one["tried"] == 1 for one in timed)
    assert all(one["message"] for one in points if not one["measurement"])
    medians = [one["measurement"]["median_ms"] for one in points if one["measurement"]]
    assert medians == sorted(medians)
    best = [one for one in points if one["on_frontier"]]
    assert best and all(one["measurement"] and not one["message"] for one in best)
    assert "torch matmul=ieee" in picture.read_text(encoding="utf-8")
