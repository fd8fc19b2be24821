"""`warm` and `bundle`, as typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from command_line import CommandLine
from sample_kernel import WriteKernel

import tunebench
from tunebench.kernels.runtime.policy import set_policy
from tunebench.kernels.runtime.selection import Tier


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> CommandLine:
    monkeypatch.setenv("TUNEBENCH_CACHE", str(tmp_path / "builds"))
    return CommandLine(monkeypatch, capsys)


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    path = tmp_path / "problems.json"
    content = [{"kernel": "weigh", "axes": {"n": n}, "dtype": "float32"} for n in (8, 16)]
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


@pytest.mark.slow
def test_what_is_built_ahead_serves_the_first_call(ask: CommandLine, problems: Path, write_kernel: WriteKernel) -> None:
    factory = write_kernel()
    folder = factory.kernel.folder
    ran = ask("warm", folder, "--problems", problems, "--device", "cpu")
    assert ran.code == 0 and "weigh for x86_64, n=8 float32 and 1 more: built in" in ran.out
    (again,) = ask("warm", folder, "--problems", problems, "--device", "cpu", "--json").json
    assert again["cached"] and again["kernel"] == "weigh" and len(again["problems"]) == 2
    set_policy(wait=False)
    model = factory()
    with torch.no_grad():
        model(torch.rand(8))
    assert [choice.tier for choice in model.choices.values()] == [Tier.DEFAULT]


def test_saved_choices_are_problems(
    ask: CommandLine, write_kernel: WriteKernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    factory = write_kernel()
    model = factory()
    with torch.no_grad():
        model(torch.rand(8))
    tunebench.save_choices(tmp_path / "choices.json", model)
    monkeypatch.setenv("TUNEBENCH_CACHE", str(tmp_path / "others"))
    (built,) = ask(
        "warm", factory.kernel.folder, "--problems", tmp_path / "choices.json", "--device", "cpu", "--json"
    ).json
    assert not built["cached"] and built["problems"] == ["n=8 float32"]


def test_a_refused_build_is_told(ask: CommandLine, problems: Path, write_kernel: WriteKernel) -> None:
    folder = write_kernel(source={"weight[0]": "height[0]"}).kernel.folder
    for_cpu = ("--problems", problems, "--arch", "cpu")
    ran = ask("warm", folder, *for_cpu)
    assert ran.code == 1 and "refused: g++ refused weigh.cu" in ran.out
    assert "weigh for x86_64: g++ refused weigh.cu" in ask("bundle", folder / "out", folder, *for_cpu).error


@pytest.mark.usefixtures("nvrtc")
def test_a_bundle_for_gpus_that_are_not_here(
    ask: CommandLine, problems: Path, write_kernel: WriteKernel, tmp_path: Path
) -> None:
    folder = write_kernel().kernel.folder
    options = ("--problems", problems, "--arch", "sm_80", "--arch", "sm_90")
    written = ask("bundle", tmp_path / "bundle", folder, *options, "--json").json
    assert [one["architecture"] for one in written] == ["sm_80", "sm_90"]
    for one in written:
        assert (tmp_path / "bundle" / one["file"]).read_bytes().startswith(b"\x7fELF")
        assert one["entry_points"]["weigh"]["registers"] > 0
    ran = ask("bundle", tmp_path / "bundle", folder, *options[:4])
    assert ran.code == 0 and "sm_80" in ran.out
    assert len(list((tmp_path / "bundle").glob("*.cubin"))) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--arch", "sm_12"), "'sm_12' is no architecture known here: use one of sm_75"),
        (("--problems", "nowhere.json"), "nowhere.json: cannot be read: No such file"),
        (("--problems", __file__), "no file of problems"),
        (("--device", "cpu"), "weigh: no result is known on"),
    ],
)
def test_wrong_questions_are_one_line(
    ask: CommandLine, write_kernel: WriteKernel, arguments: tuple[str, ...], message: str
) -> None:
    assert message in ask("warm", write_kernel().kernel.folder, *arguments).error


AXES = {"rows": 8, "in_features": 8, "out_features": 8}
EVAL = {"mode": "eval"}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"axes": {"n": 8}, "options": EVAL}, "n=8 float32 mode=eval is no problem of gemm_scale_bn"),
        ({"axes": AXES}, "its option 'mode' is one of eval, frozen, train"),
        ({"axes": AXES, "options": {"mode": "evil"}}, "its option 'mode' is one of eval, frozen, train"),
        ({"axes": {**AXES, "rows": 0}, "options": EVAL}, "'rows' is 0, and nothing empty is served"),
        ({"axes": AXES, "options": EVAL, "dtype": "float8"}, "its dtypes are float32, float64, float16, bfloat16"),
        ({"axes": {**AXES, "rows": "8"}, "options": EVAL}, "no file of problems (0.axes.rows: str instead of int)"),
        ({"options": EVAL}, "no file of problems (0.axes: is missing)"),
        (None, "problems.json: it is empty"),
    ],
)
def test_what_is_no_problem_is_one_line(
    ask: CommandLine, tmp_path: Path, entry: dict[str, object] | None, message: str
) -> None:
    path = tmp_path / "problems.json"
    entries = [] if entry is None else [{"kernel": "gemm_scale_bn", **entry}]
    path.write_text(json.dumps(entries), encoding="utf-8")
    assert message in ask("warm", "--problems", path, "--device", "cpu").error
    if entry is None:
        targeted = ask("warm", "scalar_mul", "--problems", path, "--device", "cpu")
        assert "it has no problem of scalar_mul" in targeted.error
