"""Counters and occupancy of a real trial on a GPU. Skips without one."""

from __future__ import annotations

from pathlib import Path

import pytest

import tunebench
from tunebench.db.connection.database import open_database
from tunebench.db.queries.one_trial import trial_details
from tunebench.kernels.scalar_mul.model import ModelNew as ScalarMul
from tunebench.studies.display.report.gather import gather
from tunebench.studies.display.report.page import render
from tunebench.studies.display.report.rates import resources
from tunebench.tuner.compile.cache import BuildCache
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.device import find_device
from tunebench.tuner.timing.counters import TIME

pytestmark = pytest.mark.gpu


def test_a_trial_is_explained(tmp_path: Path) -> None:
    file = tmp_path / "results.db"
    tunebench.tune("scalar_mul", trials=6, compile=False, sampler="random", sizes={"M": 4096, "N": 4096}, db=file)
    (fastest,) = tunebench.trials("scalar_mul", fastest=True, limit=1, db=file)
    found = tunebench.explain(fastest.trial_id, db=file)
    print(found.reason, found.why_without, dict(found.facts))
    if found.counters:
        assert all(launch.values[TIME] > 0 for launch in found.counters)
        assert tunebench.explain(fastest.trial_id, recorded=True, db=file).counters == found.counters
    else:
        assert "Nsight Compute" in found.why_without
    assert "% of" in found.facts["reaches"] and "registers" in found.facts
    with open_database(file, read_only=True) as database:
        report = gather(database)
        html = render(report)
    assert ("Counters" in html) == bool(found.counters) and 'id="study-1-roofline"' in html


def test_occupancy_is_what_the_driver_says(tmp_path: Path) -> None:
    file, device = tmp_path / "results.db", find_device("cuda")
    tunebench.tune("scalar_mul", trials=12, compile=False, sampler="random", sizes={"M": 4096, "N": 4096}, db=file)
    compiler, kernel = compiler_for(device, None), ScalarMul.kernel
    rows = tunebench.trials("scalar_mul", fastest=True, db=file)
    assert rows
    for row in rows:
        with open_database(file, read_only=True) as database:
            recorded = trial_details(database, row.trial_id).trial
        module = compiler.load(
            BuildCache().build(compiler, kernel.variant(row.configuration, row.problem, device.architecture)),
            device.index,
        )
        (launch,) = recorded.result.launches
        held = resources(recorded, device).occupancy
        assert held is not None
        assert held.blocks == module.resident_blocks(launch.entry_point, launch.threads, launch.shared)
