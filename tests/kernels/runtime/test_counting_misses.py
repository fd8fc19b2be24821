"""Calls that are served without evidence are counted where that was asked for, and nothing else is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from sample_kernel import WriteKernel

import tunebench
from tunebench.kernels.runtime import dispatch
from tunebench.kernels.runtime.decision import forget_plans
from tunebench.kernels.runtime.duel import Score
from tunebench.kernels.runtime.misses import record_misses, write_misses
from tunebench.kernels.runtime.policy import Policy, use_policy
from tunebench.kernels.runtime.shipped import ShippedResult, write_file
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.tuner.device import find_device

CPU = find_device("cpu")


@pytest.fixture
def counting() -> Iterator[None]:
    """Counting, in this test alone."""
    write_misses()
    record_misses()
    yield
    record_misses(False)


def call(model: TunedModule, n: int, times: int = 1) -> None:
    with torch.no_grad():
        for _ in range(times):
            model(torch.rand(n))


def counted() -> dict[int, int]:
    """Calls by size, as they are in the database."""
    assert write_misses()
    return {row.problem.axes["n"]: row.calls for row in tunebench.misses("weigh")}


@pytest.mark.usefixtures("counting")
def test_every_call_without_evidence_counts(write_kernel: WriteKernel) -> None:
    factory = write_kernel()
    model = factory()
    call(model, 10, 3)
    call(model, 20)
    call(factory(), 10)
    assert counted() == {10: 4, 20: 1}
    call(model, 20, 5)
    assert counted() == {20: 6, 10: 4}
    (row, _) = tunebench.misses("weigh")
    assert (row.device_name, row.source_digest, row.path) == (
        CPU.name,
        factory.kernel.digest,
        str(factory.kernel.folder),
    )


@pytest.mark.usefixtures("counting")
def test_what_served_is_written_with_the_scores_of_a_duel(
    write_kernel: WriteKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    for ratio, said in ((0.5, "reference: the reference won a duel"), (1.5, "default: ")):
        monkeypatch.setattr(dispatch, "duel", lambda contenders, *_, ratio=ratio: [Score(ratio) for _ in contenders])
        forget_plans()
        with use_policy("best", wait=True):
            call(write_kernel()(), 10)
        assert write_misses()
        row = max(tunebench.misses("weigh"), key=lambda one: one.last_at)
        assert row.served is not None and row.served.startswith(said) and f"{ratio:.2f}×" in row.served


@pytest.mark.usefixtures("counting")
def test_what_was_measured_or_refused_by_the_user_does_not_count(write_kernel: WriteKernel) -> None:
    factory = write_kernel()
    configuration: dict[str, bool | int | float | str] = {"block_size": 32, "blocks": 1, "variety": 0}
    model = factory()
    problem = model.identify(torch.rand(10))
    assert problem is not None
    ratio = {"reference": [2.0, 1.9, 2.1]}
    shipped = ShippedResult({"n": 10}, "float32", dict(problem.options), configuration, ratio, 0.5, None, {})
    write_file(factory.kernel, CPU.name, CPU.architecture, [shipped])
    call(model, 10, 2)
    with use_policy("reference"):
        call(model, 30)
    with use_policy("exact"):
        call(model, 40)
    with torch.autocast("cpu", torch.bfloat16):
        call(model, 50)
    assert counted() == {40: 1}


def test_nothing_is_counted_unasked(write_kernel: WriteKernel) -> None:
    call(write_kernel()(), 10)
    assert write_misses()
    assert not Path(os.environ["TUNEBENCH_DB"]).exists()


@pytest.mark.usefixtures("counting")
def test_a_database_that_cannot_be_written_gets_its_counts_later(write_kernel: WriteKernel) -> None:
    place = Path(os.environ["TUNEBENCH_DB"])
    place.write_text("no database", encoding="utf-8")
    model = write_kernel()()
    model.policy = Policy.REFERENCE
    model.policy = Policy.EXACT
    with pytest.warns(RuntimeWarning, match="is not a database"):
        call(model, 10, 2)
    assert not write_misses()
    place.unlink()
    call(model, 10)
    assert counted() == {10: 3}


@pytest.mark.slow
def test_a_program_writes_its_counts_when_it_ends(write_kernel: WriteKernel, tmp_path: Path) -> None:
    factory = write_kernel()
    call(factory(), 10)  # so that it is built
    script = tmp_path / "program.py"
    script.write_text(
        f"""
import torch, tunebench
tunebench.set_policy("recorded", wait=True)
model = tunebench.load({str(factory.kernel.folder)!r})()
with torch.no_grad():
    for _ in range(7):
        model(torch.rand(10))
""",
        encoding="utf-8",
    )
    tunebench.connect(read_only=False).close()
    environment = os.environ | {"TUNEBENCH_MISSES": "1"}
    subprocess.run([sys.executable, script], check=True, env=environment)
    assert [row.calls for row in tunebench.misses("weigh")] == [7]
