"""The pages have the figures of docs/results/figures.json and no others."""

import json
import re
from pathlib import Path

import pytest
from benchmarks.pages import BLOCK, FILE, PAGES, rendered

_FIGURE = re.compile(r"\d[\d.,]*\s?(?:×(?! \d)|ms\b|µs\b|s\b|%|[GT]B/s|TFLOP)|\[\d\.\d+, \d")
_FENCED = re.compile(r"^```.*?^```$", re.M | re.S)
_NO_MEASUREMENT = {"99 %"}
"""The confidence of every interval."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_what_was_measured(page: Path) -> None:
    figures = json.loads(FILE.read_text(encoding="utf-8"))
    text = page.read_text(encoding="utf-8")
    assert text == rendered(text, figures), "run python -m tests.benchmarks.pages"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_no_other_figure(page: Path) -> None:
    text = _FENCED.sub("", BLOCK.sub("", page.read_text(encoding="utf-8")))
    assert {found[0] for found in _FIGURE.finditer(text)} <= _NO_MEASUREMENT
    assert _FIGURE.search("5.44× eager") and _FIGURE.search("in 0.5 ms") and _FIGURE.search("1.2 [1.1, 1.3]")


def test_the_source_of_a_kernel_that_changed_since_is_named() -> None:
    figures = json.loads(FILE.read_text(encoding="utf-8"))
    kernels = {**figures["kernels"], "gemm_scale_bn": "of another source"}
    page = rendered("<!-- figures: source -->\n<!-- end of figures -->", {**figures, "kernels": kernels})
    _, _, named = page.partition("The source has changed since of ")
    assert "gemm_scale_bn" in named.partition(".")[0]
