"""Where a study's time goes: every moment is charged once, so that what is told adds up."""

from __future__ import annotations

import pytest

from tunebench.tuner.configuration import Configuration
from tunebench.tuner.result import Stage, TrialResult, TrialStatus, Verdict
from tunebench.tuner.study.account import Account, Activity, seconds_of_process


class Clock:
    """Stands still until it is told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_moment_belongs_to_the_innermost_activity() -> None:
    clock = Clock()
    account = Account(before=3.0, clock=clock)
    clock.now += 1
    with account.phase(Activity.WORKER):
        clock.now += 10
        with account.phase(Activity.DATABASE):
            clock.now += 0.5
        clock.now += 2
    with pytest.raises(ZeroDivisionError), account.phase(Activity.DATABASE):
        clock.now += 0.25
        raise ZeroDivisionError
    clock.now += 1
    expected = {Activity.START: 3.0, Activity.WORKER: 12.0, Activity.DATABASE: 0.75, Activity.OTHER: 2.0}
    assert account.seconds == expected
    assert sum(account.seconds.values()) == 3.0 + clock.now - 100.0


def test_what_a_worker_tells_of_an_evaluation_is_taken_from_the_waiting_for_it() -> None:
    clock = Clock()
    account = Account(clock=clock)
    with account.phase(Activity.HANDOVER):
        clock.now += 10
    stages = (Stage("structure", True, 0.5), Stage("sizes", True, 1.5), Stage("layouts", False, 0.5, "wrong"))
    verdict = Verdict(False, stages, 1e-4, reason="wrong")
    seconds = {"wait": 3.0, "restart": 0.5, "compile": 99.0, "check": 4.0, "measure": 2.0}
    result = TrialResult(Configuration({}), TrialStatus.CORRECTNESS, verdict=verdict, message="wrong", seconds=seconds)
    account.evaluated(result, slots=1)
    assert account.seconds == {
        Activity.COMPILER: 3.0,
        Activity.QUICK: 2.0,
        Activity.FULL: 2.0,
        Activity.TIMING: 2.0,
        Activity.AGAIN: 0.5,
        Activity.HANDOVER: 0.5,
    }


def test_of_several_at_once_each_has_its_share() -> None:
    clock = Clock()
    account = Account(clock=clock)
    with account.phase(Activity.HANDOVER):
        clock.now += 4
    for _ in range(2):
        died = TrialResult(Configuration({}), TrialStatus.RUNTIME, message="died", seconds={"measure": 3.0})
        account.evaluated(died, slots=2)
    assert account.seconds == {Activity.TIMING: 3.0, Activity.HANDOVER: 1.0}


def test_calls_of_a_thing_are_charged() -> None:
    clock = Clock()
    account = Account(clock=clock)

    class Log:
        kept = 3

        def record(self, seconds: float, *, twice: bool) -> str:
            clock.now += seconds * (1 + twice)
            return "recorded"

    log = account.charged(Log(), Activity.DATABASE)
    assert (log.record(0.5, twice=True), log.kept) == ("recorded", 3)
    assert account.seconds == {Activity.DATABASE: 1.0}


def test_a_process_knows_when_it_began() -> None:
    first = seconds_of_process()
    assert 0 < first <= seconds_of_process()
