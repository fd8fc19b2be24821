"""`tunebench bench`: what it measures, what it says of it, and that one failing kernel costs no other its row."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from command_line import CommandLine
from sample_kernel import WriteKernel

from tunebench.studies.checking.bench import (
    COMPILE_MODES,
    COMPILED_DEFAULT,
    TUNED,
    BenchCase,
    Ceilings,
    bench,
    cases_of,
    measure_case,
    measure_ceilings,
    share_weights,
)
from tunebench.studies.request.measure import BenchRequest
from tunebench.studies.tuning.study_file import read_study_file
from tunebench.tuner.errors import UnknownNameError, UserError
from tunebench.tuner.kernel import Mode, prepare_model
from tunebench.tuner.problem import Work
from tunebench.tuner.result import Baseline
from tunebench.tuner.study.account import Activity

CEILINGS = Ceilings(copy_gbs=4000.0, read_gbs=4400.0, gemm_tflops={"fp32": 50.0, "fp16": 700.0})


def folder_of(write_kernel: WriteKernel, **changes: dict[str, str]) -> str:
    return str(write_kernel(**changes).kernel.folder)


def small(kernel: str, **options: object) -> BenchCase:
    return BenchCase(kernel, Mode.EVAL, device="cpu", compiled=(), seconds=0.1, **options)  # type: ignore[arg-type]


def test_a_case_has_every_figure(write_kernel: WriteKernel) -> None:
    result = measure_case(small(folder_of(write_kernel)), CEILINGS)
    baselines = {Baseline.REFERENCE, Baseline.DEFAULT, Baseline.COPY}
    assert set(result.speedups) == baselines
    assert set(result.timings) == baselines | {TUNED}
    for timing in result.timings.values():
        assert 0 < timing.low_ms <= timing.median_ms <= timing.high_ms
    assert result.right and 0 <= result.errors[TUNED].multiple_of_reference <= 2
    assert result.tier == "default"
    assert dict(result.configuration or {}) == {"block_size": 64, "blocks": 2, "variety": 0}
    assert result.share == pytest.approx((result.floor_ms or math.nan) / result.timings[TUNED].median_ms)
    assert {Activity.REFERENCE, Activity.QUICK, Activity.ROUNDS} <= result.spent.keys()


def test_a_wrong_model_is_said_to_be_wrong(write_kernel: WriteKernel) -> None:
    result = measure_case(small(folder_of(write_kernel, source={"weight[0];": "weight[0] * 1.01f;"})), None)
    assert not result.right
    assert result.wrong == (Baseline.DEFAULT,) and "is beyond the gate's bound" in result.notes[0]
    assert 0.005 < result.errors[TUNED].max_relative < 0.05
    assert result.floor_ms is None and result.share is None


def test_a_configuration_given(write_kernel: WriteKernel) -> None:
    folder = folder_of(write_kernel)
    result = measure_case(small(folder, configuration={"block_size": 256}), None)
    assert (result.tier, dict(result.configuration or {})) == ("given", {"block_size": 256, "blocks": 2, "variety": 0})
    for wrong, message in (({"block_size": 100}, "no value 100"), ({"block": 64}, "unknown tunable")):
        with pytest.raises(UserError, match=message):
            measure_case(small(folder, configuration=wrong), None)
    with pytest.raises(UserError, match=r"not valid for n=2112 float32 x=64x33: \w+ cannot be so; the nearest that is"):
        measure_case(small(folder, configuration={"block_size": 256, "blocks": 4}), None)


def test_a_default_that_does_not_compile_is_a_note(write_kernel: WriteKernel) -> None:
    broken = {"weight[0];": "weight[0]; static_assert(block_size != 64);"}
    case = small(folder_of(write_kernel, source=broken), configuration={"block_size": 32})
    result = measure_case(case, None)
    assert Baseline.DEFAULT not in result.speedups
    assert any(note.startswith("default configuration: ") for note in result.notes)


def test_the_floor_is_the_best_rate_that_binds() -> None:
    assert CEILINGS.floor_ms(Work(4_400_000_000, 1), in_cache=False) == (pytest.approx(1.0), "read rate")
    assert CEILINGS.floor_ms(Work(1, 700_000_000_000), in_cache=False) == (pytest.approx(1.0), "fp16 products")
    assert CEILINGS.floor_ms(Work(4_400_000_000, 7), in_cache=True)[1] == "fp16 products"


def test_ceilings_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    from tunebench.studies.checking import bench as module
    from tunebench.tuner.device import DeviceKind

    monkeypatch.setitem(module._GEMM, DeviceKind.CPU, 64)
    monkeypatch.setitem(module._STREAM_BYTES, DeviceKind.CPU, 1 << 20)
    found = measure_ceilings("cpu")
    assert found.copy_gbs > 0 and found.read_gbs > 0 and list(found.gemm_tflops) == ["fp32"]


def test_cases(write_kernel: WriteKernel, tmp_path: Path) -> None:
    study = tmp_path / "study.toml"
    study.write_text('kernel = "gemm_scale_bn"\nmodes = ["train"]\n[sizes]\nin_features = 64\n', encoding="utf-8")
    cases = cases_of(["scalar_mul", str(study)], BenchRequest(batches=(8, 16), sizes={"N": 32, "out_features": 16}))
    assert [(case.kernel, case.mode, dict(case.sizes)) for case in cases] == [
        ("scalar_mul", "eval", {"N": 32, "M": 8}),
        ("scalar_mul", "eval", {"N": 32, "M": 16}),
        ("gemm_scale_bn", "train", {"in_features": 64, "out_features": 16, "batch_size": 8}),
        ("gemm_scale_bn", "train", {"in_features": 64, "out_features": 16, "batch_size": 16}),
    ]
    study.write_text('kernel = "scalar_mul"\ndtype = "float16"\n', encoding="utf-8")
    assert [case.dtype for case in cases_of([str(study), "scalar_mul"], BenchRequest())] == ["float16", None]
    assert [case.dtype for case in cases_of([str(study)], BenchRequest(dtype="bfloat16"))] == ["bfloat16"]
    own = folder_of(write_kernel)
    with pytest.raises(UnknownNameError, match="unknown dtype of kernel 'weigh' 'float16'"):
        cases_of([own], BenchRequest(dtype="float16"))
    assert [case.mode for case in cases_of([own, "gemm_scale_bn"], BenchRequest(modes=("train",)))] == ["train"]
    with pytest.raises(UnknownNameError, match="unknown size 'rowz'; did you mean rows"):
        cases_of([own], BenchRequest(sizes={"rowz": 3}))
    with pytest.raises(UnknownNameError, match="mode of kernel 'weigh'"):
        cases_of([own], BenchRequest(modes=("train",)))
    with pytest.raises(UserError, match="none of the kernels has mode frozen"):
        cases_of([own, "scalar_mul"], BenchRequest(modes=("frozen",)))
    with pytest.raises(UserError, match="give a positive number"):
        cases_of([own], BenchRequest(sizes={"rows": -3}))
    with pytest.raises(UserError, match="name one kernel beside --config"):
        cases_of([own, "scalar_mul"], BenchRequest(configuration={"block_size": 64}))


@pytest.mark.parametrize("mode", Mode)
def test_a_study_file_names_modes(tmp_path: Path, mode: Mode) -> None:
    study = tmp_path / "study.toml"
    study.write_text(f'kernel = "scalar_mul"\nmodes = ["{mode}"]\n', encoding="utf-8")
    assert read_study_file(study).modes == (mode,)
    study.write_text('kernel = "scalar_mul"\nmodes = ["test"]\n', encoding="utf-8")
    with pytest.raises(UserError, match="Input should be 'eval', 'train' or 'frozen' \\(got 'test'\\)"):
        read_study_file(study)


@pytest.mark.slow
def test_a_kernel_that_fails_or_crashes_costs_no_other_its_row(write_kernel: WriteKernel) -> None:
    crashing = folder_of(write_kernel, model={"y = torch.empty_like(x)": "import os; os.abort()"})
    failing = folder_of(write_kernel, model={"y = torch.empty_like(x)": "raise ValueError('not today\\n')"})
    told: list[str] = []
    outcome = bench([small(crashing), small(failing), small(folder_of(write_kernel))], told.append)
    assert [result.kernel for result in outcome.results] == ["weigh"]
    assert [failure.message for failure in outcome.failures] == [
        "the process was killed by SIGABRT",
        "ValueError: not today (model.py:26)",
    ]
    assert outcome.ceilings is not None and len(told) == 6


@pytest.mark.slow
def test_the_command(write_kernel: WriteKernel, run: CommandLine) -> None:
    folder = folder_of(write_kernel)
    options = ("--no-compile", "--seconds", "0.1", "--device", "cpu")
    done = run("bench", folder, *options, "--json")
    assert done.code == 0, done
    (result,) = done.json["results"]
    # Nobody measured it: a duel says whether the kernel's default serves.
    assert result["tier"] in ("default", "reference") and result["right"] is True
    assert set(result["speedups"]) == {"reference", "default", "copy"}
    last = run("bench", folder, *options, "--batch", "8").out.rstrip().splitlines()[-1]
    assert last.split()[:3] == ["weigh", "n=264", "float32"] and last.split()[-1] in ("default", "reference")
    assert "give one of them" in run("bench", folder, "--json", "--csv").error
    assert "has no value 65" in run("bench", folder, "--config", "block_size=65").error


@pytest.mark.slow
def test_both_modes_of_torch_compile_are_contenders(write_kernel: WriteKernel) -> None:
    result = measure_case(replace(small(folder_of(write_kernel)), compiled=tuple(COMPILE_MODES)), None)
    for name in (COMPILED_DEFAULT, Baseline.COMPILED):
        assert result.speedups[name].low > 0 and result.errors[name].multiple_of_reference <= 2


def test_csv_has_plain_figures(write_kernel: WriteKernel) -> None:
    from tunebench.studies.faces.cli.bench import _flat

    row = _flat(measure_case(small(folder_of(write_kernel)), CEILINGS))
    for name in ("tuned_ms", "reference_low_ms", "over_reference", "over_default_high", "share_of_roofline"):
        assert float(row[name]) > 0
    assert (row["kernel"], row["tier"], row["right"]) == ("weigh", "default", "true")


def test_a_reference_may_have_no_sizes(write_kernel: WriteKernel) -> None:
    folder = folder_of(write_kernel, reference={"rows = 64\ncolumns = 33\n": "", "(rows, columns)": "(64, 33)"})
    assert [dict(case.sizes) for case in cases_of([folder], BenchRequest(device="cpu"))] == [{}]
    with pytest.raises(UserError, match="batch_size"):
        cases_of([folder], BenchRequest(device="cpu", batches=(8,)))


def test_a_model_reads_the_references_own_weights(write_kernel: WriteKernel) -> None:
    factory = write_kernel()
    reference = factory.kernel.reference()
    models = [prepare_model(reference, Mode.EVAL, torch.device("cpu"), maker) for maker in (None, factory)]
    inputs = reference.make_inputs(0, torch.device("cpu"))
    before = models[1](*inputs)
    with torch.no_grad():
        for parameter in models[0].parameters():
            parameter.mul_(3)
    share_weights(models[1], models[0])
    own = [{name: one.data_ptr() for name, one in model.named_parameters()} for model in models]
    assert own[0] and own[0] == own[1]
    assert torch.equal(models[1](*inputs), models[0](*inputs)) and not torch.equal(models[1](*inputs), before)
