"""`--accuracy eager` from end to end: studies, listings, bench, misses; and where a study's time went."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch
from command_line import CommandLine
from sample_kernel import SLOW_REFERENCE, WriteKernel

import tunebench
from tunebench.studies.sweep.tasks import requests_of, studies_of
from tunebench.studies.tuning.study_file import read_study_file
from tunebench.studies.tuning.targets import find_target
from tunebench.studies.tuning.tune import NAMED
from tunebench.tuner.errors import StudyFileError
from tunebench.tuner.problem import Accuracy
from tunebench.tuner.result import TrialStatus

INEXACT = {"weight[0];": "weight[0] * (variety == 1 ? 1.000001f : 1.0f);"}

pytestmark = pytest.mark.usefixtures("short_studies")


@pytest.mark.slow
def test_a_study_admits_what_is_as_exact_as_eager_and_no_other(
    write_kernel: WriteKernel, tmp_path: Path, run: CommandLine
) -> None:
    folder, db = str(write_kernel(source=INEXACT).kernel.folder), str(tmp_path / "results.db")
    study = tmp_path / "study.toml"
    third = "{ blocks = 4, block_size = 256 }"  # so many threads are too many
    start = f"[{{ block_size = 32, variety = 1 }}, {{ variety = 2, block_size = 256, blocks = 2 }}, {third}]"
    text = f'kernel = "{folder}"\naccuracy = "eager"\nsampler = "random"\ntrials = 3\nstart = {start}\n'
    study.write_text(text, encoding="utf-8")
    began = time.perf_counter()
    (report,) = run("tune", str(study), "--device", "cpu", "--db", db, "--json").json
    took = time.perf_counter() - began
    call = report["problem"]["options"]["call"]
    assert report["problem"]["options"] == {"accuracy": "eager", "call": call}
    # The third is not valid: so many threads are too many.
    assert [(one["configuration"]["variety"], one["origin"]) for one in report["warm_starts"]] == [
        (1, NAMED),
        (2, NAMED),
    ]
    # Which of the right ones are given up as hopelessly slow is the machine's.
    assert report["counts"]["correctness"] == 1 and sum(report["counts"].values()) == 3
    spent = report["spent"]
    assert spent["whole"] == pytest.approx(sum(spent["phases"].values()))
    assert report["seconds"] <= spent["whole"]
    assert spent["whole"] - spent["phases"]["process start"] <= took
    assert {"worker start", "reference in float64", "gate, quick", "timing", "final rounds"} <= spent["phases"].keys()
    assert spent["builds"] >= 2

    rows = tunebench.trials(db=db)
    assert {row.configuration["variety"]: row.status.timed for row in rows} == {0: True, 1: False, 2: True}
    assert rows[1].status is TrialStatus.CORRECTNESS
    assert "less exact than eager: 4 draws of the inputs: error " in rows[1].message
    assert find_target("1", db).request.accuracy is Accuracy.EAGER
    checked = run("check", str(rows[1].trial_id), "--device", "cpu", "--db", db, "--json")
    assert checked.code == 1 and "less exact than eager" in checked.out

    # The same kernel under the tolerance is another study, which begins with what this one has found.
    (other,) = run("tune", folder, "--device", "cpu", "--db", db, "--trials", "2", "--json").json
    assert other["study"] != report["study"] and other["problem"]["options"] == {"call": call}
    assert "accuracy=eager" in other["warm_starts"][0]["origin"]
    found = run("best", "--db", db, "--json").json
    assert sorted(one["accuracy"] for one in found) == ["eager", "tolerance"]
    (only,) = run("best", "--db", db, "--accuracy", "eager", "--json").json
    assert only["problem"]["options"] == {"accuracy": "eager", "call": call}
    listed = run("trials", "--db", db, "--accuracy", "eager", "--json").json
    assert len(listed) == 3 and {one["accuracy"] for one in listed} == {"eager"}
    asked = "SELECT problem ->> '$.options.accuracy' AS accuracy, count(*) AS n FROM trials_flat GROUP BY 1 ORDER BY n"
    assert run("query", "--db", db, asked, "--json").json == [{"accuracy": None, "n": 2}, {"accuracy": "eager", "n": 3}]
    assert len(tunebench.trials(accuracy="tolerance", db=db)) == 2 and len(tunebench.best(accuracy="eager", db=db)) == 1


@pytest.mark.slow
def test_bench_shows_both(write_kernel: WriteKernel, tmp_path: Path, run: CommandLine) -> None:
    folder = str(write_kernel(source=INEXACT, reference=SLOW_REFERENCE).kernel.folder)
    db = str(tmp_path / "results.db")
    tunebench.tune(folder, accuracy="eager", trials=1, device="cpu", db=db)
    options = ("--device", "cpu", "--no-compile", "--seconds", "0.1", "--db", db, "--json")
    told = run("bench", folder, "--accuracy", "tolerance", "--accuracy", "eager", *options).json
    assert [(one["accuracy"], one["right"]) for one in told["results"]] == [("tolerance", True), ("eager", True)]
    assert told["results"][1]["configuration"] is not None or "the reference" in told["results"][1]["reason"]
    for one in told["results"]:
        assert one["errors"]["tuned"]["rms_multiple_of_reference"] <= 1
    wrong = run("bench", folder, "--accuracy", "eager", "--config", "variety=1", *options)
    assert wrong.code == 1
    assert [one["right"] for one in json.loads(wrong.out)["results"]] == [False], wrong.out + wrong.err


@pytest.mark.slow
def test_files_and_modules_are_checked_for_it(tmp_path: Path, run: CommandLine) -> None:
    file = tmp_path / "twice.py"
    model = "class {}(torch.nn.Module):\n    def forward(self, x):\n        return {}\n\n"
    inputs = "def get_inputs():\n    return [torch.rand(64, 33) + 1]\n\ndef get_init_inputs():\n    return []\n"
    for formula, admitted in (("x + x / 3", True), ("(x + x / 3) * 1.000002", False)):
        text = "import torch\n\n" + model.format("Model", "x + x / 3") + model.format("ModelNew", formula) + inputs
        file.write_text(text, encoding="utf-8")
        for accuracy in ("tolerance", "eager"):
            checked = run("check", str(file), "--device", "cpu", "--accuracy", accuracy, "--json")
            assert checked.code == (0 if admitted or accuracy == "tolerance" else 1), checked.out
            assert ("less exact than eager" in checked.out) == (checked.code == 1)


@pytest.mark.slow
def test_what_was_missed_under_eager_is_tuned_under_eager(
    write_kernel: WriteKernel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TUNEBENCH_DB", str(tmp_path / "own.db"))
    factory = write_kernel(source=INEXACT, reference=SLOW_REFERENCE)
    model = factory()
    model.accuracy, model.policy = tunebench.Accuracy.EAGER, tunebench.Policy.TUNE
    with torch.no_grad(), tunebench.use_policy(seconds=8):
        model(torch.rand(64, 33))
    ((problem, _), choice), *_ = model.choices.items()
    assert problem is not None and problem.accuracy is Accuracy.EAGER
    assert choice.measured
    assert {row.problem.accuracy for row in tunebench.trials()} == {Accuracy.EAGER}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            'accuracy = "perfect"',
            "'accuracy' is not legal: Input should be 'tolerance', 'eager' or 'tf32' (got 'perfect')",
        ),
        ("start = [3]", "'start.0' is not legal"),
    ],
)
def test_study_files_say_what_is_legal(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "study.toml"
    file.write_text(f'kernel = "scalar_mul"\n{line}\n', encoding="utf-8")
    with pytest.raises(StudyFileError) as raised:
        read_study_file(file)
    assert message in str(raised.value)


def test_a_sweep_has_a_study_for_each(write_kernel: WriteKernel, tmp_path: Path) -> None:
    file = tmp_path / "sweep.toml"
    kernel = write_kernel().kernel.folder
    start = "start = [{ block_size = 32 }, { block_size = 256 }]"
    file.write_text(f'kernel = "{kernel}"\naccuracy = ["tolerance", "eager"]\n{start}\n', encoding="utf-8")
    tasks = studies_of(requests_of([file], {"device": "cpu"}))
    assert [task.problem and task.problem.accuracy for task in tasks] == [Accuracy.TOLERANCE, Accuracy.EAGER]
    assert [len(task.resolved.request.start) for task in tasks] == [2, 2]


def test_wrong_names_are_one_line(run: CommandLine) -> None:
    for command in (["tune", "scalar_mul"], ["bench", "scalar_mul"]):
        error = run(*command, "--accuracy", "perfect").error
        assert "unknown accuracy 'perfect' (known: eager, tf32, tolerance)" in error
    assert "unknown tunable" in run("tune", "scalar_mul", "--device", "cpu", "--start", "blocksize=3").error


def test_a_start_that_is_not_valid_is_said(run: CommandLine) -> None:
    sizes = [f"--size={name}" for name in ("batch_size=1", "in_channels=4", "out_channels=4", "height=8", "width=8")]
    starts = ["--start=convolution=implicit_gemm", "--start=convolution_layout=nchw"]
    told = run("tune", "conv_min_add_mul", "--device", "cpu", "--trials", "1", *sizes, *starts).err
    assert told.count("(--start)") == 1, told
    assert "no valid configuration has convolution=implicit_gemm: the study begins without (--start)" in told
