"""The command as a user meets it: on the CPU, with real builds and a real database, and where that may matter
in a process of its own."""

import contextlib
import io
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import CommandLine
from processes import ended
from sample_kernel import WriteKernel
from sample_results import ENVIRONMENT, STUDY, correct

from tunebench.db.connection.database import open_database
from tunebench.db.entries.study_log import open_study
from tunebench.db.queries.trials import count_rows
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.studies.faces.cli.run import run as run_command_line
from tunebench.tuner.errors import DatabaseError

pytestmark = pytest.mark.usefixtures("short_studies")

SMALL = ("--device", "cpu", "--size", "M=64", "--size", "N=33")


def tunebench(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command in this process, which has torch already."""
    out, err, given = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["tunebench", *arguments]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run_command_line()
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 0
    finally:
        sys.argv = given
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def spawn(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own."""
    return ended(sys.executable, "-m", "tunebench", *arguments, **environment)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "number", "line"),
    [
        ("import", signal.SIGINT, "interrupted"),
        ("study", signal.SIGTERM, "terminated"),
        ("study", signal.SIGHUP, "the terminal is gone"),
    ],
)
def test_a_signal_ends_a_command_in_one_line(
    write_kernel: WriteKernel, tmp_path: Path, number: signal.Signals, line: str, moment: str
) -> None:
    """While its kernel is being imported, and while a study waits for a variant that never ends."""
    marker = tmp_path / "marker"
    announce = f"__import__('pathlib').Path({str(marker)!r}).write_text('here', encoding='utf-8')"
    wait = f"{announce}; __import__('time').sleep(1000)"
    if moment == "import":
        factory = write_kernel()
        model = factory.kernel.folder / "model.py"
        model.write_text(f"{wait}\n{model.read_text(encoding='utf-8')}", encoding="utf-8")
    else:
        factory = write_kernel(model={"        blocks = plan": f"        {wait}\n        blocks = plan"})
    command = [sys.executable, "-m", "tunebench", "tune", str(factory.kernel.folder), "--device", "cpu"]
    process = subprocess.Popen(
        [*command, "--db", str(tmp_path / "a.db")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not marker.exists():
        assert time.monotonic() < deadline, "it never began"
        time.sleep(0.02)
    os.killpg(process.pid, number)
    _, errors = process.communicate()
    assert process.returncode == 128 + number, errors.decode()
    assert errors.decode().splitlines()[-1:] == [f"tunebench: {line}"]
    assert "Traceback" not in errors.decode()


def one_line_error(result: subprocess.CompletedProcess[str]) -> str:
    """The message of a question that was wrong: exit code 2, one line, nothing on standard output."""
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    return lines[0]


def folder_of(factory: type[TunedModule]) -> str:
    return str(factory.kernel.folder)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with a short study of two shipped kernels, one of them in all of its modes."""
    database = tmp_path_factory.mktemp("tuned") / "results.db"
    result = spawn("tune", "scalar_mul", *SMALL, "--trials", "3", "--db", str(database), "--json")
    (report,) = json.loads(result.stdout)  # all there is on standard output
    assert report["trials"] == 3
    assert report["counts"] == {"correct": 3} or report["counts"].keys() <= {"correct", "pruned"}
    assert set(report["speedups"]) == {"reference", "default", "copy"}
    for ratio in report["speedups"].values():
        assert 0 < ratio["low"] <= ratio["value"] <= ratio["high"]
    with contextlib.closing(sqlite3.connect(database)) as connection:  # Optuna's own tables have a copy
        assert connection.execute("SELECT count(*) FROM trials").fetchone() == (3,)
    sizes = ("--size", "batch_size=8", "--size", "in_features=16", "--size", "out_features=12")
    quick = ("--device", "cpu", "--tunable", "product=fp32", "--trials", "1")
    result = tunebench("tune", "gemm_scale_bn", *sizes, *quick, "--db", str(database))
    assert result.returncode == 0, result.stderr
    return database


@pytest.mark.slow
def test_the_same_command_goes_on_with_a_table_and_plain_lines_where_there_is_no_terminal(tuned: Path) -> None:
    result = tunebench("tune", "scalar_mul", *SMALL, "--trials", "5", "--db", str(tuned))
    assert result.returncode == 0, result.stderr
    assert "over reference" in result.stdout
    assert "5 of 5" in result.stdout
    assert re.search(r"\d× (faster|slower|unconfirmed)|  tie", result.stdout)
    assert re.search(r"best +block_size=", result.stdout)
    assert re.search(r"refused +0\n", result.stdout)
    said = result.stderr.splitlines()
    assert said[0].startswith("tuning scalar_mul")
    assert "5/5 best" in result.stderr and "variants/s" in result.stderr
    assert "in interleaved rounds with the reference" in said[-2]
    assert "putting the winner through the rest of the gate" in said[-1]
    assert "\x1b[" not in result.stdout + result.stderr
    again = tunebench("tune", "scalar_mul", *SMALL, "--trials", "5", "--db", str(tuned), "--json")
    (report,) = json.loads(again.stdout)
    assert (report["trials"], report["study"]) == (5, 1)


@pytest.mark.slow
def test_best_and_trials_agree_with_the_study(tuned: Path) -> None:
    rows = json.loads(tunebench("best", "--db", str(tuned), "--json").stdout)
    assert [(row["kernel"], row["problem"]["options"].get("mode")) for row in rows] == [
        ("gemm_scale_bn", "eval"),
        ("gemm_scale_bn", "frozen"),
        ("gemm_scale_bn", "train"),
        ("scalar_mul", None),
    ]
    assert all(row["problem"]["options"]["call"] for row in rows)
    assert all(row["over_reference"] for row in rows)  # whether rounds confirm it is the machine's
    trials = json.loads(tunebench("trials", "--db", str(tuned), "scalar_mul", "--json").stdout)
    assert [trial["number"] for trial in trials] == list(reversed(range(len(trials)))) and len(trials) in (3, 5)
    assert trials[-1]["configuration"]["block_size"] == 256
    fastest = json.loads(tunebench("trials", "--db", str(tuned), "--study", "1", "--fastest", "--json").stdout)
    assert [t["median_ms"] for t in fastest] == sorted(t["median_ms"] for t in fastest)
    assert "elements=2112 float32" in tunebench("best", "scalar_mul", "--db", str(tuned)).stdout
    assert tunebench("trials", "--db", str(tuned), "gemm_scale_bn", "--limit", "3").stdout.count("gemm_scale_bn") == 3


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with a trial that was recorded by no study."""
    file = tmp_path_factory.mktemp("recorded") / "results.db"
    with open_database(file) as database:
        open_study(database, STUDY, ENVIRONMENT).record(correct(0))
    return file


def test_nothing_found_is_the_answer_no(recorded: Path) -> None:
    result = tunebench("best", "--db", str(recorded), "--device", "NVIDIA H100")
    assert result.returncode == 1
    assert result.stdout == ""
    assert json.loads(tunebench("trials", "--db", str(recorded), "--status", "compile", "--json").stdout) == []


def test_doctor_changes_nothing_and_names_what_is_here(tmp_path: Path) -> None:
    database = tmp_path / "none.db"
    findings = json.loads(tunebench("doctor", "--db", str(database), "--json").stdout)
    works = {finding["subject"]: finding["works"] for finding in findings}
    assert works["cpu"] and works["compiler cpu"] and works["torch"]
    assert all(finding["remedy"] for finding in findings if not finding["works"])
    assert not database.exists()
    assert "compiler nvrtc" in tunebench("doctor", "--db", str(database)).stdout


@pytest.mark.slow
def test_a_study_file(tmp_path: Path) -> None:
    study = tmp_path / "study.toml"
    study.write_text(
        'kernel = "scalar_mul"\ntrials = 3\ndevice = "cpu"\nsampler = "exhaustive"\n'
        "[sizes]\nM = 16\nN = 16\n[tunables]\nblock_size = [64, 128]\n",
        encoding="utf-8",
    )
    (report,) = json.loads(tunebench("tune", str(study), "--db", str(tmp_path / "a.db"), "--json").stdout)
    assert report["problem"]["axes"] == {"elements": 256}
    assert report["valid_configurations"] == 840


@pytest.mark.slow
def test_a_kernel_folder_of_ones_own(write_kernel: WriteKernel, tmp_path: Path) -> None:
    factory = write_kernel(source={'extern "C"': 'static_assert(variety != 1, "not built");\nextern "C"'})
    arguments = ("--device", "cpu", "--sampler", "exhaustive", "--db", str(tmp_path / "a.db"))
    result = tunebench("tune", folder_of(factory), *arguments)
    assert result.returncode == 0, result.stderr
    assert re.search(r"refused +11 \(compile 11\)", result.stdout)
    assert re.search(r"11× +compile: ", result.stdout)
    assert "the best is the best there is" in result.stdout
    failed = json.loads(tunebench("trials", "--status", "compile", "--db", str(tmp_path / "a.db"), "--json").stdout)
    assert len(failed) == 11
    assert all("not built" in row["message"] for row in failed)


@pytest.mark.slow
def test_a_sampler_of_optunas_tunes_and_goes_on(write_kernel: WriteKernel, tmp_path: Path) -> None:
    options = ("--device", "cpu", "--sampler", "optuna:NSGAIISampler", "--db", str(tmp_path / "a.db"), "--json")
    for trials in (4, 9):
        result = tunebench("tune", folder_of(write_kernel()), "--trials", str(trials), *options)
        assert result.returncode == 0, result.stderr
    rows = json.loads(tunebench("trials", "--db", str(tmp_path / "a.db"), "--json").stdout)
    assert {row["number"] for row in rows} == set(range(9))
    assert len({json.dumps(row["configuration"], sort_keys=True) for row in rows}) == 9


@pytest.mark.slow
def test_a_study_where_nothing_is_correct_exits_1(write_kernel: WriteKernel, tmp_path: Path) -> None:
    factory = write_kernel(source={"* weight[0]": "+ weight[0]"})
    result = tunebench("tune", folder_of(factory), "--device", "cpu", "--trials", "2", "--db", str(tmp_path / "a.db"))
    assert result.returncode == 1
    assert "correctness: draw 1: error" in result.stdout


@pytest.mark.slow
def test_ctrl_c_records_everything_and_the_same_command_goes_on(tmp_path: Path) -> None:
    database = tmp_path / "a.db"
    command = ("tune", "scalar_mul", *SMALL, "--trials", "400", "--sampler", "random", "--db", str(database))
    process = subprocess.Popen(
        # A test run in the background has Ctrl-C ignored, and its children inherit that.
        ["env", "--default-signal=INT", sys.executable, "-m", "tunebench", *command, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and count_trials(database) < 3:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    (report,) = json.loads(output)
    assert report["ending"] == "interrupted"
    assert report["trials"] == count_trials(database) >= 3
    again = tunebench(*command[:-4], "--trials", str(report["trials"] + 2), *command[-4:], "--json")
    assert json.loads(again.stdout)[0]["study"] == report["study"]
    assert count_trials(database) == report["trials"] + 2


def count_trials(database: Path) -> int:
    try:
        with open_database(database, read_only=True) as opened:
            return count_rows(opened)[1]
    except DatabaseError:  # not there yet, or still being made
        return 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tune", "scalar_mull"), "unknown kernel 'scalar_mull'; did you mean scalar_mul?"),
        (("tune", "scalar_mul", "--tunable", "blok_size=64"), "unknown tunable 'blok_size'; did you mean block_size?"),
        (("tune", "scalar_mul", "--tunable", "block_size=65"), "'block_size' has no value 65"),
        (("tune", "scalar_mul", "--size", "Q=3"), "unknown size of scalar_mul 'Q'"),
        (("tune", "scalar_mul", "--size", "M"), "'M' is not of the form NAME=NUMBER"),
        (("tune", "scalar_mul", "--sampler", "gq"), "unknown sampler 'gq'; did you mean gp?"),
        (("tune", "scalar_mul", "--sampler", "optuna:GPsampler"), "did you mean optuna:GPSampler or optuna:"),
        (("tune", "scalar_mul", "--mode", "train"), "unknown mode of kernel 'scalar_mul' 'train'"),
        (("tune", "scalar_mul", "--trials", "0"), "Invalid value for '--trials'"),
        (("tune", "scalar_mul", "--device", "tpu"), "'tpu' is no device: use cuda, cuda:INDEX or cpu"),
        (("tune", "scalar_mul", "--device", "cuda:99"), "device 'cuda:99' is not on this machine"),
        (("tune", "scalar_mul", "--compiler", "nvrtc"), "compiler 'nvrtc' does not make binaries for cpu: use cpu"),
        (("tune", "absent.toml"), "absent.toml: cannot read it as TOML"),
        (("best", "scaler"), "unknown kernel 'scaler'"),
        (("trials", "--status", "corect"), "unknown status 'corect'; did you mean correct"),
    ],
    ids=lambda value: " ".join(value[1:]) if isinstance(value, tuple) else "",
)
def test_bad_input_gets_one_line(
    run: CommandLine, recorded: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    database = recorded if arguments[0] != "tune" else tmp_path / "a.db"
    device = ("--device", "cpu") if arguments[0] == "tune" and "--device" not in arguments else ()
    assert message in run(*arguments, *device, "--db", str(database)).error


def test_an_empty_space_names_the_constraint(write_kernel: WriteKernel, tmp_path: Path) -> None:
    factory = write_kernel(model={"block_size * blocks <= 512": "block_size * blocks <= 5"})
    result = tunebench("tune", folder_of(factory), "--device", "cpu", "--db", str(tmp_path / "a.db"))
    assert "constraint 'few_threads' refuses all of the 36 left" in one_line_error(result)


def test_a_missing_compiler_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    message = one_line_error(tunebench("tune", "scalar_mul", *SMALL, "--db", str(tmp_path / "a.db")))
    assert "g++" in message and "install" in message


@pytest.mark.parametrize("key", ["trails = 3", "[size]\nM = 3"])
def test_a_study_file_with_an_unknown_key(tmp_path: Path, key: str) -> None:
    study = tmp_path / "study.toml"
    study.write_text(f'kernel = "scalar_mul"\n{key}\n', encoding="utf-8")
    message = one_line_error(tunebench("tune", str(study), "--db", str(tmp_path / "a.db")))
    assert "unknown key in" in message and "did you mean" in message


def test_a_database_of_a_newer_revision(recorded: Path, tmp_path: Path) -> None:
    newer = tmp_path / "newer.db"
    with sqlite3.connect(recorded) as source, sqlite3.connect(newer) as target:
        source.backup(target)
        target.execute("UPDATE tunebench_version SET version_num = '9999'")
    for arguments in (("tune", "scalar_mul", *SMALL), ("best",), ("trials",)):
        message = one_line_error(tunebench(*arguments, "--db", str(newer)))
        assert "9999" in message and "upgrade tunebench" in message.lower()


def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("these are my notes\n" * 100, encoding="utf-8")
    message = one_line_error(tunebench("tune", "scalar_mul", *SMALL, "--db", str(file)))
    assert "notes.txt" in message
    assert file.read_text(encoding="utf-8") == "these are my notes\n" * 100


def test_help_and_version_answer() -> None:
    assert "tune" in tunebench().stderr
    assert "tune" in spawn("--help").stdout
    for command in ("tune", "best", "trials", "doctor"):
        text = tunebench(command, "--help").stdout
        assert "--db" in text and "--json" in text
    assert tunebench("--version").stdout.startswith("tunebench 0.")


def test_an_unknown_option_exits_2() -> None:
    result = tunebench("best", "--colour")
    assert result.returncode == 2
    assert "--colour" in result.stderr and "Traceback" not in result.stderr
