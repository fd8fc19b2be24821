"""`tunebench compare`: two configurations, two trials, two files, or one and the reference."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import CommandLine, Ran
from compared_files import BY_POINTER, FILE, LAZY, NEW, OTHER_CLOCK, WHEN_NOT_TIMED
from sample_kernel import WriteKernel

from tunebench.db.connection.database import open_database
from tunebench.studies.tuning.resolved import resolve
from tunebench.studies.tuning.study_file import request_of
from tunebench.studies.tuning.tune import tune
from tunebench.tuner.result import Decision


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file whose ModelNew does a small part of what its Model does."""
    path = tmp_path / "mine.py"
    path.write_text(FILE, encoding="utf-8")
    return path


@pytest.mark.slow
def test_a_file_against_its_reference_and_the_other_way_round(run: CommandLine, file: Path, tmp_path: Path) -> None:
    faster = run("compare", file, "reference", "--device", "cpu")
    assert any(said in faster.out for said in ("A is faster than B: ", "inconclusive: ", "decide nothing")), faster
    assert "99 % interval" in faster.out and "trusted" not in faster.out
    old = tmp_path / "old.py"
    old.write_text(FILE.partition("class ModelNew")[0] + FILE[FILE.index("def get_inputs") :], encoding="utf-8")
    backwards = run("compare", old, file, "--device", "cpu", "--json")
    assert_says(backwards, "slower", 1 / backwards.json["ratio"]["value"])
    assert backwards.json["trusted"] is False
    assert backwards.json["control"]["rounds"] == backwards.json["ratio"]["rounds"]
    assert set(backwards.json["samples_ms"]) == {"first", "second", "control"}


def assert_says(answer: Ran, decision: str, times: float) -> None:
    """What is many times faster may only be called inconclusive, where a busy machine told equals apart."""
    assert answer.json["decision"] in (decision, "inconclusive")
    assert answer.code == (0 if answer.json["decision"] == "faster" else 1)
    assert times > 1.3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "stage"),
    [
        (NEW.replace("return x", "return 2 + x"), "values, draw 1"),
        (LAZY, "structure"),
        (BY_POINTER, ""),
        (WHEN_NOT_TIMED, "after timing"),
        pytest.param(OTHER_CLOCK, "clock", marks=pytest.mark.slow),
    ],
)
def test_a_file_that_only_seems_faster_is_refused(run: CommandLine, file: Path, model: str, stage: str) -> None:
    file.write_text(FILE.replace(NEW, model + "\n"), encoding="utf-8")
    answer = run("compare", file, "reference", "--device", "cpu", "--json")
    assert answer.code == 1 and answer.json["ratio"] is None
    assert f"ModelNew is refused ({stage}" in answer.json["refusal"], answer.json["refusal"]


def test_two_references_that_differ_decide_nothing(run: CommandLine, file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text(FILE.replace("return x * self.scale", "return x - self.scale"), encoding="utf-8")
    answer = run("compare", file, other, "--device", "cpu")
    assert answer.code == 1
    assert f"the two references differ: {other}: Model: draw 1: error" in answer.out


def test_a_reference_that_ends_its_process_is_said_in_one_line(run: CommandLine, file: Path) -> None:
    file.write_text(FILE.replace("class ModelNew", "import os\nos.abort()\nclass ModelNew"), encoding="utf-8")
    error = run("compare", file, "reference", "--device", "cpu").error
    assert "the reference does not run: " in error and "killed by SIGABRT" in error


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "class ModelNew",
            "raise ValueError('no such thing')\nclass ModelNew",
            "does not run: ValueError: no such thing",
        ),
        ("class ModelNew(Model)", "class Other(Model)", "does not define both ModelNew and Model"),
        ("return [3.0]", "return []", "TypeError"),
        ("def get_inputs", "def inputs", "has no get_inputs"),
    ],
)
def test_files_that_cannot_be_compared(run: CommandLine, file: Path, old: str, new: str, message: str) -> None:
    file.write_text(FILE.replace(old, new), encoding="utf-8")
    assert message in run("compare", file, "reference", "--device", "cpu").error


@pytest.mark.slow
def test_configurations_and_trials_of_a_kernel(write_kernel: WriteKernel, run: CommandLine, tmp_path: Path) -> None:
    slow = "y[i] = x[i] * weight[0];"
    busy = f"volatile float sink = 0; for (int k = 0; k < 500 * variety; ++k) {{ sink = sink + 1; }} {slow}"
    folder = write_kernel(source={slow: busy}).kernel.folder
    about = (folder, "--device", "cpu")
    answer = run("compare", "variety=0", "variety=2,block_size=64", *about, "--json")
    assert_says(answer, "faster", answer.json["ratio"]["value"])
    assert answer.json["b"] == "variety=2,block_size=64: block_size=64 blocks=2 variety=2"
    assert answer.json["trusted"] is True
    assert run("compare", "variety=2", "default", *about).code == 1

    with open_database(tmp_path / "a.db") as database:
        options = {"device": "cpu", "trials": 3, "sampler": "exhaustive"}
        tune(resolve(request_of(str(folder), options)), database)
    trials = run("compare", "1", "2", *about, "--db", tmp_path / "a.db", "--json").json
    assert trials["a"].startswith("trial 1: block_size=") and trials["decision"] in {None, *Decision}
    other = ("--size", "rows=7", "--db", tmp_path / "a.db")
    assert "was measured for n=2112 float32" in run("compare", "1", "2", *about, *other).error


def test_a_configuration_that_is_wrong_is_no_faster(write_kernel: WriteKernel, run: CommandLine) -> None:
    factory = write_kernel(source={"* weight[0]": "* (variety == 1 ? 1.0f : weight[0])"})
    answer = run("compare", "variety=1", "default", factory.kernel.folder, "--device", "cpu")
    assert answer.code == 1
    assert "is refused (correctness)" in answer.out


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (("variety=0", "default"), "name the kernel behind them"),
        (("variety=0", "default", "scalar_mull"), "did you mean scalar_mul"),
        (("vectorwidth=4", "default", "scalar_mul"), "did you mean vector_width"),
        (("vector_width=3", "default", "scalar_mul"), "has no value 3"),
        (("unroll=true,items_per_thread=1", "default", "scalar_mul"), "unroll cannot be so"),
        (("nonsense", "default", "scalar_mul"), "'nonsense' is not of the form"),
        (("1", "2"), "there is no results database"),
        (("none.py", "reference"), "'none.py' is not a file"),
        (("default", "reference", "scalar_mul", "--atomics"), "--atomics is for files"),
        (("default", "reference", "scalar_mul", "--mode", "train"), "unknown mode"),
    ],
)
def test_questions_that_are_wrong(run: CommandLine, question: tuple[str, ...], message: str) -> None:
    small = ("--size", "M=8", "--size", "N=8", "--device", "cpu")
    assert message in run("compare", *question, *small).error
