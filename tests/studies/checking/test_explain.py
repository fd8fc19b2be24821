"""`explain`: counters where they are read, else the compiler's figures and the roofline, and which of the two."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import CommandLine
from html_outline import Outline
from sample_database import fill

import tunebench
from tunebench.db.connection.database import open_database
from tunebench.db.queries.trials import Order, trials
from tunebench.db.upkeep.counters import keep_counters
from tunebench.studies.display.report.gather import gather
from tunebench.studies.display.report.page import render
from tunebench.tuner.result import LaunchCounters, TrialStatus
from tunebench.tuner.timing.counters import METRICS, OCCUPANCY, TIME, counters_in, longest, reason_of

DRAM, TENSOR = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", "sm__pipe_tensor_cycles_active"
REGISTERS, WARPS = "launch__occupancy_limit_registers", "launch__occupancy_limit_warps"
STALLED = "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio"

PRINTED = f"""==PROF== Connected to process 4711 (/usr/bin/python3)
==PROF== Profiling "scale" - 0: 0%....50%....100% - 3 passes
==PROF== Disconnected from process 4711
"ID","Process ID","Kernel Name","Block Size","{TIME}","{DRAM}","{OCCUPANCY}","{REGISTERS}","{WARPS}","{STALLED}"
"","","","","ns","%","%","block","block","inst"
"0","4711","scale","(256, 1, 1)","2,048","91.5","48.2","4","8","17.3"
"1","4711","tail","(32, 1, 1)","512","3.25","n/a","","",""
"""


def test_counters_are_read_from_what_nsight_compute_prints() -> None:
    first, second = counters_in(PRINTED)
    assert first.kernel == "scale" and first.values[TIME] == 2048.0 and first.values[DRAM] == 91.5
    assert second == LaunchCounters("tail", {TIME: 512.0, DRAM: 3.25}), "what is n/a is left out"
    assert longest((second, first)) is first
    assert list(counters_in("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission")) == []


def test_a_reason_names_what_is_busy_or_what_warps_wait_for() -> None:
    first, second = counters_in(PRINTED)
    assert reason_of(first) == (
        "scale: bound by memory, at 92 % of the peak; warps wait most for global memory (17 for each instruction "
        "issued); occupancy 48 %, at most 4 blocks by registers."
    )
    assert reason_of(second) == "tail: nothing is at 60 % of its peak, so that it waits."


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    with open_database(tmp_path / "results.db") as database:
        fill(database)
    return tmp_path / "results.db"


def number_of(file: Path, status: TrialStatus, place: int = 0) -> int:
    with open_database(file, read_only=True) as database:
        return trials(database, status=status)[place].trial_id


def test_without_counters_it_says_so_and_uses_what_is_recorded(run: CommandLine, filled: Path) -> None:
    number = number_of(filled, TrialStatus.CORRECT)
    printed = run("explain", number, "--recorded", "--db", filled).out
    for text in ("no counters: none are recorded", "by the compiler's figures and the roofline alone", "32 a thread"):
        assert text in printed
    assert "5,120 B a block" in printed, "static and dynamic shared memory of the launch"
    answer = run("explain", number, "--recorded", "--db", filled, "--json").json
    assert answer["explanation"]["counters"] == [] and answer["explanation"]["facts"]["spills"] == "0 B a thread"
    assert answer["launches"] == [{"entry_point": "scale", "blocks": 132, "threads": 256, "shared": 1024}]


def test_recorded_counters_explain_a_trial_everywhere(run: CommandLine, filled: Path) -> None:
    with open_database(filled) as database:
        number = trials(database, order=Order.FASTEST, limit=1)[0].trial_id
        keep_counters(database, number, tuple(counters_in(PRINTED)))
    printed = run("explain", number, "--db", filled).out
    assert "scale: bound by memory" in printed and METRICS[OCCUPANCY] in printed
    found = tunebench.explain(number, recorded=True, db=filled)
    assert found.why_without == "" and found.counters[0].values[TIME] == 2048.0
    with open_database(filled, read_only=True) as database:
        outline = Outline(render(gather(database)))
    assert "Time and energy" in outline.text_of("h3") and "900.5" in outline.text_of("td")
    assert "Counters" in outline.text_of("h3") and METRICS[STALLED] in outline.text_of("td")
    assert any("bound by memory" in text for text in outline.text_of("figcaption"))


def test_a_trial_without_a_time_has_its_reason(run: CommandLine, filled: Path) -> None:
    printed = run("explain", number_of(filled, TrialStatus.COMPILE), "--db", filled).out
    assert "no counters: it has no time" in printed and "compile: " in printed


def test_wrong_questions_get_one_line(run: CommandLine, filled: Path, tmp_path: Path) -> None:
    assert "has no trial 999" in run("explain", 999, "--db", filled).error
    assert "leave out one of the two" in run("explain", 1, "--recorded", "--again", "--db", filled).error
    assert "there is no results database" in run("explain", 1, "--db", tmp_path / "none.db").error
    assert not (tmp_path / "none.db").exists()
