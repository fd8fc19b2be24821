"""Energy by NVML, and a study that minimises it, on a GPU. Skips without one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tunebench
from tunebench.db.connection.database import open_database
from tunebench.studies.display.report.gather import gather
from tunebench.studies.display.report.page import render
from tunebench.tuner.device import find_device
from tunebench.tuner.timing.energy import counter_of, energy_mj

pytestmark = pytest.mark.gpu


def test_more_work_takes_more_energy() -> None:
    counter = counter_of(find_device("cuda"))
    assert counter is not None
    A = torch.ones(1 << 27, device="cuda")

    def least(calls: int) -> float:  # whatever else runs on the device draws power, too
        energies: list[float] = []
        for _ in range(4):
            energy = energy_mj(lambda: [A * 2 for _ in range(calls)], counter, torch.cuda.synchronize)
            assert energy is not None
            energies.append(energy)
        return min(energies)

    assert 1.5 < least(4) / least(1) < 8


@pytest.mark.parametrize("objective", ["energy", "both"])
def test_a_study_minimises_energy(tmp_path: Path, objective: str) -> None:
    file = tmp_path / "results.db"
    sizes = {"M": 4096, "N": 4096}
    (report,) = tunebench.tune(
        "scalar_mul", trials=6, compile=False, sampler="random", objective=objective, sizes=sizes, db=file
    )
    comparison = report.outcome.comparison
    assert comparison is not None, report.outcome
    assert comparison.energies_mj.keys() >= {"best", "reference"}
    assert all(energy > 0 for energy in comparison.energies_mj.values())
    with open_database(file, read_only=True) as database:
        (study,) = (data := gather(database)).studies
        html = render(data)
    assert len(study.energies_mj) == len(study.correct) and "Time and energy" in html
    # The same study goes on, and knows the energies of the trials that it had.
    (again,) = tunebench.tune(
        "scalar_mul", trials=8, compile=False, sampler="random", objective=objective, sizes=sizes, db=file
    )
    assert again.study == report.study and again.outcome.comparison is not None
