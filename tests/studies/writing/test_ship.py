"""`tunebench ship`: the database's winners become the results that ship, and models run under them."""

from dataclasses import replace
from pathlib import Path

import pytest
from command_line import CommandLine
from sample_kernel import WriteKernel
from sample_results import ENVIRONMENT, H100, H200, STUDY, comparison, correct

from tunebench.db.connection.database import open_database
from tunebench.db.entries.study_log import open_study
from tunebench.kernels.runtime.selection import Tier, what_is_known
from tunebench.kernels.runtime.shipped import file_for, read_file, shipped_studies
from tunebench.studies.checking.doctor import examine
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import Device, find_device
from tunebench.tuner.kernel import Kernel
from tunebench.tuner.problem import Problem

PROBLEM = Problem({"n": 2112}, "float32")
FAST = Configuration({"block_size": 32, "blocks": 4, "variety": 1})
SLOW = Configuration({"block_size": 256, "blocks": 1, "variety": 0})


def record(
    kernel: Kernel,
    place: Path,
    device: Device,
    winner: Configuration,
    *,
    confirmed: bool = True,
    over_reference: float = 2.0,
) -> None:
    study = replace(STUDY, kernel=kernel.name, source_digest=kernel.digest, problem=PROBLEM, device=device)
    with open_database(place) as database:
        log = open_study(database, study, ENVIRONMENT)
        log.record(replace(correct(0), configuration=winner))
        if confirmed:
            log.conclude(replace(comparison(0, over_reference), best=winner))


@pytest.mark.slow
def test_winners_are_shipped_and_served(write_kernel: WriteKernel, tmp_path: Path, run: CommandLine) -> None:
    kernel, place = write_kernel().kernel, tmp_path / "results.db"
    record(kernel, place, H200, FAST)
    record(kernel, place, find_device("cpu"), SLOW)
    assert next(what_is_known(kernel, PROBLEM, H200).choices()).tier is Tier.DEFAULT
    done = run("ship", kernel.folder, "--db", place, "--json")
    (shipment,) = done.json
    assert (done.code, shipment["device"], shipment["results"]) == (0, H200.name, 1)
    (result,) = read_file(file_for(kernel, H200.name)).results
    assert result.problem == PROBLEM and result.configuration == dict(FAST)
    assert result.speedups["reference"] == [2.0, 1.98, 2.02]
    assert result.conditions["driver"] == ENVIRONMENT.driver and result.conditions["caches"] == "cold"
    for device in (H200, H100):
        choice = next(what_is_known(kernel, PROBLEM, device).choices())
        assert (choice.tier, choice.configuration) == (Tier.SHIPPED, FAST)
        assert choice.reason.startswith("shipped, measured for n=2112 float32 on NVIDIA H200, with torch 2.9.0, now")


def test_a_kernel_that_is_slower_than_the_reference_does_not_ship_but_that_it_is_does(
    write_kernel: WriteKernel, tmp_path: Path, run: CommandLine
) -> None:
    kernel, place = write_kernel().kernel, tmp_path / "results.db"
    record(kernel, place, H200, SLOW, over_reference=0.78)
    listed = run("best", "--any-source", "--db", place).out
    assert "1.28× slower" in listed and "0.772 to 0.788" in listed
    assert run("ship", kernel.folder, "--db", place, "--json").json[0]["reference_is_faster"] == 1
    (result,) = read_file(file_for(kernel, H200.name)).results
    assert (result.configuration, result.speedups["reference"]) == (None, [0.78, 0.7722, 0.7878])
    known = what_is_known(kernel, PROBLEM, H200)
    choice = next(known.choices())
    assert (choice.configuration, choice.measured) == (None, True)
    assert "the reference is faster: 0.780× [0.772, 0.788]" in choice.reason
    assert SLOW not in [contender.configuration for contender in known.contenders()]
    assert shipped_studies(kernel, PROBLEM, H200) == []


@pytest.mark.slow
def test_the_database_comes_before_what_ships(
    write_kernel: WriteKernel, tmp_path: Path, run: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, place = write_kernel().kernel, tmp_path / "results.db"
    record(kernel, place, H200, FAST)
    assert run("ship", kernel.folder, "--db", place).code == 0
    own = tmp_path / "own.db"
    record(kernel, own, H200, SLOW)
    monkeypatch.setenv("TUNEBENCH_DB", str(own))
    choice = next(what_is_known(kernel, PROBLEM, H200).choices())
    assert (choice.tier, choice.configuration) == (Tier.EXACT, SLOW)


@pytest.mark.slow
def test_a_cpu_s_results_ship_when_it_is_named(write_kernel: WriteKernel, tmp_path: Path, run: CommandLine) -> None:
    kernel, place, cpu = write_kernel().kernel, tmp_path / "results.db", find_device("cpu")
    record(kernel, place, cpu, SLOW)
    done = run("ship", kernel.folder, "--db", place)
    assert (done.code, done.out) == (1, "") and "nothing to ship of weigh" in done.err
    assert run("ship", kernel.folder, "--db", place, "--device", cpu.name).code == 0
    assert next(what_is_known(kernel, PROBLEM, cpu).choices()).configuration == SLOW


@pytest.mark.slow
@pytest.mark.parametrize(
    ("winner", "over_reference", "stays"),
    [(SLOW, 1.5, True), (SLOW, 1.99, False), (SLOW, 3.0, False), (FAST, 1.5, False), (SLOW, 0.8, False)],
    ids=["surely slower", "perhaps slower", "faster", "the same one, timed again", "the reference is faster now"],
)
def test_a_result_that_ships_stays_where_a_later_search_found_nothing_as_fast(
    write_kernel: WriteKernel,
    tmp_path: Path,
    run: CommandLine,
    winner: Configuration,
    over_reference: float,
    *,
    stays: bool,
) -> None:
    kernel = write_kernel().kernel
    for place, configuration, ratio in ((tmp_path / "1.db", FAST, 2.0), (tmp_path / "2.db", winner, over_reference)):
        record(kernel, place, H200, configuration, over_reference=ratio)
        (shipment,) = run("ship", kernel.folder, "--db", place, "--json").json
    (result,) = read_file(file_for(kernel, H200.name)).results
    assert (shipment["better"], shipment["results"]) == ((1, 0) if stays else (0, 1))
    assert result.speedups["reference"][0] == (2.0 if stays else over_reference)


def test_what_won_no_final_rounds_is_not_shipped(write_kernel: WriteKernel, tmp_path: Path, run: CommandLine) -> None:
    kernel, place = write_kernel().kernel, tmp_path / "results.db"
    record(kernel, place, H200, FAST, confirmed=False)
    assert run("ship", kernel.folder, "--db", place).code == 1
    assert not file_for(kernel, H200.name).exists()


def test_results_of_an_edited_kernel_are_not_shipped(
    write_kernel: WriteKernel, tmp_path: Path, run: CommandLine
) -> None:
    kernel, place = write_kernel().kernel, tmp_path / "results.db"
    record(kernel, place, H200, FAST)
    (kernel.folder / "model.py").write_text(
        (kernel.folder / "model.py").read_text(encoding="utf-8") + "edited = True\n", encoding="utf-8"
    )
    assert run("ship", kernel.folder, "--db", place).code == 1


def test_the_doctor_looks_at_what_ships() -> None:
    found = [finding for finding in examine(None) if finding.subject.startswith("shipped ")]
    assert {finding.subject for finding in found} >= {"shipped scalar_mul", "shipped gemm_scale_bn"}
    assert all(finding.works for finding in found)
