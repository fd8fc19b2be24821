"""The benchmark of whole models: a training step is right where all kernels that there can be are ours."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
import torch
from recorded_regions import record
from tests.benchmarks.models import made, main
from tests.benchmarks.rows import read_rows

from tunebench.studies.inductor.find import find_regions
from tunebench.studies.inductor.known import regions_folder
from tunebench.studies.inductor.optimize import write_kernel
from tunebench.tuner.errors import TunebenchError
from tunebench.tuner.result import Ratio


@pytest.mark.slow
def test_a_step_of_a_whole_model_is_right_where_all_its_kernels_are_ours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, inputs = made("vit", "step", torch.float32, torch.device("cpu"), small=True)
    written = 0
    for found in find_regions(model, inputs):
        with suppress(TunebenchError):
            write_kernel(found, regions_folder() / found.region.name)
            record(found.region, Ratio(1.2, 1.15, 1.25, 40, 0.99))
            written += 1
    file = tmp_path / "rows.json"
    main(["vit"], ["tf32"], ["step"], ["default"], 0, "cpu", small=True, json=file)
    ((row,), are_all) = read_rows(file)
    assert are_all and row["right"] and row["served"] == written > 5
    assert "geometric mean" in capsys.readouterr().out
