"""A reference whose answers serve the checks of several candidates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.gate_files.entry import problem

from tunebench.tuner.errors import KernelFolderError
from tunebench.tuner.gate.answers import Answers
from tunebench.tuner.gate.boundary.remembering import Remembering
from tunebench.tuner.gate.boundary.sandbox import RemoteModel, RemoteSource
from tunebench.tuner.gate.boundary.spec import Files
from tunebench.tuner.gate.model import CallOptions
from tunebench.tuner.kernel import Mode


def counting(note: Path) -> str:
    """A reference whose answer depends on how often it was called, and that notes each call in a file."""
    return problem(
        f"open({str(note)!r}, 'a').write('.')\nself.calls += 1\nreturn x * self.calls",
        inputs="torch.rand(4)",
        init="self.register_buffer('calls', torch.zeros(()))",
    )


PLAIN = CallOptions(byte=None, guarded=False)


@pytest.fixture
def called(tmp_path: Path) -> Path:
    return tmp_path / "called"


def remembering(folder: Path, text: str) -> Remembering:
    return Remembering(Files((folder / "reference.py", text), None, {}, None, torch.device("cpu")).original)


def calls(model: RemoteModel, inputs: tuple[torch.Tensor, ...], count: int) -> Iterator[torch.Tensor]:
    for _ in range(count):
        (output,) = model.call(inputs, PLAIN).output.tensors.values()
        yield output / inputs[0]


def test_another_check_is_answered_from_memory_and_goes_on_from_there(tmp_path: Path, called: Path) -> None:
    with remembering(tmp_path, counting(called)) as sandbox:
        source = RemoteSource(sandbox, sandbox.open())
        inputs = source.inputs(1)
        assert [float(one[0]) for one in calls(source.model(Mode.EVAL), inputs, 2)] == [1, 2]
        sandbox.begin()
        model = source.model(Mode.EVAL)
        assert [float(one[0]) for one in calls(model, inputs, 2)] == [1, 2]
        assert called.read_text(encoding="utf-8") == ".."
        assert [float(one[0]) for one in calls(model, inputs, 2)] == [3, 4]  # it is put through what it was spared
        assert called.read_text(encoding="utf-8") == "......"


def test_what_is_answered_from_memory_is_nobody_elses(tmp_path: Path, called: Path) -> None:
    with remembering(tmp_path, counting(called)) as sandbox:
        source = RemoteSource(sandbox, sandbox.open())
        source.inputs(1)[0].fill_(-1.0)
        for _ in range(2):
            sandbox.begin()
            (inputs,) = source.inputs(1)
            assert (inputs >= 0).all()
            inputs.fill_(-1.0)


def test_a_model_is_really_asked_what_another_one_was_asked_in_the_same_check(tmp_path: Path, called: Path) -> None:
    with remembering(tmp_path, counting(called)) as sandbox:
        source = RemoteSource(sandbox, sandbox.open())
        inputs = source.inputs(1)
        for _ in range(2):
            list(calls(source.model(Mode.EVAL), inputs, 1))
        assert called.read_text(encoding="utf-8") == ".."


def test_a_copy_of_a_model_that_was_spared_its_calls_has_its_state(tmp_path: Path, called: Path) -> None:
    with remembering(tmp_path, counting(called)) as sandbox:
        source = RemoteSource(sandbox, sandbox.open())
        inputs = source.inputs(1)
        for _ in range(2):
            sandbox.begin()
            model = source.model(Mode.EVAL)
            list(calls(model, inputs, 3))
            assert [float(one[0]) for one in calls(model.copied(), inputs, 1)] == [4]


def test_a_reference_that_does_not_repeat_itself_is_found_out_in_every_check(tmp_path: Path) -> None:
    text = problem("Model.calls += 1\nreturn x * Model.calls", inputs="torch.rand(3, 8)")
    with remembering(tmp_path, f"{text}\nModel.calls = 0\n") as sandbox:
        source = RemoteSource(sandbox, sandbox.open())
        for _ in range(2):
            sandbox.begin()
            with pytest.raises(KernelFolderError, match="does not repeat itself"):
                Answers.consult(source, Mode.TRAIN)


def test_a_reference_that_is_run_again_is_really_asked(tmp_path: Path) -> None:
    text = problem("os._exit(3) if len(x) > 4 else None\nreturn x", inputs="torch.rand(4)")
    with remembering(tmp_path, text) as sandbox:
        for _ in range(2):
            sandbox.begin()
            source = RemoteSource(sandbox, sandbox.open())
            with pytest.raises(Exception, match="exit code 3"):
                source.model(Mode.EVAL).call((torch.ones(5),), PLAIN)
            sandbox.revive()
            (output,) = source.model(Mode.EVAL).call((torch.ones(4),), PLAIN).output.tensors.values()
            assert (output == 1).all()
