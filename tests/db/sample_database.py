"""A database with one of everything in it, and what a database holds without its own numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from sample_results import ENVIRONMENT, H100, STUDY, build, comparison, configuration, correct, failed, result

from tunebench.db.connection.database import Database
from tunebench.db.connection.engine import file_of
from tunebench.db.entries.entry import Entry
from tunebench.db.entries.reader import scan
from tunebench.db.entries.study_log import open_study
from tunebench.tuner.environment import Environment
from tunebench.tuner.problem import Problem
from tunebench.tuner.result import CacheRegime, Stage, TrialStatus
from tunebench.tuner.search.warm_start import WarmStart


def place_of(database: Database) -> str:
    """What opens a database once more: its file's path, or its URL."""
    return str(file_of(database.url) or database.url.render_as_string(hide_password=False))


ODD_TEXT = "'; DROP TABLE tunebench_trials; -- ,\"\n\r\t\\u0000 <b>µ</b> \U0001f600"


ON_CARD = replace(
    ENVIRONMENT,
    sm_clock_mhz=1980,
    memory_clock_mhz=3201,
    power_limit_w=700,
    throttle="sw_power_cap",
    kernel_commit="3f2a" * 10 + "+dirty",
)


FOUND_LATE = Stage("sanitizer", False, 2.5, f"memcheck: Invalid __global__ read {ODD_TEXT}")


def fill(database: Database, seed: int = 0, other_environment: Environment = ON_CARD, *, refused: bool = True) -> None:
    """Three studies: every status with a comparison, odd text on another device and problem, and one without trials.

    Args:
        refused: one of the trials is refused late.
    """
    begun = [WarmStart(configuration(3), ODD_TEXT)]
    log = open_study(database, replace(STUDY, seed=seed), ENVIRONMENT, warm_starts=begun)
    for number, status in enumerate(TrialStatus):
        log.record(result(number, status))
    log.conclude(comparison(0))
    other = replace(STUDY, seed=seed, kernel="gemm_scale_bn", device=H100, problem=Problem({"z": 1, "a": 0}, "float16"))
    log = open_study(database, other, replace(other_environment, cuda=None, host=ODD_TEXT))
    shared = build(7, code=b"the same code")
    log.record(replace(correct(20, 0.1 + 0.2, CacheRegime.WARM), build=shared))
    log.record(replace(correct(21, 1e-300), build=replace(shared, cached=True)))
    log.record(failed(22, TrialStatus.COMPILE, ODD_TEXT))
    log.conclude(comparison(20, with_default=False))
    log.conclude(comparison(20, 3.0))
    if refused:
        log.refuse(1, FOUND_LATE)
    open_study(database, replace(STUDY, seed=seed + 1000), ENVIRONMENT)


def content(database: Database) -> list[str]:
    """Everything in a database but its numbers, sorted."""
    return contents_of(scan(database))


def contents_of(entries: Iterable[Entry]) -> list[str]:
    """Entries without the numbers of trials, sorted."""
    return sorted(repr(replace(entry, trial=entry.trial and replace(entry.trial, number=None))) for entry in entries)
