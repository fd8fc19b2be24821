"""Files that nobody vouches for, on a GPU: what `compare` times and refuses, what `check` says of memory."""

import os
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from command_line import CommandLine
from compared_files import BY_POINTER, FILE, LAZY, NEW, WHEN_NOT_TIMED
from tests.gate_files import ON_CUDA

from tunebench.tuner.gate.boundary.lending import Borrowing, Lending
from tunebench.tuner.gate.boundary.supervisor import Supervised
from tunebench.tuner.gate.boundary.wire import receive, send
from tunebench.tuner.gate.memory import same_bits
from tunebench.tuner.gate.sanitizer import find_sanitizer

pytestmark = pytest.mark.gpu

OTHER_EVENTS = """
import tunebench.tuner.gate.boundary.batched_calls as calls
made = calls._event
class Slow:
    def __init__(self): self.event = made()
    def record(self): self.event.record()
    def elapsed_time(self, other): return self.event.elapsed_time(other.event) / 10
calls._event = Slow
ModelNew = type("ModelNew", (Model,), {})
"""
PATCHED_EVENTS = """
elapsed = torch.cuda.Event.elapsed_time
torch.cuda.Event.elapsed_time = lambda self, other: elapsed(self, other) / 10
ModelNew = type("ModelNew", (Model,), {})
"""
ASIDE = """
SIDE = torch.cuda.Stream()
class ModelNew(Model):
    def forward(self, x):
        with torch.cuda.stream(SIDE):
            return super().forward(x)
"""
ASIDE_WHEN_TIMED = """
import sys
SIDE = torch.cuda.Stream()
class ModelNew(Model):
    def forward(self, x):
        frame = sys._getframe()
        while frame := frame.f_back:
            if frame.f_code.co_filename.endswith("batched_calls.py"):
                with torch.cuda.stream(SIDE):
                    torch.cuda._sleep(50_000_000)
                    return super().forward(x)
        return super().forward(x)
"""


def compared(run: CommandLine, folder: Path, model: str) -> tuple[int, dict[str, object]]:
    """The exit code of `compare` on a file with another `ModelNew`, and what it printed.

    Beside other work on the same GPU, what is faster may only be called a tie.
    """
    path = folder / "mine.py"
    path.write_text(FILE.replace(NEW, model + "\n"), encoding="utf-8")
    answer = run("compare", path, "reference", "--device", "cuda", "--json")
    return answer.code, answer.json


def test_a_file_that_does_less_is_faster(run: CommandLine, tmp_path: Path) -> None:
    code, told = compared(run, tmp_path, NEW)
    assert not told["refusal"] and told["decision"] in ("faster", "tie"), (told["refusal"], told["decision"])
    assert code == (0 if told["decision"] == "faster" else 1)


@pytest.mark.parametrize(
    ("model", "stages"),
    [
        (NEW.replace("return x", "return 2 + x"), ("values",)),
        (LAZY, ("structure",)),
        (BY_POINTER, ("values", "same memory", "weights", "after timing")),
        (
            ASIDE,
            ("values", "repeatable", "written", "distributions", "sizes", "later calls", "held results", "streams"),
        ),
        (ASIDE_WHEN_TIMED, ("after timing", "clock")),
        (WHEN_NOT_TIMED, ("after timing",)),
        (OTHER_EVENTS, ("clock",)),
        (PATCHED_EVENTS, ("state",)),
    ],
    ids=("wrong", "lazy", "by pointer", "aside", "aside when timed", "idle when timed", "other events", "patched"),
)
def test_a_file_that_only_seems_faster_is_refused(
    run: CommandLine, tmp_path: Path, model: str, stages: tuple[str, ...]
) -> None:
    code, told = compared(run, tmp_path, model)
    print(told["refusal"])
    assert code == 1 and told["ratio"] is None
    assert any(f"is refused ({stage}" in str(told["refusal"]) for stage in stages), told["refusal"]


def doubles(connection: Connection) -> None:
    """What a room does with a message."""
    passage = Borrowing()
    small, large, odd, on_host = receive(connection, 1 << 40, passage)
    send(connection, [small * 2, large * 2, odd[1:] * 2, on_host * 2], passage)
    os._exit(0)


def test_large_tensors_cross_in_lent_memory() -> None:
    device = torch.device("cuda", 0)
    passage = Lending(device)
    small, large = torch.rand(3, device=device), torch.rand(1 << 21, device=device)
    odd, on_host = torch.rand(1 << 21, 2, device=device)[:, 1], torch.rand(5)
    assert passage.chosen([small, large]) == [0, 1] and passage.chosen([small, on_host]) == []
    process = Supervised(doubles)
    send(process.connection, [small, large, odd, on_host], passage)
    assert passage._lent is not None, "the driver exports no memory here"
    got = receive(process.connection, 1 << 40, passage)
    process.close()
    for one, expected in zip(got, (small, large, odd[1:], on_host), strict=True):
        assert one.device == expected.device and same_bits(one.contiguous(), (expected * 2).contiguous())


@pytest.mark.skipif(find_sanitizer() is None, reason="compute-sanitizer is not installed")
@pytest.mark.parametrize(
    ("name", "said"), [("a CUDA extension with a barrier", ""), ("a CUDA extension whose race is won", "row_sums")]
)
def test_the_sanitizer_watches_a_whole_call(run: CommandLine, tmp_path: Path, name: str, said: str) -> None:
    (file,) = (file for file in ON_CUDA if file.name == name)
    path, reference = tmp_path / "mine.py", tmp_path / "reference.py"
    path.write_text(file.text, encoding="utf-8")
    reference.write_text(file.reference, encoding="utf-8")
    told = run("check", path, "--reference", reference, "--device", "cuda", "--json").json[0]
    (stage,) = (stage for stage in told["stages"] if stage["name"] == "sanitizer")
    assert stage["passed"] is not bool(said) and said in stage["detail"], stage
    assert said or stage["detail"] == "2 cases"
