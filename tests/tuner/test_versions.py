"""What has changed since a result was obtained, in words."""

import pytest
import torch

from tunebench.tuner.device import find_device
from tunebench.tuner.environment import current_environment, versions_here
from tunebench.tuner.versions import UNKNOWN, Versions

HERE = Versions("2.11.0+cu130", "13.0", "91300", "580.1")


@pytest.mark.parametrize(
    ("then", "changes"),
    [
        (HERE, ""),
        (UNKNOWN, ""),
        (Versions(torch="2.11.0+cu130"), ""),
        (Versions(torch="2.11.0"), "torch 2.11.0, now 2.11.0+cu130"),
        (
            Versions("2.10.0", "13.0", "90100", "570.1"),
            "torch 2.10.0, now 2.11.0+cu130, cudnn 90100, now 91300, driver",
        ),
    ],
)
def test_only_what_both_know_can_have_changed(then: Versions, changes: str) -> None:
    assert then.changes(HERE).startswith(changes)
    assert bool(then.changes(HERE)) == bool(changes)
    assert then.changes(UNKNOWN) == ""


def test_a_result_of_this_process_is_of_its_versions() -> None:
    cpu = find_device("cpu")
    environment = current_environment(cpu, "g++")
    assert environment.torch == torch.__version__
    assert versions_here(cpu) == Versions(environment.torch, environment.cuda)
