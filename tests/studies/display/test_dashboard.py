"""`dashboard`: Optuna's own tool on the same database."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from command_line import CommandLine

from tunebench.db.connection.database import Database, open_database
from tunebench.db.entries.study_log import open_study
from tunebench.db.upkeep.optuna_mirror import optuna_storage, publish, publish_all
from tunebench.tuner.build import Build, CompilerName
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import find_device
from tunebench.tuner.environment import current_environment
from tunebench.tuner.problem import Problem
from tunebench.tuner.result import CacheRegime, Measurement, TrialResult, TrialStatus, Verdict
from tunebench.tuner.study.history import StudyDescription


def record(database: Database, seed: int, trials: range) -> int:
    """Add trials to the study of that seed; its number."""
    device = find_device("cpu")
    description = StudyDescription("k", "s", "", Problem({"n": 1}), device, CompilerName.CPU, "gp", seed)
    log = open_study(database, description, current_environment(device, "g++"))
    build = Build("v", CompilerName.CPU, "g++", b"", "", {}, 0.1, False)
    for number in trials:
        measured = Measurement((1.0 + number,), 1.0 + number, 1.0 + number, 1.0 + number, CacheRegime.WARM, "clock")
        verdict = Verdict(passed=True, stages=(), tolerance=1e-4)
        configuration = Configuration({"a": number})
        log.record(TrialResult(configuration, TrialStatus.CORRECT, build, verdict, measured))
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
    run: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna_dashboard", None)
    ran = run("dashboard", "--db", tmp_path / "a.db")
    assert "'optuna_dashboard': pip install 'tunebench[dashboard]'" in ran.error


def test_it_creates_no_database(run: CommandLine, tmp_path: Path) -> None:
    pytest.importorskip("optuna_dashboard")
    assert "there is no results database" in run("dashboard", "--db", tmp_path / "a.db").error
    assert list(tmp_path.glob("a.db*")) == []


def test_a_port_that_is_taken(run: CommandLine, tmp_path: Path) -> None:
    pytest.importorskip("optuna_dashboard")
    with open_database(tmp_path / "a.db") as database:
        record(database, 0, range(1))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = run("dashboard", "--db", tmp_path / "a.db", "--port", port)
    assert ran.code == 2
    assert f"cannot listen on 127.0.0.1:{port}" in ran.err.splitlines()[-1]


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Dashboard:
    """A dashboard in a process of its own, and what is asked of it over HTTP."""

    def __init__(self, file: Path, *prefix: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        arguments = ("dashboard", "--db", str(file), "--port", str(self.port))
        # A test run in the background has Ctrl-C ignored, and its children inherit that.
        started = ["env", "--default-signal=INT", *prefix, sys.executable, "-m", "tunebench", *arguments]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            started, stdout=pipe, stderr=pipe, text=True, encoding="utf-8", env=environment
        )

    def ask(self, path: str, method: str = "GET", body: object = None, **headers: str) -> Answer:
        """Send a request once the dashboard listens; `headers` in snake case, `host` included."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        text = None if body is None else json.dumps(body)
        deadline = time.monotonic() + 60
        while True:
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
                connection.request(method, path, text, {"Content-Type": "application/json", **named})
                answer = connection.getresponse()
                return Answer(answer.status, dict(answer.getheaders()), answer.read())
            except OSError:
                assert self._process.poll() is None and time.monotonic() < deadline, "the dashboard does not answer"
                time.sleep(0.1)
            finally:
                connection.close()

    def studies(self) -> list[str]:
        """The names of the studies that it shows."""
        return [summary["study_name"] for summary in self.ask("/api/studies").json["study_summaries"]]

    def end(self) -> tuple[int, str, str]:
        """Ctrl-C; how it ended, and what it printed."""
        self._process.send_signal(signal.SIGINT)
        output, errors = self._process.communicate(timeout=30)
        return self._process.returncode, output, errors


