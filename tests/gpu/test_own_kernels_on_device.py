"""Kernels of one's own on a GPU, as docs/writing_kernels.md has them: three files, and one file."""

import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import tunebench

pytestmark = pytest.mark.gpu

PAGE = Path(__file__).parents[2] / "docs" / "writing_kernels.md"
FILE = re.compile(r"^<!-- file: (\S+) -->\n```\w+\n(.*?)^```$", re.M | re.S)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the page's files in it."""
    for name, text in FILE.findall(PAGE.read_text(encoding="utf-8")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "arguments", "shape"), [("rms_norm", (4096, 1e-5), (512, 4096)), ("twice.py", (), (1000, 1001))]
)
def test_the_default_serves_and_is_right(
    folder: Path, name: str, arguments: tuple[Any, ...], shape: tuple[int, ...]
) -> None:
    model: Any = tunebench.load(folder / name)(*arguments).cuda()
    for dtype in (torch.float32, torch.float64):
        x = torch.rand(shape, dtype=dtype, device="cuda")
        model = pickle.loads(pickle.dumps(model.to(dtype)))
        with torch.no_grad():
            torch.testing.assert_close(model(x), model.reference_forward(x))
        (choice,) = model.choices.values()
        assert choice.configuration is not None, choice.reason


@pytest.mark.parametrize("name", ["rms_norm", "twice.py"])
def test_a_study_finds_and_confirms_a_best(folder: Path, tmp_path: Path, name: str) -> None:
    (report,) = tunebench.tune(folder / name, trials=3, compile=False, device="cuda", db=tmp_path / "results.db")
    assert report.outcome.comparison is not None and not report.outcome.refusals
    assert report.gpu_refusal == ""
