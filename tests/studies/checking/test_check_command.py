"""`tunebench check` on kernels and on anyone's files: passes, refusals, crashes and wrong questions."""

import copy
import runpy
from pathlib import Path

import pytest
import torch
from command_line import CommandLine
from sample_kernel import WriteKernel
from torch import nn

import tunebench
from tunebench.studies.checking.check import check
from tunebench.studies.checking.request import CheckRequest
from tunebench.tuner.errors import UserError

FILE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, features, offset):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.offset = offset

    def forward(self, x):
        return torch.relu(self.linear(x)) + self.offset

batch = 12
features = 10
offset = 0.5

def get_inputs():
    return [torch.rand(batch, features)]

def get_init_inputs():
    return [features, offset]
"""

NEW = """
import torch
from torch import nn

class ModelNew(nn.Module):
    def __init__(self, features, offset):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.offset = offset

    def forward(self, x):
        return torch.relu(torch.nn.functional.linear(x, self.linear.weight, self.linear.bias)) + self.offset
"""


def written(folder: Path, text: str, name: str = "submission.py") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.slow
def test_a_kernels_configuration_passes(run: CommandLine, write_kernel: WriteKernel) -> None:
    folder = write_kernel().kernel.folder
    done = run("check", folder, "--device", "cpu", "--config", "block_size=128", "--json")
    assert done.code == 0, done.err
    (report,) = done.json
    assert report["passed"] and report["reason"] == ""
    assert report["configuration"] == {"block_size": 128, "blocks": 2, "variety": 0}
    names = [stage["name"] for stage in report["stages"]]
    assert names.index("structure") < names.index("values, draw 1") < names.index("sizes") < names.index("sanitizer")
    assert all(stage["seconds"] >= 0 for stage in report["stages"])
    assert report["errors"]["max_relative"] < 1e-6


def test_a_broken_kernel_is_refused_with_the_stage(run: CommandLine, write_kernel: WriteKernel) -> None:
    folder = write_kernel(source={"i < n;": "i < n - 1;"}).kernel.folder
    done = run("check", folder, "--device", "cpu", "-v")
    assert done.code == 1
    lines = done.out.splitlines()
    assert any("passed" in line and "structure" in line for line in lines)
    assert any("REFUSED" in line and "written" in line and "1 of 2112 elements" in line for line in lines)
    assert lines[-1].endswith("eval: NOT right for the problem: 1 of 2112 elements were never written")
    shorter = run("check", folder, "--device", "cpu").out.splitlines()
    assert [line.split()[1] for line in shorter if line.startswith("eval ")] == ["REFUSED"] * len(
        [line for line in lines if "REFUSED" in line]
    )
    assert shorter[-1] == lines[-1]


@pytest.mark.slow
def test_a_file_with_both_models_passes_and_takes_other_sizes(run: CommandLine, tmp_path: Path) -> None:
    path = written(tmp_path, FILE + NEW)
    done = run("check", path, "--size", "features=21", "--device", "cpu", "--mode", "eval", "--json")
    assert done.code == 0, done.err
    assert done.json[0]["mode"] == "eval"


@pytest.mark.slow
def test_every_fault_of_a_file_shows_in_one_run(run: CommandLine, tmp_path: Path) -> None:
    reference = written(tmp_path, FILE, "reference.py")
    frozen = NEW.replace("self.offset = offset", "self.offset = 0.5").replace(
        "torch.relu(", "torch.nan_to_num(torch.relu("
    )
    frozen = frozen.replace("self.linear.bias))", "self.linear.bias)))")
    asked = ("check", written(tmp_path, frozen), "--reference", reference, "--device", "cpu")
    done = run(*asked, "--require", "drop-in", "--json")
    assert done.code == 1
    (report,) = done.json
    refused = {stage["name"] for stage in report["stages"] if not stage["passed"]}
    assert refused - {"manners"} == {"not finite", "sizes"}  # in other manners some of the same is asked
    assert report["mode"] == "train"
    assert report["right_for_problem"] and not (report["drop_in"] or report["passed"])


@pytest.mark.slow
def test_a_file_that_is_right_for_its_problem_passes_and_is_told_what_else_it_lacks(
    run: CommandLine, tmp_path: Path
) -> None:
    detached = NEW.replace(") + self.offset", ").detach() + self.offset")
    done = run("check", written(tmp_path, FILE + detached), "--device", "cpu")
    assert done.code == 0, done.out
    assert ", train: gradients: no short" not in done.out
    assert "; no short reproduction" in done.out
    assert "train: right for the problem (error" in done.out
    assert "NOT a drop-in for the reference: the model cannot be trained, or trains wrongly (gradients); " in done.out
    assert run("check", tmp_path / "submission.py", "--device", "cpu", "--require", "all").error.endswith(
        "unknown requirement 'all' (known: drop-in, problem)"
    )


def test_a_crash_is_a_refusal_that_says_when(run: CommandLine, tmp_path: Path) -> None:
    crash = "        import ctypes; ctypes.string_at(0)\n        return torch"
    path = written(tmp_path, FILE + NEW.replace("        return torch", crash))
    done = run("check", path, "--device", "cpu")
    assert done.code == 1
    assert "the process was killed by SIGSEGV, in stage 'structure'" in done.out


@pytest.mark.slow
def test_a_question_that_the_reference_does_not_survive_is_passed_over_and_said(
    run: CommandLine, tmp_path: Path
) -> None:
    dies = "import os\n\nclass Model(nn.Module):\n    def forward(self, x):\n        len(x) or os._exit(3)\n"
    dies += "        return x + 1\n"
    inputs = "\ndef get_inputs():\n    return [torch.rand(rows, 4)]\n\ndef get_init_inputs():\n    return []\n"
    new = "\nclass ModelNew(nn.Module):\n    def forward(self, x):\n        return 1 + x\n"
    text = f"import torch\nfrom torch import nn\n{dies}\nrows = 6\n{inputs}{new}"
    done = run("check", written(tmp_path, text), "--device", "cpu")
    assert done.code == 0
    assert "the reference does not survive it: the process ended with exit code 3 (rows=0)" in done.out


@pytest.mark.slow
def test_a_hang_is_a_refusal(tmp_path: Path) -> None:
    hang = NEW.replace("        return torch", "        while True: pass\n        return torch")
    path = written(tmp_path, FILE + hang)
    (report,) = check(CheckRequest(str(path), device="cpu", seconds=4.0))
    assert not report.verdict.passed
    assert report.verdict.reason.startswith("still running after 4 s: killed")


def test_a_model_that_raises_is_refused(tmp_path: Path) -> None:
    path = written(
        tmp_path, FILE + NEW.replace("        return torch", "        assert False, 'not today'\n        return torch")
    )
    (report,) = check(CheckRequest(str(path), device="cpu"))
    assert not report.verdict.passed
    assert report.verdict.reason == f"AssertionError: not today ({path}:34)"


def test_another_state_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, FILE + NEW.replace("self.linear", "self.product"))
    (report,) = check(CheckRequest(str(path), device="cpu"))
    assert "cannot be made like the reference" in report.verdict.reason


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no_such_kernel"], "unknown kernel 'no_such_kernel'"),
        (["scalar_mul", "--config", "block_size=7"], "tunable 'block_size' has no value 7"),
        (["scalar_mul", "--config", "blok=7"], "unknown tunable 'blok'"),
        (["scalar_mul", "--size", "Q=7"], "unknown size of scalar_mul 'Q'"),
        (["scalar_mul", "--mode", "train"], "unknown mode of scalar_mul 'train'"),
        (["scalar_mul", "--compiler", "icc"], "unknown compiler 'icc'"),
        (["scalar_mul", "--reference", "x.py"], "--reference is for files"),
        (["missing.py"], "missing.py: cannot read"),
    ],
)
def test_a_wrong_question_is_one_line(run: CommandLine, arguments: list[str], message: str) -> None:
    assert message in run("check", *arguments, "--device", "cpu").error


def test_a_file_without_its_parts_is_a_wrong_question(run: CommandLine, tmp_path: Path) -> None:
    assert "no ModelNew" in run("check", written(tmp_path, FILE), "--device", "cpu").error
    assert "no Model, get_inputs" in run("check", written(tmp_path, NEW), "--device", "cpu").error
    failing = written(tmp_path, FILE.replace("return torch.relu", "return torch.oops") + NEW)
    with pytest.raises(UserError, match="the reference does not run: AttributeError"):
        check(CheckRequest(str(failing), device="cpu"))


@pytest.mark.slow
def test_a_refusal_is_reproduced_by_a_script_of_its_own(
    run: CommandLine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At the sizes of the question, with its inputs, and with the user's two files alone; mended, it ends well."""
    reference = written(tmp_path, FILE, "reference.py")
    wrong = NEW.replace(
        "        return torch", "        x = x if x.shape[0] != 1 else x.clamp(-2, 2) * 1.01\n        return torch"
    )
    path, script = written(tmp_path, wrong), tmp_path / "show.py"
    done = run("check", path, "--reference", reference, "--device", "cpu", "--json", "--reproduce", script, "--seed", 7)
    refusal = next(one for one in done.json[0]["refusals"] if one["stage"] == "sizes")
    call = refusal["reproduction"]
    assert (refusal["claim"], call["seed"], call["sizes"]["batch"], call["shapes"]) == (
        "drop-in",
        7001,
        1,
        ["(1, 10) float32"],
    )
    with pytest.raises(SystemExit, match="1"):
        runpy.run_path(str(script))
    shown, (expected, got) = capsys.readouterr().out, (call["element"]["expected"], call["element"]["got"])
    assert f"expected {expected} " in shown and f"got {got}" in shown
    written(tmp_path, NEW)
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(str(script))


