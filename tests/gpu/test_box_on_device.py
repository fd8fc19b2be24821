"""The box on a GPU: what a file may use there, and that large tensors still cross in lent memory."""

from pathlib import Path

import pytest
import torch
from command_line import CommandLine
from compared_files import FILE, NEW
from tests.gate_files.references import SCALE

from tunebench.tuner.gate.boundary.box import Box, Walls
from tunebench.tuner.gate.boundary.host import Host
from tunebench.tuner.gate.boundary.sandbox import Sandbox, boxed
from tunebench.tuner.gate.boundary.spec import Files

pytestmark = pytest.mark.gpu


def test_a_file_on_a_gpu_is_judged_in_a_box(run: CommandLine, tmp_path: Path) -> None:
    path, reference = tmp_path / "mine.py", tmp_path / "reference.py"
    path.write_text(FILE + NEW, encoding="utf-8")
    reference.write_text(FILE, encoding="utf-8")
    done = run("check", path, "--reference", reference, "--device", "cuda", "--box", "require", "--json")
    (report,) = done.json
    assert report["right_for_problem"] and report["box"].startswith("boxed by"), (report["box"], report["reason"])


def test_large_tensors_cross_into_a_box_in_lent_memory(tmp_path: Path) -> None:
    reference, device = (tmp_path / "reference.py", SCALE), torch.device("cuda", 0)
    _, sandbox, said = boxed(Files(reference, None, {}, None, device), Box.REQUIRE, Sandbox)
    with sandbox:
        large = torch.rand(1 << 22, device=device)
        assert torch.equal(sandbox.ask(Host.returned, tensor=large), large), said
        assert sandbox.spec.walls is Walls.NAMESPACES, said
