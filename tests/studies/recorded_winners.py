"""Winners of studies that nobody ran, in a database."""

from dataclasses import replace
from pathlib import Path

from sample_results import ENVIRONMENT, STUDY, comparison, correct

from tunebench.db.connection.database import open_database
from tunebench.db.entries.study_log import open_study
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import Device
from tunebench.tuner.kernel import Kernel
from tunebench.tuner.problem import Problem

PROBLEM = Problem({"n": 64 * 33}, "float32")
FAST = Configuration({"block_size": 32, "blocks": 4, "variety": 1})
SLOW = Configuration({"block_size": 256, "blocks": 1, "variety": 0})


def record(kernel: Kernel, place: Path, device: Device, winner: Configuration) -> None:
    """Record a study of a kernel on a device, whose winner this is."""
    study = replace(STUDY, kernel=kernel.name, source_digest=kernel.digest, problem=PROBLEM, device=device)
    with open_database(place) as database:
        log = open_study(database, study, ENVIRONMENT)
        log.record(replace(correct(0), configuration=winner))
        log.conclude(replace(comparison(0), best=winner))