@pytest.mark.slow
def test_a_refusal_in_another_manner_is_asked_again_by_its_seed_and_reproduced_in_that_manner(
    run: CommandLine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reference = written(tmp_path, FILE, "reference.py")
    wrong = NEW.replace(
        "        return torch",
        "        x = x * (1.01 if torch.is_inference_mode_enabled() else 1)\n        return torch",
    )
    path, script = written(tmp_path, wrong), tmp_path / "show.py"
    asked = ("check", path, "--reference", reference, "--device", "cpu", "--require", "drop-in", "--json")
    (report,) = run(*asked).json
    done = run(*asked, "--seed", report["seed"], "--reproduce", script)
    (again,), (refusal,) = done.json, report["refusals"]
    assert again["refusals"] == [refusal] and again["seed"] == report["seed"]
    assert f"seed {report['seed']} asks the same questions again" in done.err
    assert refusal["stage"] == "manners" and refusal["reproduction"]["manner"].endswith("mode, inference_mode")
    with pytest.raises(SystemExit, match="1"):
        runpy.run_path(str(script))
    assert f"got {refusal['reproduction']['element']['got']}" in capsys.readouterr().out
    written(tmp_path, NEW)
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(str(script))


@pytest.mark.slow
def test_what_is_declared_of_a_file_is_part_of_the_verdict(run: CommandLine, tmp_path: Path) -> None:
    forward = "return torch.relu(torch.nn.functional.linear(x, self.linear.weight, self.linear.bias)) + self.offset"
    other = NEW.replace(forward, "return (torch.relu(self.linear(x)) + self.offset).t().contiguous().t()")
    path = written(tmp_path, FILE + other)
    (refused,) = run("check", path, "--device", "cpu", "--json").json
    assert not refused["drop_in"] and "strides (1, 12)" in refused["reason"]
    done = run("check", path, "--device", "cpu", "--dense", "--require", "drop-in")
    assert done.code == 0, done.out
    assert any(line.endswith("train: declared: dense") for line in done.out.splitlines())
    assert run("check", "scalar_mul", "--device", "cpu", "--dense").error.endswith(
        "--dense is for files: a kernel declares it in Kernel.declare"
    )


def test_a_run_directory_is_judged_file_by_file(run: CommandLine, tmp_path: Path) -> None:
    folder, level = tmp_path / "run", tmp_path / "problems" / "level1"
    folder.mkdir()
    level.mkdir(parents=True)
    written(level, FILE, "23_Linear.py")
    (folder / "notes.py").write_text("no model", encoding="utf-8")
    texts = {"23_sample_0": NEW.replace("+ self.offset", "+ 1"), "23_sample_1": "import nothing_there\n" + NEW}
    for name, text in {**texts, "7_sample_0": NEW}.items():
        written(folder, text, f"level_1_problem_{name}_kernel.py")
    asked = ("check", folder, "--problems", tmp_path / "problems", "--device", "cpu", "--jobs", "2")
    done = run(*asked, "--json")
    assert done.code == 1
    first = {Path(one["target"]).name[16:-10]: one["refusals"][0] for one in done.json}
    assert {name: one["stage"] for name, one in first.items()} == {
        "23_sample_0": "values, draw 1",
        "23_sample_1": "import",
        "7_sample_0": "question",
    }
    assert "No module named 'nothing_there'" in first["23_sample_1"]["detail"]
    assert "level1/7_*.py: cannot read: there is no such file" in first["7_sample_0"]["detail"]
    assert "neither a kernel's folder" in run("check", tmp_path, "--device", "cpu").error


@pytest.mark.slow
def test_files_of_one_problem_are_judged_as_if_each_were_alone(tmp_path: Path) -> None:
    reference, folder = written(tmp_path, FILE, "reference.py"), tmp_path / "run"
    folder.mkdir()
    texts = {
        "1_right": NEW,
        "2_wrong_when_trained": NEW.replace("self.linear.weight,", "self.linear.weight.detach(),"),
        "3_ends_its_process": NEW.replace("return", "import os; x.shape[0] == 1 and os._exit(3)\n        return"),
        "4_right": NEW.replace("torch.relu(", "torch.clamp_min(").replace(") + self", ", 0) + self"),
    }
    for name, text in texts.items():
        written(folder, text, f"{name}.py")
    together = tunebench.check(folder, reference, device="cpu", seed=11)
    assert [Path(report.target).stem for report in together] == list(texts)
    assert [report.verdict.passed for report in together] == [True, False, False, True]
    for report in together:
        (alone,) = tunebench.check(report.target, reference, device="cpu", seed=11)
        told = [[(stage.name, stage.passed, stage.detail) for stage in one.stages] for one in (report, alone)]
        assert told[0] == told[1]


def test_modules_are_checked_where_they_are() -> None:
    twice = nn.Linear(4, 4).eval()
    inputs, drawn = [torch.rand(6, 4)], torch.get_rng_state()
    (report,) = tunebench.check(twice, copy.deepcopy(twice), inputs=inputs, require="drop-in")
    assert torch.equal(drawn, torch.get_rng_state())
    assert (report.passed, report.trusted, report.mode, report.target) == (True, True, "eval", "Linear")
    (report,) = tunebench.check(lambda x: x + 1e-3, lambda x: x * 1.0, inputs=inputs)
    assert not report.holds("problem") and report.refusals[0].reproduction is not None
    assert "NOT right for the problem" in str(report) and "expected" in str(report)
    with pytest.raises(UserError, match="a model is compared with a model"):
        tunebench.check(twice, "reference.py")
