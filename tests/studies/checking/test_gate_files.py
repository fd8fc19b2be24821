"""Submission files whose truth is known: what the gate says of seven; `tests.benchmarks.gate_files` judges all."""

import ast
import json
from collections import Counter
from pathlib import Path

import pytest
from command_line import CommandLine
from tests.gate_files import FILES, RIGHT, WRONG
from tests.gate_files.entry import MARK, PROBLEM
from tests.gate_files.known_disagreements import KNOWN_DISAGREEMENTS

SAMPLE = {
    "a slower clock": "state",
    "sends a pickle": "process",
    "says that it has passed": "",
    "keeps answers by pointer": "",
    "a structure within another": "",
    "cross-entropy by log-sum-exp": "",
    "a function that ends the process for other types": "process, as a drop-in",
}
"""Each with the stage that refuses it."""


def test_every_file_of_the_set_can_be_read_and_is_there_once() -> None:
    assert len(WRONG) >= 140 and len(RIGHT) >= 75
    assert [name for name, count in Counter(file.name for file in FILES).items() if count > 1] == []
    assert KNOWN_DISAGREEMENTS.keys() <= {file.name for file in FILES}
    for file in FILES:
        ast.parse(file.reference)
        tree = ast.parse(file.text)
        assert file.text.startswith(file.reference), file.name
        assert "ModelNew" in ast.dump(tree), file.name


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLE)
def test_the_gate_says_of_a_file_what_is_true(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    (file,) = (file for file in FILES if file.name == name)
    path, reference, mark = tmp_path / "submission.py", tmp_path / "reference.py", tmp_path / "mark"
    path.write_text(file.text, encoding="utf-8")
    reference.write_text(file.reference, encoding="utf-8")
    monkeypatch.setenv(MARK, str(mark))
    run = CommandLine(monkeypatch, capsys)
    done = run("check", path, "--reference", reference, "--device", "cpu", "--json", *file.flags)
    assert not mark.exists() and "Traceback" not in done.err, done.err
    if done.code == 2:
        assert file.ends_early and done.err.count("\n") == 1
        return
    (report,) = json.loads(done.out)
    assert file.meets(problem=report["right_for_problem"], drop_in=report["drop_in"]), report["reason"]
    assert done.code == (0 if report["right_for_problem"] else 1)
    refused = [stage["name"] for stage in report["stages"] if not stage["passed"]]
    assert SAMPLE[name] in ["", *refused], refused
    assert file.claim is not PROBLEM or file.right or done.code == 1
