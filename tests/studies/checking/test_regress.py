"""`tunebench regress`: two git revisions of a repository's kernels, against each other."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import CommandLine
from versions_of_a_kernel import Repository

from tunebench.kernels.runtime.registry import import_model
from tunebench.kernels.runtime.shipped import ShippedResult, write_file
from tunebench.studies.checking.regress.comparison import Comparison, Outcome
from tunebench.studies.checking.regress.repository import Side
from tunebench.studies.checking.regress.run import outcome_of
from tunebench.tuner.device import find_device
from tunebench.tuner.problem import Problem

WIDE = ("--threshold", 90, "--device", "cpu", "--size", "rows=4", "--size", "columns=32")
"""Forty times the work is beyond the threshold, whatever else the machine does, and equals are never open."""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """A repository with one kernel, which is the current folder."""
    made = Repository(tmp_path / "kernels of mine")
    monkeypatch.chdir(made.folder)
    return made


def ship(repository: Repository, block_size: int) -> None:
    """Put a result beside the kernel as it is now."""
    kernel, device = import_model(str(repository.kernel)).kernel, find_device("cpu")
    axes, over_reference = {"rows": 4, "columns": 32}, {"reference": [2.0, 1.9, 2.1]}
    result = ShippedResult(axes, "float32", {}, {"block_size": block_size}, over_reference, 1.0, None, {})
    write_file(kernel, device.name, device.architecture, [result])


@pytest.mark.slow
def test_a_commit_with_forty_times_the_work_fails_and_one_with_the_same_passes(
    run: CommandLine, repository: Repository
) -> None:
    ship(repository, 128)
    base = repository.commit("a result for it")
    repository.git("checkout", "--quiet", "-b", "slower")
    repository.turns(4_000)
    # One line: nothing was begun.
    assert "missing does not exist" in run("regress", base, "slower", "--markdown", "missing/table.md").error
    slower = run("regress", base, "slower", *WIDE, "--json", "--markdown", "table.md")
    assert slower.code == 1, slower
    (change,) = slower.json["changes"]
    assert (change["kernel"], change["outcome"], slower.json["passed"]) == ("root", "regression", False)
    # HEAD has no result of its own: it is timed under BASE's.
    assert {one["values"]["block_size"] for one in change["configurations"].values()} == {128}
    assert change["configurations"]["head"]["origin"].startswith("BASE: shipped")
    assert [take["copied"] for take in change["takes"]] == ["base", "head"]
    table = Path("table.md").read_text(encoding="utf-8")
    assert "| root | eval |" in table and "a REGRESSION |" in table and "FAILED: root" in table
    Path("table.md").unlink()
    repository.git("checkout", "--quiet", "-b", "equal", base)
    repository.same_work()
    equal = run("regress", base, *WIDE)
    assert equal.code == 0 and "passed: " in equal.out, equal
    assert repository.git("worktree", "list").count("\n") == 0, "the worktrees are gone"


@pytest.mark.slow
def test_what_cannot_be_compared_is_said_in_one_line_each(run: CommandLine, repository: Repository) -> None:
    other = repository.folder / "other"
    repository.git("mv", "root", "other")
    repository.git("mv", "other/root.cu", "other/other.cu")
    repository.commit("renamed")
    (other / "other.cu").write_text((other / "other.cu").read_text(encoding="utf-8") + "}", encoding="utf-8")
    renamed = run("regress", "HEAD~1", *WIDE, "--json")
    assert renamed.code == 0, renamed
    said = {change["kernel"]: (change["outcome"], change["says"]) for change in renamed.json["changes"]}
    assert said == {
        "other": ("not compared", "new: BASE has no such kernel"),
        "root": ("not compared", "removed: HEAD has no such kernel"),
    }
    assert renamed.json["head"]["changed_files"] == 1
    broken = run("regress", "HEAD", *WIDE, "--json")
    (change,) = broken.json["changes"]
    assert (broken.code, change["outcome"]) == (1, "wrong") and change["says"].startswith("HEAD: g++ refused"), broken
    repository.commit("broken")
    Path("other/other.cu").write_text("", encoding="utf-8")
    unloadable = run("regress", "HEAD", *WIDE, "--json").json["changes"][0]
    assert unloadable["outcome"] == "wrong" and "no entry point" in unloadable["says"]


@pytest.mark.slow
def test_wrong_questions(run: CommandLine, repository: Repository, tmp_path: Path) -> None:
    assert "unknown revision 'nosuch'" in run("regress", "nosuch").error
    assert "unknown revision '--all'" in run("regress", "--", "--all").error
    assert "is not in a git repository" in run("regress", "HEAD", "--repository", tmp_path).error
    assert "unknown dtype 'half'" in run("regress", "HEAD", "--dtype", "half").error
    assert "unknown mode 'fast'" in run("regress", "HEAD", "--mode", "fast").error
    assert "'tpu' is no device" in run("regress", "HEAD", "--device", "tpu").error
    assert "not in the repository" in last(run("regress", "HEAD", "--kernel", "scalar_mul"))
    assert "unknown kernel 'nosuch'" in last(run("regress", "HEAD", "--kernel", "nosuch"))
    same = run("regress", "HEAD", "--kernel", "root", "--json")
    assert (same.code, same.json["unchanged"], same.json["changes"]) == (0, ["root"], [])
    repository.turns(101)
    assert "unknown size of kernel 'root' 'M'" in last(run("regress", "HEAD~1", "--size", "M=1"))
    assert "unknown mode of kernel 'root' 'train'" in last(run("regress", "HEAD~1", "--mode", "train"))
    repository.git("rm", "-r", "--quiet", "root")
    repository.commit("nothing")
    (repository.folder / "empty.py").write_text("", encoding="utf-8")
    assert "has no kernels in either revision" in last(run("regress", "HEAD"))


def last(ran: object) -> str:
    """The last line on standard error, after what was going on."""
    assert (ran.code, ran.out) == (2, ""), ran  # type: ignore[attr-defined]
    return ran.err.strip().splitlines()[-1]  # type: ignore[attr-defined, no-any-return]


@pytest.mark.slow
def test_each_revision_has_its_own_modules(
    run: CommandLine, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper = repository.folder / "versioned_module.py"
    helper.write_text("BLOCKS = (64, 128)", encoding="utf-8")
    repository.edit("model.py", "import torch", "import torch\nfrom versioned_module import BLOCKS")
    repository.edit("model.py", '("block_size", (64, 128), default=64)', '("block_size", BLOCKS, default=BLOCKS[0])')
    repository.commit("a module beside it")
    helper.write_text("BLOCKS = (32, 128)", encoding="utf-8")
    repository.edit("root.cu", "turn < 100", "turn < 101")
    monkeypatch.syspath_prepend(str(repository.folder))
    (change,) = run("regress", "HEAD", *WIDE, "--json").json["changes"]
    taken = {side: one["values"]["block_size"] for side, one in change["configurations"].items()}
    assert taken == {"base": 64, "head": 32}, change


@pytest.mark.parametrize(
    ("head", "control", "outcome"),
    [
        (1.05, 1.0, Outcome.REGRESSION),
        (1.015, 1.0, Outcome.SLOWER),
        (1.0, 1.0, Outcome.TIE),
        (0.9, 1.0, Outcome.FASTER),
        (1.0, 1.02, Outcome.TIE),
        (1.05, 1.04, Outcome.INCONCLUSIVE),  # copies of one revision lie as far apart
        (1.05, 0.96, Outcome.INCONCLUSIVE),
    ],
)
def test_what_the_rounds_say(head: float, control: float, outcome: Outcome) -> None:
    assert outcome_of(comparison(head, head, control).ratio, 0.02) is outcome
    # Two processes that contradict each other decide nothing.
    contrary = comparison(head, 1 / head**3, control)
    assert outcome_of(contrary.ratio, 0.02) is (outcome if head == 1.0 else Outcome.INCONCLUSIVE)


def comparison(first: float, second: float, control: float) -> Comparison:
    """Two takes in which HEAD takes so many times as long as BASE, and the copy of one so many times as that one."""
    base = tuple(1.0 + 0.001 * (i % 3) for i in range(40))
    takes = []
    for side, head in zip(Side, (first, second), strict=True):
        samples = {Side.BASE: base, Side.HEAD: tuple(one * head for one in base)}
        takes.append({**samples, "control": tuple(one * control for one in samples[side])})
    return Comparison(Problem({}, "float32"), "cpu", {}, takes)
