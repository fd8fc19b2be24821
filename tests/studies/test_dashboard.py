"""`dashboard`: Optuna's own tool on the same database."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from command_line import CommandLine

from tunebench.db.connection.database import Database, open_database
from tunebench.db.upkeep.optuna_mirror import optuna_storage, publish, publish_all
from tunebench.tuner.build import Build, CompilerName
from tunebench.tuner.device import find_device
from tunebench.tuner.environment import current_environment
from tunebench.tuner.problem import Problem
from tunebench.tuner.result import CacheRegime, Measurement, TrialResult, TrialStatus, Verdict
from tunebench.tuner.space import Configuration
from tunebench.tuner.study.history import StudyDescription


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(monkeypatch, capsys)


def record(database: Database, seed: int, trials: range) -> int:
    """Add trials to the study of that seed; its number."""
    device = find_device("cpu")
    description = StudyDescription("k", "s", "", Problem({"n": 1}), device, CompilerName.CPU, "gp", seed)
    log = database.study(description, current_environment(device, "g++"))
    build = Build("v", CompilerName.CPU, "g++", b"", "", {}, 0.1, False)
    for number in trials:
        measured = Measurement((1.0 + number,), 1.0 + number, 1.0 + number, 1.0 + number, CacheRegime.WARM, "clock")
        verdict = Verdict(passed=True, stages=(), tolerance=1e-4)
        configuration = Configuration({"a": number})
        log.record(number, TrialResult(configuration, TrialStatus.CORRECT, build, verdict, measured))
    return log.study_id


def copies(database: Database) -> list[tuple[int, int, object]]:
    """Optuna's studies: number, how many trials, and the tunables' values."""
    storage = optuna_storage(database)
    try:
        return [
            (frozen._study_id, storage.get_n_trials(frozen._study_id), frozen.user_attrs["tunebench_choices"])
            for frozen in storage.get_all_studies()
        ]
    finally:
        storage.remove_session()
        storage.engine.dispose()


def test_every_study_is_published_and_a_copy_keeps_its_values(tmp_path: Path) -> None:
    with open_database(tmp_path / "a.db") as database:
        assert publish_all(database) == 0
        publish(database, record(database, 0, range(2)), {"a": [0, 1, 2, 3, 4]})
        ((number, trials, choices),) = copies(database)
        assert (trials, choices) == (2, {"a": [0, 1, 2, 3, 4]})
        record(database, 0, range(2, 4))
        record(database, 1, range(3))
        assert publish_all(database) == publish_all(database) == 2
        assert copies(database) == [(number, 4, {"a": [0, 1, 2, 3, 4]}), (number + 1, 3, {"a": [0, 1, 2]})]


def test_without_the_package_it_says_how_to_install_it(
    command: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna_dashboard", None)
    ran = command("dashboard", "--db", tmp_path / "a.db")
    assert "'optuna_dashboard': pip install 'tunebench[dashboard]'" in ran.error


def test_it_creates_no_database(command: CommandLine, tmp_path: Path) -> None:
    pytest.importorskip("optuna_dashboard")
    assert "there is no results database" in command("dashboard", "--db", tmp_path / "a.db").error
    assert list(tmp_path.glob("a.db*")) == []


def test_a_port_that_is_taken(command: CommandLine, tmp_path: Path) -> None:
    pytest.importorskip("optuna_dashboard")
    with open_database(tmp_path / "a.db") as database:
        record(database, 0, range(1))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = command("dashboard", "--db", tmp_path / "a.db", "--port", port)
    assert ran.code == 2
    assert f"cannot listen on 127.0.0.1:{port}" in ran.err.splitlines()[-1]


def test_it_serves_this_machine_until_ctrl_c(tmp_path: Path) -> None:
    pytest.importorskip("optuna_dashboard")
    with open_database(tmp_path / "a.db") as database:
        record(database, 0, range(3))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    arguments = ("dashboard", "--db", str(tmp_path / "a.db"), "--port", str(port))
    process = subprocess.Popen(
        # A test run in the background has Ctrl-C ignored, and its children inherit that.
        ["env", "--default-signal=INT", sys.executable, "-m", "tunebench", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        encoding="utf-8",
    )
    try:
        summaries = _ask(f"http://127.0.0.1:{port}/api/studies")["study_summaries"]
        assert [summary["study_name"] for summary in summaries] == [f"k/n=1 float32/{find_device('cpu').name}/1"]
        with pytest.raises(OSError), socket.create_connection(("127.0.0.2", port), timeout=2):
            pass
    finally:
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    assert output.splitlines()[0] == f"1 study at http://127.0.0.1:{port}/, until Ctrl-C"


def _ask(address: str) -> Any:
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(address, timeout=5) as answer:
                return json.load(answer)
        except OSError:
            assert time.monotonic() < deadline, "the dashboard does not answer"
            time.sleep(0.2)
