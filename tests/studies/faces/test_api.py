"""`import tunebench`: what is public, as its documentation shows it."""

from __future__ import annotations

import copy
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from processes import ended
from sample_kernel import WriteKernel
from sample_results import ENVIRONMENT, STUDY, configuration, correct, failed

import tunebench
from tunebench.db.entries.study_log import open_study
from tunebench.tuner.result import TrialStatus

pytestmark = pytest.mark.usefixtures("short_studies")

DOCUMENT = Path(__file__).parents[3] / "docs" / "python.md"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A database with a correct trial and one that was refused, of a kernel's earlier version."""
    file = tmp_path / "results.db"
    with tunebench.connect(file, read_only=False) as database:
        log = open_study(database, STUDY, ENVIRONMENT)
        log.record(correct(0, 0.1 + 0.2))
        log.record(failed(1, TrialStatus.COMPILE))
    return file


def test_every_name_is_there() -> None:
    assert all(getattr(tunebench, name) is not None for name in tunebench.__all__)
    assert dir(tunebench) == sorted(tunebench.__all__)
    with pytest.raises(AttributeError, match="no attribute 'worst'"):
        tunebench.worst  # noqa: B018


def test_best_and_trials_are_rows_and_data_frames(results: Path) -> None:
    assert tunebench.best(db=results) == []
    (row,) = tunebench.best(STUDY.kernel, any_source=True, db=results)
    assert (row.configuration, row.median_ms) == (configuration(0), 0.1 + 0.2)
    assert [one.number for one in tunebench.trials(db=results)] == [1, 0]
    assert [one.number for one in tunebench.trials(fastest=True, db=results)] == [0]
    assert [one.number for one in tunebench.trials(status="compile", db=results)] == [1]
    assert [one.number for one in tunebench.trials(status=("compile", "correct"), limit=1, db=results)] == [1]
    with tunebench.connect(results) as database:
        assert tunebench.trials(tunables={"block": 32}, db=database) == tunebench.trials(status="correct", db=database)
    pytest.importorskip("pandas")
    assert list(tunebench.trials(db=results).to_frame()["tunable_block"]) == [64, 32]


def test_a_connection_reads_unless_told_otherwise(results: Path) -> None:
    with tunebench.connect(results) as database, pytest.raises(tunebench.DatabaseError, match="for reading only"):
        open_study(database, STUDY, ENVIRONMENT)


def test_a_question_that_is_wrong_is_one_line(results: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    for question, message in (
        (lambda: tunebench.trials(status="corect", db=results), "unknown status 'corect'; did you mean correct"),
        (lambda: tunebench.best(compiler="gcc", db=results), "unknown compiler 'gcc'"),
        (lambda: tunebench.best(db=tmp_path / "nowhere.db"), "there is no results database"),
        (lambda: tunebench.load("scalar_mull"), "unknown kernel 'scalar_mull'; did you mean scalar_mul"),
        (lambda: tunebench.tune("scalar_mul", trials=0), "'trials' is not legal"),
        (lambda: tunebench.tune("scalar_mul", sizes={"X": 1}, device="cpu"), "unknown size of scalar_mul 'X'"),
        (lambda: tunebench.tune("scalar_mul", dtype="float8", device="cpu"), "unknown dtype of kernel 'scalar_mul'"),
        (lambda: tunebench.compare(__file__, __file__, dtype="half"), "unknown dtype 'half'"),
        (lambda: tunebench.check("scalar_mul", compiler="gcc"), "unknown compiler 'gcc'"),
        (lambda: tunebench.check("scalar_mul", modes=["frozen"]), "unknown mode of scalar_mul 'frozen'"),
        (lambda: tunebench.compare("default", "reference"), "name the kernel behind them"),
        (lambda: tunebench.compare("defautl", "reference", kernel="scalar_mul"), "'defautl' cannot be compared"),
        (lambda: tunebench.compare(file, "reference"), "is not a file"),
        (lambda: tunebench.compare(9, "reference", db=results), "trial 9"),
    ):
        with pytest.raises(tunebench.UserError, match=re.escape(message)) as raised:
            question()
        assert len(str(raised.value).splitlines()) == 1


@pytest.mark.slow
def test_what_is_loaded_from_a_folder_can_be_copied_and_pickled(write_kernel: WriteKernel, tmp_path: Path) -> None:
    folder = write_kernel().kernel.folder
    ModelNew = tunebench.load(folder)
    model, x = ModelNew(), torch.rand(3, 5)
    assert type(copy.deepcopy(model)) is ModelNew
    assert pickle.loads(pickle.dumps(ModelNew)) is ModelNew
    (tmp_path / "model.pickle").write_bytes(pickle.dumps((model, x)))
    code = (
        "import pickle, sys, torch, tunebench\n"
        "tunebench.set_policy('recorded')\n"
        "model, x = pickle.load(open(sys.argv[1], 'rb'))\n"
        "with torch.no_grad():\n"
        "    assert torch.equal(model(x), model.reference_forward(x))\n"
        "    assert {choice.tier for choice in model.choices.values()} <= {'default', 'reference'}\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "model.pickle")], check=True)


def test_two_folders_of_one_name_are_two_kernels(write_kernel: WriteKernel) -> None:
    one, other = write_kernel(), write_kernel()
    assert one.kernel.name == other.kernel.name
    assert pickle.loads(pickle.dumps(one)) is one and pickle.loads(pickle.dumps(other)) is other


@pytest.mark.slow
def test_the_document_runs_from_a_plain_script(tmp_path: Path) -> None:
    """Every block in order, in a file without a guard around it, as a user would begin."""
    pytest.importorskip("pandas")
    text = DOCUMENT.read_text(encoding="utf-8")
    # A block behind a comment is one that the tests do not run.
    blocks = re.findall(r"(?<!-->\n)^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 6
    script = tmp_path / "script.py"
    script.write_text("print('begins')\n" + "\n".join(blocks), encoding="utf-8")
    done = ended(sys.executable, script, folder=tmp_path, TUNEBENCH_DB=str(tmp_path / "tunebench.db"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("begins") == 1
    assert (tmp_path / "tunebench.db").exists()
