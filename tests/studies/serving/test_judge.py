"""The judge over HTTP: a real server, asked by real clients; what it says of files, and what it refuses to read."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.gate_files.entry import forward, problem

import tunebench
from tunebench import UserError
from tunebench.studies.serving.judge import Question, TokenBuckets
from tunebench.studies.serving.server import JudgeServer
from tunebench.studies.serving.signing import Key

ROOT = Path(__file__).parents[3]
REFERENCE = problem("return F.softmax(x, -1)", constants="ROWS = 16\nCOLUMNS = 24", inputs="torch.randn(ROWS, COLUMNS)")
RIGHT = REFERENCE + forward("return x.softmax(-1)")
WRONG = REFERENCE + forward("return torch.zeros_like(x)")
WHOLE = {"file": RIGHT, "reference": REFERENCE, "device": "cpu"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[JudgeServer]:
    with tunebench.serve_judge(port=0, key=tmp_path / "key", longest=1 << 16, rate=1000) as served:
        yield served


def asked(
    server: JudgeServer, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, Any, Mapping[str, str]]:
    """Return the status, the JSON and the headers of an answer."""
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=600)  # type: ignore[arg-type]
    connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    assert answer.headers["Content-Type"] == "application/json"
    return answer.status, json.loads(answer.read() or b"null"), answer.headers


def judged(server: JudgeServer, **content: object) -> tuple[int, Any]:
    status, answer, _ = asked(server, "POST", "/check", json.dumps({**WHOLE, **content}).encode())
    return status, answer


def error_of(answer: Any) -> str:
    """Return the one line of an error, which has nothing else in it."""
    assert list(answer) == ["error"] and "\n" not in answer["error"]
    return str(answer["error"])


def test_health(server: JudgeServer) -> None:
    status, answer, _ = asked(server, "GET", "/health")
    assert (status, answer["status"], answer["jobs"], answer["requests"]) == (200, "ok", 1, 0)
    assert answer["tunebench"] == tunebench.__version__ and answer["key"] == server.judge.key.name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "line"),
    [
        ({"file": None}, "'file' is missing"),
        ({"file": "  "}, "'file' is missing"),
        ({"reference": 3}, "'reference' is missing"),
        ({"file": "x = '\ud800'"}, "half of a surrogate pair"),
        ({"target": "/etc/passwd"}, "'target' is no member of a request"),
        ({"problems": "/etc"}, "'problems' is no member"),
        ({"timing": "yes"}, "'timing' is 'yes': give true or false"),
        ({"mode": "frozen"}, "'mode' is 'frozen': give train or eval"),
        ({"seconds": 0}, "'seconds' is not legal"),
        ({"seconds": "many"}, "'seconds' is not legal"),
        ({"sizes": {"ROWS": float("nan")}}, "sizes.ROWS"),
        ({"sizes": [1]}, "sizes"),
        ({"require": "nothing"}, "requirement 'nothing'"),
        ({"declared": ["slow"]}, "declaration 'slow'"),
        ({"dtype": ""}, "dtype"),
    ],
)
def test_a_request_that_is_not_legal_is_one_line(server: JudgeServer, content: Mapping[str, Any], line: str) -> None:
    status, answer = judged(server, **content)
    assert status == 400 and line in error_of(answer)


@pytest.mark.slow
@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[1]", b'"text"', b"[" * 60000, b"1" * 60000])
def test_a_body_that_is_no_request(server: JudgeServer, body: bytes) -> None:
    status, answer, _ = asked(server, "POST", "/check", body)
    assert status == 400 and error_of(answer)


def test_what_is_no_request_of_the_judge(server: JudgeServer) -> None:
    assert asked(server, "GET", "/check")[0] == asked(server, "POST", "/health", b"{}")[0] == 404
    assert asked(server, "PUT", "/check", b"{}")[0] == 501
    status, answer, _ = asked(server, "POST", "/check", b"x" * (1 << 22))
    assert status == 413 and "65536 are allowed" in error_of(answer)
    assert asked(server, "POST", "/check", Transfer_Encoding="chunked")[0] == 411
    status, answer, _ = asked(server, "POST", "/check", b"{}", Origin="http://127.0.0.1")
    assert status == 403 and "web pages" in error_of(answer)


def test_a_client_that_asks_too_often_is_told_when_to_come_back(tmp_path: Path) -> None:
    with tunebench.serve_judge(port=0, key=tmp_path / "key", rate=1) as server:
        assert asked(server, "POST", "/check", b"{}")[0] == 400
        status, answer, headers = asked(server, "POST", "/check", b"{}")
        assert status == 429 and 0 < int(headers["Retry-After"]) <= 60 and "too many requests" in error_of(answer)
        assert asked(server, "GET", "/health")[0] == 200


def test_buckets_fill_again_one_for_each_client() -> None:
    now = [0.0]
    buckets = TokenBuckets(6, lambda: now[0])
    assert [buckets.seconds_until("a") for _ in range(7)] == [0, 0, 0, 0, 0, 0, 10]
    assert buckets.seconds_until("b") == 0
    now[0] = 9
    assert buckets.seconds_until("a") == pytest.approx(1)
    now[0] = 10
    assert [buckets.seconds_until("a"), buckets.seconds_until("a")] == [0, pytest.approx(10)]
    now[0] = 1e6
    assert [buckets.seconds_until("a") == 0 for _ in range(7)] == [True] * 6 + [False]


def test_more_requests_than_may_wait_are_refused(server: JudgeServer) -> None:
    with ExitStack() as waiting:
        for _ in range(9):
            waiting.enter_context(server.judge._slots.place())
        status, answer, headers = asked(server, "POST", "/check", json.dumps(WHOLE).encode())
        assert status == 503 and headers["Retry-After"] and "try again later" in error_of(answer)
    assert server.judge.waiting == 0


def test_a_key_is_made_once_and_is_the_users_alone(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "key"
    key = Key.read_or_make(path)
    assert Key.read_or_make(path) == key and len(key.secret) == 32 and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert key.secret.hex() not in repr(key) and key.name not in key.secret.hex()
    path.write_text("12", encoding="ascii")
    with pytest.raises(UserError, match="1 bytes in place of 32"):
        Key.read(path)
    path.write_text("no key", encoding="ascii")
    with pytest.raises(UserError, match="64 hexadecimal digits"):
        Key.read(path)
    with pytest.raises(UserError, match="cannot read the key"):
        tunebench.verify_verdict({}, tmp_path / "none")


def test_a_verdict_that_was_changed_does_not_verify(tmp_path: Path) -> None:
    key = Key.read_or_make(tmp_path / "key")
    verdict = key.signed({"passed": False, "reason": "é", "error": 1e-7, "stages": [{"name": "run"}]})
    signature = verdict["signature"]
    assert tunebench.verify_verdict(json.loads(json.dumps(verdict)), tmp_path / "key")
    for changed in (
        {**verdict, "passed": True},
        {**verdict, "more": 1},
        {**verdict, "error": float("nan")},
        {**verdict, "signature": {**signature, "value": "é"}},
        {**verdict, "signature": {**signature, "algorithm": "none"}},
        {**verdict, "signature": None},
        {"passed": False},
    ):
        assert not tunebench.verify_verdict(changed, tmp_path / "key")
    Key.read_or_make(tmp_path / "another")
    assert not tunebench.verify_verdict(verdict, tmp_path / "another")


def test_an_address_that_is_taken(server: JudgeServer, tmp_path: Path) -> None:
    _, port = server.server_address[:2]
    with (
        pytest.raises(UserError, match="Address already in use; choose another"),
        tunebench.serve_judge(port=int(port), key=tmp_path / "key"),
    ):
        pass
    with pytest.raises(UserError, match="'port' is not legal"):
        tunebench.serve_judge(port=70000)


def test_only_what_a_client_may_choose_is_asked_of_the_gate() -> None:
    question = Question.read({**WHOLE, "mode": "eval", "require": "drop-in", "sizes": {"ROWS": 8}, "dtype": None})
    assert question.options == {"device": "cpu", "modes": ["eval"], "require": "drop-in", "sizes": {"ROWS": 8}}


@pytest.mark.slow
def test_verdicts_on_files(server: JudgeServer, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as clients:
        right, wrong = clients.map(
            lambda text: judged(server, file=text, sizes={"ROWS": 8}, seed=7, timing=True), (RIGHT, WRONG)
        )
    for (status, verdict), text in ((right, RIGHT), (wrong, WRONG)):
        assert status == 200 and tunebench.verify_verdict(verdict, tmp_path / "key"), verdict
        assert asked(server, "POST", "/verify", json.dumps(verdict).encode())[1] == {"verified": True}
        assert verdict["asked"] == {"device": "cpu", "sizes": {"ROWS": 8}, "seed": 7} and verdict["box"]
        assert verdict["seed"] == 7
        assert verdict["sha256"]["file"] == _digest(text) and verdict["sha256"]["reference"] == _digest(REFERENCE)
        assert verdict["versions"]["tunebench"] == tunebench.__version__ and verdict["device"]
        assert str(tmp_path) not in json.dumps(verdict) and "target" not in verdict
    passed, refused = right[1], wrong[1]
    assert (passed["verdict"], passed["passed"], passed["refusals"]) == ("drop-in", True, [])
    assert (refused["verdict"], refused["passed"], refused["right_for_problem"]) == ("refused", False, False)
    assert refused["refusals"][0]["stage"] and refused["reason"] and refused["timing"] is None
    timing = passed["timing"]
    assert timing["decision"] in ("faster", "slower", "tie", "inconclusive") and timing["refusal"] == ""
    assert timing["ratio"]["low"] <= timing["ratio"]["value"] <= timing["ratio"]["high"]
    assert set(timing["medians_ms"]) == {"file", "reference", "control"}
    forged = {**refused, "passed": True}
    assert asked(server, "POST", "/verify", json.dumps(forged).encode())[1] == {"verified": False}
    status, answer = judged(server, reference="import torch\n")
    assert status == 400 and "KernelBench's form" in error_of(answer)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.slow
def test_a_check_that_takes_longer_than_the_server_allows_is_refused(tmp_path: Path) -> None:
    endless = REFERENCE + forward("while True:\n    pass")
    with tunebench.serve_judge(port=0, key=tmp_path / "key", seconds=10) as server:
        status, verdict = judged(server, file=endless, seconds=500)
    assert status == 200 and not verdict["passed"] and "still running" in verdict["reason"], verdict


@pytest.mark.slow
def test_the_command_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tunebench", "serve", "--judge", "--port", "0", "--key", str(tmp_path / "key")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, env=environment, text=True) as process:
        assert process.stdout is not None
        said = json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")
        host, port = said["address"].removeprefix("http://").split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        connection.request("GET", "/health")
        assert json.loads(connection.getresponse().read())["key"] == said["key"] and host == "127.0.0.1"
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(60) == 0
        finally:
            process.kill()


def test_the_command_says_what_there_is_to_serve(run: Any) -> None:
    done = run("serve")
    assert (done.code, done.err) == (2, "tunebench: nothing to serve: give --judge\n")
