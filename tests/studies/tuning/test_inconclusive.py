"""Final rounds that say nothing are no evidence: a real study of a kernel whose times scatter, and what it leads to."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from command_line import CommandLine
from sample_kernel import WriteKernel

import tunebench
from tunebench.db.connection.database import open_database
from tunebench.db.queries.one_trial import trial_details
from tunebench.db.queries.trials import trials
from tunebench.kernels.runtime import dispatch
from tunebench.kernels.runtime.decision import forget_plans
from tunebench.kernels.runtime.duel import Score
from tunebench.kernels.runtime.policy import Policy
from tunebench.kernels.runtime.selection import Choice, Tier
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.studies.display.tables import interval
from tunebench.studies.tuning.targets import resolve_trial
from tunebench.studies.tuning.tune import tune
from tunebench.tuner.errors import UserError
from tunebench.tuner.result import Baseline, Decision

pytestmark = pytest.mark.usefixtures("short_studies")

# Each call takes anything from 0.5 to 10 ms, more often little than much, whatever the machine: no rounds tell which is
# the faster one.
SCATTERED = {"import torch\n": "import random\nimport time\nimport torch\n"}
WAIT = "time.sleep(0.0005 * 20 ** random.random())"
ONE_SIZE = {"torch.rand(rows, columns)": "torch.rand(rows)"}
REFERENCE = SCATTERED | ONE_SIZE | {"        self.calls += 1\n": f"        self.calls += 1\n        {WAIT}\n"}
MODEL = SCATTERED | {"        self.calls += 1\n": f"        self.calls += 1\n        {WAIT}\n"}


def served(factory: type[TunedModule], policy: Policy) -> Choice:
    forget_plans()
    model = factory()
    model.policy = policy
    with torch.no_grad():
        model(torch.rand(300))
    (choice,) = model.choices.values()
    return choice


@pytest.mark.slow
def test_what_rounds_leave_open_is_not_served_and_is_asked_again(
    write_kernel: WriteKernel, monkeypatch: pytest.MonkeyPatch, run: CommandLine
) -> None:
    monkeypatch.setenv("TUNEBENCH_CONFIRM_SECONDS", "0")  # so many rounds as an interval needs
    factory = write_kernel(model=MODEL, reference=REFERENCE)
    folder, place = str(factory.kernel.folder), os.environ["TUNEBENCH_DB"]
    asked = ("tune", folder, "--trials", 4, "--size", "rows=300", "--device", "cpu")
    done = run(*asked)
    assert done.code == 0
    assert " unconfirmed" in done.out and " tie" not in done.out.split("in the search, and not confirmed")[0]
    reasons = r"their intervals are too wide|they told two copies of one model apart \(.*\)"
    assert re.search(f"inconclusive +the final rounds are: ({reasons}); the same command takes them again", done.out)

    with open_database(place, read_only=True) as database:
        leader = min(trials(database), key=lambda row: row.median_ms or 0.0)
        (won,) = trial_details(database, leader.trial_id).comparisons
    assert won.comparison.decision(Baseline.REFERENCE) is Decision.INCONCLUSIVE and not won.comparison.conclusive
    (row,) = tunebench.best(factory.kernel.name, any_source=True)
    assert (row.trial_id, row.confirmed, row.decision) == (leader.trial_id, False, Decision.INCONCLUSIVE)
    assert row.over_reference == won.comparison.speedups[Baseline.REFERENCE]

    listed = run("best", factory.kernel.name, "--any-source")
    assert f"{row.over_reference.value:.2f}× unconfirmed" in listed.out and interval(row.over_reference) in listed.out
    assert f"'tunebench tune {row.trial_id}' takes the final rounds again" in " ".join(listed.out.split())

    held: list[int] = []

    def lost(contenders: Sequence[object], *_: object) -> list[Score]:
        held.append(len(contenders))
        return [Score(0.5) for _ in contenders]

    monkeypatch.setattr(dispatch, "duel", lost)
    assert served(factory, Policy.EXACT).tier is Tier.REFERENCE
    assert not held
    choice = served(factory, Policy.BEST)
    assert held and choice.tier is Tier.REFERENCE
    assert "not confirmed against the reference" in choice.reason

    shipped = run("ship", folder, "--device", "cpu")
    assert not list(Path(folder).glob("tuned/*")), shipped.out

    # The command that `best` names asks again: the same study, no new trial, and another comparison.
    again = run("tune", row.trial_id)
    assert again.code == 0, again.out
    with open_database(place, read_only=True) as database:
        assert len(trials(database)) == 4 and len({one.study_id for one in trials(database)}) == 1
        concluded = [trial_details(database, one.trial_id).comparisons for one in trials(database)]
    assert sum(map(len, concluded)) == 2


@pytest.mark.slow
def test_a_trial_of_another_choice_of_tunables_is_not_gone_on_with(write_kernel: WriteKernel) -> None:
    factory = write_kernel(reference=ONE_SIZE)
    folder, place = str(factory.kernel.folder), os.environ["TUNEBENCH_DB"]
    with open_database(place) as database:
        resolved = tunebench_study(folder)
        tune(resolved, database)
        (row,) = trials(database)
    with pytest.raises(UserError, match=f"trial {row.trial_id} is of another choice of tunables than this would tune"):
        resolve_trial(row.trial_id, {})


def tunebench_study(folder: str):  # type: ignore[no-untyped-def]
    from tunebench.studies.tuning.resolved import resolve
    from tunebench.studies.tuning.study_file import make_request

    asked = {"kernel": folder, "device": "cpu", "trials": 1, "sizes": {"rows": 4}, "tunables": {"blocks": [2]}}
    return resolve(make_request(asked, folder))


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1", "soon"])
def test_what_the_environment_says_of_the_rounds_is_refused_before_the_search(
    seconds: str, monkeypatch: pytest.MonkeyPatch, run: CommandLine
) -> None:
    monkeypatch.setenv("TUNEBENCH_CONFIRM_SECONDS", seconds)
    for asked in (("tune", "scalar_mul"), ("compare", "default", "reference", "scalar_mul")):
        refused = run(*asked)
        assert refused.code == 2
        assert f"TUNEBENCH_CONFIRM_SECONDS is '{seconds}': give a number of seconds, or unset it" in refused.err
    assert not Path(os.environ["TUNEBENCH_DB"]).exists()
