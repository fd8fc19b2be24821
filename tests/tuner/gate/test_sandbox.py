"""A process that holds models for the judge."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from tests.gate_files.references import SCALE

from tunebench.tuner.gate.boundary.sandbox import ReferenceSandboxError, RemoteSource, Sandbox
from tunebench.tuner.gate.boundary.spec import Files
from tunebench.tuner.gate.model import CallOptions
from tunebench.tuner.kernel import Mode


def test_an_output_that_was_sent_is_let_go_of(tmp_path: Path) -> None:
    files = Files((tmp_path / "reference.py", SCALE), None, {}, None, torch.device("cpu"))
    with Sandbox(files.original) as sandbox:
        source = RemoteSource(sandbox, sandbox.open())
        model = source.model(Mode.EVAL)
        model.call(source.inputs(0), CallOptions(byte=None, guarded=False, keep=True))
        assert not model.keeps_outputs()


def test_whoever_asks_one_that_is_killed_gets_no_answer_and_cannot_revive_it(tmp_path: Path) -> None:
    hangs = SCALE.replace("return x", "__import__('time').sleep(600)\n        return x")
    assert hangs != SCALE
    files = Files((tmp_path / "reference.py", hangs), None, {}, None, torch.device("cpu"))
    with Sandbox(files.original) as sandbox, ThreadPoolExecutor(1) as pool:
        source = RemoteSource(sandbox, sandbox.open())
        asked = pool.submit(source.model(Mode.EVAL).call, source.inputs(0), CallOptions(byte=None, guarded=False))
        sandbox.kill()
        with pytest.raises(ReferenceSandboxError):
            asked.result(60)
        with pytest.raises(ReferenceSandboxError, match="killed"):
            source.revive()
