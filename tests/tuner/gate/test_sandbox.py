"""A process that holds models for the judge."""

from __future__ import annotations

from pathlib import Path

import torch
from tests.gate_files.references import SCALE

from tunebench.tuner.gate.boundary.sandbox import RemoteSource, Sandbox
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