@pytest.fixture
def three_trials(tmp_path: Path) -> Path:
    pytest.importorskip("optuna_dashboard")
    with open_database(tmp_path / "a.db") as database:
        record(database, 0, range(3))
    return tmp_path / "a.db"


@pytest.fixture
def dashboard(three_trials: Path) -> Iterator[Dashboard]:
    running = Dashboard(three_trials)
    yield running
    if running._process.poll() is None:
        running.end()


@pytest.mark.slow
def test_it_serves_this_machine_quietly_until_ctrl_c(dashboard: Dashboard) -> None:
    assert dashboard.studies() == [f"k/n=1 float32/{find_device('cpu').name}/1"]
    page = dashboard.ask("/dashboard")
    assert page.status == 200 and page.headers["X-Frame-Options"] == "DENY"
    assert dashboard.ask("/api/studies/1/param_importances").status == 200
    assert dashboard.ask("/api/studies/77").status == 404
    with pytest.raises(OSError), socket.create_connection(("127.0.0.2", dashboard.port), timeout=2):
        pass
    expected = f"1 study at http://{dashboard.address}/, until Ctrl-C\n"
    assert dashboard.end() == (0, expected, "")


@pytest.mark.slow
def test_requests_for_another_host_are_refused(dashboard: Dashboard) -> None:
    for host in (
        "evil.example",
        f"evil.example:{dashboard.port}",
        "127.0.0.1:1",
        f"127.0.0.1.evil:{dashboard.port}",
        "",
    ):
        refused = dashboard.ask("/api/studies", host=host)
        assert (refused.status, b"this dashboard answers at" in refused.body) == (403, True), host
    for host in (dashboard.address, f"localhost:{dashboard.port}"):
        assert dashboard.ask("/api/studies", host=host).status == 200


@pytest.mark.slow
def test_only_its_own_pages_may_change_anything(dashboard: Dashboard) -> None:
    own, note = f"http://{dashboard.address}", {"body": "x", "version": 1}
    foreign: list[dict[str, str]] = [
        {},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://[::1"},
        {"origin": f"https://{dashboard.address}"},
        {"origin": "http://127.0.0.1:1"},
        {"origin": f"http://localhost:{dashboard.port}"},
        {"referer": "http://evil.example/" + own},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"sec_fetch_site": "none"},
        {"sec_fetch_site": "cross-site", "origin": own},
        {"sec_fetch_site": "same-origin", "origin": "http://evil.example"},
        {"origin": own, "host": "evil.example"},
    ]
    for headers in foreign:
        assert dashboard.ask("/api/studies/1", "DELETE", **headers).status == 403, headers
        assert dashboard.ask("/api/studies/1/note", "PUT", {"body": "x", "version": 1}, **headers).status == 403, (
            headers
        )
    assert len(dashboard.studies()) == 1
    assert dashboard.ask("/api/studies/1/note", "PUT", note, origin=own).status == 204
    assert dashboard.ask("/api/studies/1", "DELETE", referer=f"{own}/dashboard/studies/1").status == 204
    assert dashboard.studies() == []


@pytest.mark.slow
def test_a_database_that_cannot_be_written_is_shown_from_memory(three_trials: Path) -> None:
    # Root writes whatever the modes say; without that capability it is as anyone else.
    prefix = ("setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override") if os.geteuid() == 0 else ()
    folder = three_trials.parent
    three_trials.chmod(0o444)
    folder.chmod(0o555)
    before = three_trials.read_bytes()
    try:
        dashboard = Dashboard(three_trials, *prefix)
        assert dashboard.studies() == [f"k/n=1 float32/{find_device('cpu').name}/1"]
        assert dashboard.ask("/api/studies/0").json["name"] == dashboard.studies()[0]
        code, output, errors = dashboard.end()
    finally:
        folder.chmod(0o755)
    assert (code, output) == (0, f"1 study at http://{dashboard.address}/, until Ctrl-C\n")
    (line,) = errors.splitlines()
    assert line.endswith("cannot be written: what you change in the dashboard is not kept")
    assert three_trials.read_bytes() == before
