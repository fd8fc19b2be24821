"""A study on a Ray cluster of two nodes, one of which is removed while it runs."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sample_kernel import WriteKernel

from tunebench.db.connection.database import open_database
from tunebench.db.queries.trials import trials
from tunebench.studies.tuning.resolved import resolve
from tunebench.studies.tuning.study_file import request_of
from tunebench.studies.tuning.tune import Announcement, tune
from tunebench.tuner.errors import UserError
from tunebench.tuner.study.outcome import Ending, Progress

pytestmark = pytest.mark.usefixtures("short_studies")

ray = pytest.importorskip("ray")
TRIALS = 10


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head with one core, to which this process is connected."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    node = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}
    started = Cluster(initialize_head=True, head_node_args=node)
    ray.init(address=started.address, logging_level=logging.ERROR, log_to_driver=False)
    yield started
    ray.shutdown()
    started.shutdown()


def test_an_address_at_which_nothing_is_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = f"127.0.0.1:{server.getsockname()[1]}"
    asked = {"executor": "ray", "address": free}
    with pytest.raises(UserError, match=f"no Ray cluster at '{free}': .*refused"):
        resolve(request_of("scalar_mul", asked))
    monkeypatch.setenv("RAY_ADDRESS", free)
    with pytest.raises(UserError, match=f"no Ray cluster at '{free}': .*refused"):
        resolve(request_of("scalar_mul", {"executor": "ray"}))


@pytest.mark.slow
def test_a_study_goes_on_when_a_node_is_removed(
    cluster: Any, write_kernel: WriteKernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="the cluster has no device 'NVIDIA H200': it has "):
        resolve(request_of("scalar_mul", {"device": "NVIDIA H200", "executor": "ray"}))
    second = cluster.add_node(num_cpus=1, object_store_memory=80 << 20)
    cluster.wait_for_nodes()
    removed: list[int] = []

    def remove(announcement: Announcement) -> Callable[[Progress], None]:
        assert announcement.slots == 2

        def show(progress: Progress) -> None:
            if progress.done >= 4 and not removed:
                removed.append(progress.done)
                monkeypatch.setattr("tunebench.tuner.study.ray_executor.PLACEMENT_SECONDS", 5.0)
                cluster.remove_node(second, allow_graceful=False)

        return show

    options = {"device": "cpu", "workers": 2, "trials": TRIALS, "sampler": "random", "executor": "ray"}
    with open_database(tmp_path / "a.db") as database:
        (report,) = tune(resolve(request_of(str(write_kernel().kernel.folder), options)), database, remove)
        rows = trials(database, limit=None)
    assert removed and (report.outcome.ending, report.outcome.repeats) == (Ending.BUDGET, 0)
    # Until Ray knows that the node is gone it may put the actor there once more.
    (lost,) = report.outcome.lost
    assert lost in ("cpu: Ray found no place for it within 5 s", "cpu: two of Ray's actors in a row were lost")
    assert {row.number for row in rows} == set(range(TRIALS))
    assert len({row.configuration for row in rows}) == TRIALS
    assert all(row.status.timed for row in rows)
    assert report.device.multiprocessors == 1
    assert report.outcome.comparison is not None
