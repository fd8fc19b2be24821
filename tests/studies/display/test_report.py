"""The report of real studies: what its page says, that it needs nothing else, and how a browser draws it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chromium import Chromium, running_chromium
from command_line import CommandLine
from html_outline import Outline
from sample_kernel import MODEL, REFERENCE, SOURCE

from tunebench.db.connection.database import open_database
from tunebench.db.entries.study_log import open_study
from tunebench.db.queries.studies import newest_comparison, studies
from tunebench.studies.display.report import gather as gathering
from tunebench.studies.display.report.gather import StudyData, gather
from tunebench.studies.display.report.page import render, write
from tunebench.studies.display.report.style import number, ratio_text, time_unit
from tunebench.studies.display.report.tables import overview_table
from tunebench.studies.tuning.resolved import resolve
from tunebench.studies.tuning.study_file import request_of
from tunebench.studies.tuning.tune import tune
from tunebench.tuner.build import CompilerName
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import find_device
from tunebench.tuner.environment import current_environment
from tunebench.tuner.errors import UnknownNameError, UserError
from tunebench.tuner.problem import Problem
from tunebench.tuner.result import Baseline, Decision, Ratio, TrialResult, TrialStatus
from tunebench.tuner.study.history import StudyDescription
from tunebench.tuner.timing.statistics import control_ratio

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("short_studies")]

SECTIONS = (
    *("Convergence", "Speed-ups and roofline", "Fastest trials", "Effect of each tunable", "Pairs of tunables"),
    *("Parallel coordinates", "Refused variants", "Noise and samples by round", "Environment"),
)
FIGURES = ("convergence", "speed-ups", "importance", "effect-0", "pair-0", "parallel", "outcomes", "rounds")

BROKEN = 'static_assert(variety != 1, "not built");\nextern "C"'
WRONG = "y[i] = variety == 2 ? x[i] * weight[0] + 1 : x[i] * weight[0];"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kernel of one's own, a third of whose variants do not compile and a third of which are wrong."""
    path = tmp_path_factory.mktemp("kernels") / "weigh"
    path.mkdir()
    source = SOURCE.replace('extern "C"', BROKEN).replace("y[i] = x[i] * weight[0];", WRONG)
    for name, text in (("weigh.cu", source), ("model.py", MODEL), ("reference.py", REFERENCE)):
        (path / name).write_text(text, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def results(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with real studies of that kernel and of a shipped one."""
    file = tmp_path_factory.mktemp("results") / "results.db"
    with open_database(file) as database:
        tune(resolve(request_of(str(folder), {"device": "cpu", "trials": 40, "sampler": "exhaustive"})), database)
        options = {"device": "cpu", "trials": 12, "sampler": "random", "sizes": {"M": 64, "N": 33}}
        tune(resolve(request_of("scalar_mul", options)), database)
    return file


@pytest.fixture(scope="module")
def data(results: Path, folder: Path) -> dict[str, StudyData]:
    """What the report is made of, by kernel."""
    with open_database(results, read_only=True) as database:
        report = gather(database, [str(folder), "scalar_mul"])
    return {study.row.kernel: study for study in report.studies}


@pytest.fixture(scope="module")
def page_file(results: Path, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of both."""
    file = tmp_path_factory.mktemp("page") / "report.html"
    with open_database(results, read_only=True) as database:
        write(render(gather(database, [str(folder), "scalar_mul"])), file)
    return file


@pytest.fixture(scope="module")
def page(page_file: Path) -> str:
    return page_file.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def outline(page: str) -> Outline:
    return Outline(page)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with running_chromium(tmp_path_factory.mktemp("profile")) as running:
        yield running


def plots(outline: Outline, study: StudyData) -> dict[str, dict[str, Any]]:
    """The data of every plot of a study, by the plot's name."""
    prefix = f"study-{study.row.study_id}-"
    return {
        attributes["id"].removeprefix(prefix).removesuffix("-data"): json.loads(text)
        for attributes, text in outline.all("script")
        if attributes.get("type") == "application/json" and attributes["id"].startswith(prefix)
    }


def named(plot: dict[str, Any], name: str) -> dict[str, Any]:
    """A plot's trace of that name."""
    return next(trace for trace in plot["data"] if trace.get("name", "").startswith(name))


def test_the_page_is_well_formed_and_can_be_read_without_seeing_it(outline: Outline) -> None:
    ids = [attributes["id"] for _, attributes in outline.elements if "id" in attributes]
    assert len(set(ids)) == len(ids)
    assert outline.all("html")[0][0]["lang"] == "en"
    assert outline.text_of("title") == ["tunebench report: scalar_mul, weigh"] == outline.text_of("h1")
    for tag, attributes in outline.elements:
        if tag == "a":
            assert attributes["href"].startswith("#") and attributes["href"][1:] in ids
        if "aria-labelledby" in attributes:
            assert attributes["aria-labelledby"] in ids
        if "plot" in attributes.get("class", "").split():
            assert attributes["role"] == "img" and len(attributes["aria-label"]) > 20
    assert all(attributes["scope"] == "col" for attributes, _ in outline.all("th"))


def test_the_page_refers_to_nothing_outside_itself(outline: Outline) -> None:
    for tag, attributes in outline.elements:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "form")
        assert not {"src", "srcset", "action", "data", "poster", "background"} & set(attributes)
        assert not any(name.startswith("on") for name in attributes)
    assert not re.search(r"url\(|@import", outline.text_of("style")[0])
    policy = next(a["content"] for a, _ in outline.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy and "http" not in policy
    scripts = [text for attributes, text in outline.all("script") if "type" not in attributes]
    digests = ["'sha256-" + base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() + "'" for s in scripts]
    assert len(scripts) == 2
    assert f"script-src {' '.join(digests)};" in policy


def test_every_section_is_there(outline: Outline, data: dict[str, StudyData]) -> None:
    assert outline.text_of("h3") == list(SECTIONS) * 2
    for study in data.values():
        assert f"{study.row.kernel}: {study.row.problem}" in outline.text_of("h2")
        assert set(FIGURES) <= set(plots(outline, study))


def test_the_summary_has_the_recorded_numbers(outline: Outline, data: dict[str, StudyData]) -> None:
    cells, tiles, notes = outline.text_of("td"), outline.text_of("dd"), outline.text_of("small")
    for study in data.values():
        assert study.comparison is not None and study.best is not None
        best_ms = study.comparison.medians_ms["best"]
        assert time_unit(best_ms).text(best_ms) in tiles
        assert str(study.comparison.best) in outline.text_of("code")
        for baseline in (Baseline.REFERENCE, Baseline.DEFAULT):
            text = ratio_text(study.comparison.speedups[baseline])
            assert text in cells and text.split(" ")[0] in tiles
            assert any(note.startswith(text.split(" ", 1)[1]) for note in notes)
    assert "11 of 33" in tiles and "22" in tiles
    assert "12 of 12" in tiles and "0" in tiles


def test_refused_variants_are_listed_by_reason(outline: Outline, data: dict[str, StudyData]) -> None:
    rows = [text for attributes, text in outline.all("td") if attributes.get("class") == "reason"]
    assert any("not built" in text for text in rows)
    assert any("error" in text for text in rows)
    cells = outline.text_of("td")
    assert cells.count("compile") == 1 and cells.count("correctness") == 1
    (bars,) = plots(outline, data["weigh"])["outcomes"]["data"]
    assert sum(bars["x"]) == 33
    assert "compile: 11" in bars["y"] and "correctness: 11" in bars["y"]
    assert "No variant was refused." in outline.text_of("p")


def test_convergence_shows_every_trial_and_the_best_so_far(outline: Outline, data: dict[str, StudyData]) -> None:
    study = data["scalar_mul"]
    plot = plots(outline, study)["convergence"]
    drawn = sum(len(trace["x"]) for trace in plot["data"] if trace["mode"] == "markers")
    assert drawn == len(study.timed)
    line = named(plot, "best so far")["y"]
    assert line == sorted(line, reverse=True)
    fastest = study.correct[0].median_ms
    assert fastest is not None and line[-1] == pytest.approx(fastest * time_unit(fastest).factor)
    assert study.comparison is not None
    for name in ("reference", "default"):
        median_ms = study.comparison.medians_ms[name]
        assert named(plot, name)["y"][0] == pytest.approx(median_ms * time_unit(fastest).factor)


def test_bars_rates_and_rounds_are_of_the_comparison(outline: Outline, data: dict[str, StudyData]) -> None:
    for study in data.values():
        assert study.comparison is not None and study.work is not None
        drawn = plots(outline, study)
        (bars,) = drawn["speed-ups"]["data"]
        ratios = [study.comparison.speedups[name] for name in (Baseline.REFERENCE, Baseline.DEFAULT)]
        assert bars["x"] == pytest.approx([ratio.value for ratio in ratios])
        assert bars["error_x"]["array"] == pytest.approx([ratio.high - ratio.value for ratio in ratios])
        assert "roofline" not in drawn and study.ceilings is not None and study.ceilings.bytes_per_second is None
        rate = study.work.operations / study.comparison.medians_ms["best"] * 1e-9
        assert number(rate) in [
            text for attributes, text in outline.all("td") if attributes["data-column"] == "TFLOP/s"
        ]
        samples = [trace["customdata"] for trace in drawn["rounds"]["data"] if trace["type"] == "scatter"]
        assert len(samples) == 5
        factor = time_unit(study.comparison.medians_ms["best"]).factor
        assert samples[0] == pytest.approx([sample * factor for sample in study.comparison.samples_ms["best"]])


def test_no_share_of_a_ceiling_is_said_of_a_cpu(outline: Outline) -> None:
    assert "of the copy rate" not in outline.text_of("dt")
    left_out = [text for text in outline.text_of("p") if text.startswith("The roofline is left out")]
    assert len(left_out) == 2 and all("No ceiling is known of a CPU" in text for text in left_out)


def test_a_trial_has_what_it_takes_and_how_fast_it_is(outline: Outline, data: dict[str, StudyData]) -> None:
    study = data["weigh"]
    assert study.comparison is not None and study.comparison.work == study.work
    for recorded in study.recorded.values():
        (launch,) = recorded.result.launches
        assert launch.threads == recorded.result.configuration["block_size"]
    fastest = study.correct[0]
    assert study.work is not None and fastest.median_ms is not None
    rates = [text for attributes, text in outline.all("td") if attributes["data-column"] == "GB/s"]
    assert number(study.work.bytes / fastest.median_ms * 1e-6) in rates


def test_two_studies_stand_side_by_side(results: Path, folder: Path, outline: Outline) -> None:
    labels = [attributes["aria-label"] for tag, attributes in outline.elements if attributes.get("role") == "region"]
    assert "Two studies side by side" in labels and "Side by side" in outline.text_of("h2")
    with open_database(results, read_only=True) as database:
        alone = Outline(render(gather(database, [str(folder)])))
    assert "Side by side" not in alone.text_of("h2") and "Speed-ups" in alone.text_of("h2")


def test_a_shipped_study_has_its_roofline(run: CommandLine, tmp_path: Path) -> None:
    run("db", "import", Path(__file__).parents[3] / "docs/results/spaces/h200.jsonl.gz", "--db", tmp_path / "h200.db")
    with open_database(tmp_path / "h200.db", read_only=True) as database:
        report = gather(database)
        html = render(report)
    outline = Outline(html)
    for study in report.studies:
        drawn = plots(outline, study)["roofline"]["data"]
        assert [trace["name"].split()[0] for trace in drawn[:3]] == ["memory", "fp32", "half"]
    said = [text for attributes, text in outline.all("td") if attributes["data-column"] == "reaches"]
    shares = [float(text.split(" ")[0]) for text in said if text[0].isdigit()]
    assert len(shares) >= 10 and max(shares) <= 125
    assert "its source was edited since this study" in html


def test_tables_are_sorted_and_filtered(chromium: Chromium, run: CommandLine, tmp_path: Path) -> None:
    """Ask a recorded study: in one that runs here the machine decides which trials are cut short."""
    file = tmp_path / "h200.db"
    run("db", "import", Path(__file__).parents[3] / "docs/results/spaces/h200.jsonl.gz", "--db", file)
    run("report", "scalar_mul", "--db", file, "-o", tmp_path / "report.html")
    opened = chromium.open(tmp_path / "report.html")
    opened.ask("document.querySelectorAll('details').forEach(study => { study.open = true; })")
    table = "document.querySelector('[aria-label=\"Fastest trials as screened\"]')"
    column = f"[...{table}.querySelectorAll('td:first-child')].map(cell => Number(cell.textContent))"
    for order in (1, -1):
        opened.ask(f"{table}.querySelector('th button').click()")
        numbers = opened.ask(column)
        assert isinstance(numbers, list) and numbers == sorted(numbers)[::order] and len(numbers) > 5
    assert opened.ask(f"{table}.querySelector('th').getAttribute('aria-sort')") == "descending"
    field = f"{table}.previousElementSibling"
    shown = f"[...{table}.querySelectorAll('tbody tr:not([hidden])')].map(row => row.textContent)"
    before = opened.ask(shown)
    assert isinstance(before, list)
    (word,) = re.findall(r"block_size=\d+", before[0])
    opened.ask(f"({field}.value = '{word}', {field}.dispatchEvent(new Event('input')))")
    assert opened.ask(shown) == [row for row in before if word in row]


def test_the_environment_is_told(outline: Outline, data: dict[str, StudyData]) -> None:
    cells = outline.text_of("td")
    row, (entry,) = data["weigh"].row, data["weigh"].environments
    for text in (row.source_digest, row.device.uuid, entry.environment.compiler, entry.environment.torch):
        assert text in cells
    assert entry.trials == 33


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_draws_every_plot(
    chromium: Chromium, page_file: Path, data: dict[str, StudyData], width: int, scheme: str
) -> None:
    opened = chromium.open(page_file)
    opened.prefer(scheme)
    states = opened.draw_all(width)
    assert len(states) > 20 and set(states) == {"drawn"}
    plots_without_svg = "[...document.querySelectorAll('.plot')].filter(p => !p.querySelector('svg.main-svg')).length"
    assert opened.ask(plots_without_svg) == 0
    untitled = 2 * len(data)  # parallel coordinates name their axes at the ticks
    assert opened.ask("document.querySelectorAll('.plot [class^=x][class$=title]').length") >= len(states) - untitled
    assert opened.ask("document.documentElement.scrollWidth") == width
    colour = opened.ask("getComputedStyle(document.querySelector('.plot .xtitle')).fill")
    assert colour == opened.ask("getComputedStyle(document.body).color")
    assert opened.ask("performance.getEntriesByType('resource').length") == 0
    assert opened.complaints() == []


def test_plots_far_below_are_drawn_when_they_are_reached(chromium: Chromium, page_file: Path) -> None:
    opened = chromium.open(page_file)
    opened.follow("study-2")
    opened.wait_for("document.querySelectorAll('#study-2 .plot[data-state]').length > 0")
    assert opened.ask("document.querySelectorAll('#study-2 .plot:not([data-state])').length") != 0


def test_studies_are_folded_until_a_link_leads_into_them(chromium: Chromium, page_file: Path) -> None:
    opened = chromium.open(page_file)
    studies = "[...document.querySelectorAll('details.study')].map(study => study.open)"
    assert opened.ask(studies) == [False, False]
    assert int(str(opened.ask("document.querySelector('details').offsetHeight"))) < 100
    assert "over the reference" in str(opened.ask("document.querySelector('summary').innerText"))
    for _ in range(2):
        opened.follow("study-2")
        opened.wait_for(f"String({studies}) === 'true,false'")
        assert opened.wait_for("document.querySelectorAll('#study-2 .plot[data-state=drawn]').length > 0")
        opened.ask("document.getElementById('study-2').open = false")
    assert opened.ask("document.querySelectorAll('#study-1 .plot[data-state]').length") == 0
    part = chromium.open(page_file, "study-1-rounds-part")
    part.wait_for(f"String({studies}) === 'false,true'")
    part.wait_for("Math.abs(document.getElementById('study-1-rounds-part').getBoundingClientRect().top) < 700")
    assert opened.complaints() == []


def test_the_overview_fits_a_phone(chromium: Chromium, page_file: Path) -> None:
    opened = chromium.open(page_file)
    opened.resize(390, 700)
    assert opened.ask("document.querySelector('nav.overview .scroll').scrollWidth") == opened.ask(
        "document.querySelector('nav.overview .scroll').clientWidth"
    )
    label = opened.ask("getComputedStyle(document.querySelectorAll('nav.overview td')[5], '::before').content")
    assert str(label).startswith('"verdict')


def test_a_single_study_is_open(run: CommandLine, results: Path, tmp_path: Path, chromium: Chromium) -> None:
    run("report", "scalar_mul", "-o", tmp_path / "one.html", "--db", results)
    assert chromium.open(tmp_path / "one.html").ask("document.querySelector('details.study').open") is True


def test_all_of_it_is_printed(chromium: Chromium, page_file: Path) -> None:
    opened = chromium.open(page_file)
    # Registered after the page's own listeners: what it sees is what goes to paper.
    opened.ask(
        "window.addEventListener('beforeprint', () => { window.printed = ["
        "document.querySelectorAll('details:not([open])').length, document.querySelectorAll('.plot').length,"
        "document.querySelectorAll('.plot svg.main-svg:first-of-type').length]; })"
    )
    paper = opened.print()
    closed, plots_there, plots_drawn = opened.ask("window.printed")  # type: ignore[misc]
    assert closed == 0 and plots_there > 20 and plots_drawn >= plots_there
    assert len(re.findall(rb"/Type /Page\b", paper)) > 4
    assert opened.ask("document.querySelectorAll('details[open]').length") == 0


def test_what_there_is_no_room_for_is_named(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_database(results, read_only=True) as database:
        for limit in ("_MOST_SECTIONS", "_MOST_TRIALS"):
            with monkeypatch.context() as patched:
                patched.setattr(gathering, limit, 1)
                report = gather(database)
                assert [summary.row.kernel for summary in report.overview] == ["scalar_mul", "weigh"]
                assert [study.row.kernel for study in report.studies] == ["scalar_mul"], "the most recent one"
                html = render(report)
            assert "The 1 most recent studies have a section below; 1 others are in this table only." in html
            assert 'href="#study-2"' in html and 'href="#study-1"' not in html
        assert "Only the newest 1 of 12 trials are shown here." in html
        monkeypatch.setattr(gathering, "_MOST_ROWS", 1)
        report = gather(database)
        assert ([summary.row.kernel for summary in report.overview], report.unlisted) == (["scalar_mul"], 1)
        assert "1 studies that are less recent are not in this table." in render(report)


def test_rounds_that_tell_equals_apart_decide_nothing(data: dict[str, StudyData]) -> None:
    summary = data["scalar_mul"].summary
    assert summary.comparison is not None
    equal, faster = (1.0, 1.01, 0.99) * 10, (0.5, 0.51, 0.49) * 10
    ratio = Ratio(2.0, 1.9, 2.1, 30, 0.99)
    for control, decision in ((equal, Decision.FASTER), (faster, Decision.INCONCLUSIVE)):
        samples = {"best": faster, "reference": equal, "default": equal, "control": control}
        rounds = replace(
            summary.comparison,
            medians_ms={name: times[0] for name, times in samples.items()},
            samples_ms=samples,
            speedups={Baseline.REFERENCE: ratio},
            control=control_ratio(samples, "default"),
        )
        told = replace(summary, comparison=rounds)
        assert rounds.decision(Baseline.REFERENCE) is decision
        assert rounds.decision(Baseline.COMPILED) is None
        table = overview_table([told], ["n=1"], {told.row.study_id})
        assert table.rows[0][table.columns.index("verdict")].text == decision.value


def test_without_the_source_the_work_is_the_recorded_one(results: Path, folder: Path, tmp_path: Path) -> None:
    with open_database(results, read_only=True) as database:
        (study,) = gather(database, ["weigh"]).studies
        assert study.work is not None and study.work_note == "", "the comparison has recorded it"
        html = render(gather(database, ["weigh"]))
        assert "TFLOP/s" in html
        edited = tmp_path / "weigh"
        shutil.copytree(folder, edited, ignore=shutil.ignore_patterns("__pycache__"))
        (edited / "model.py").write_text(MODEL + "\nedited = True\n", encoding="utf-8")
        (study,) = gather(database, [str(edited)]).studies
        assert study.kernel is None and study.work is not None
        render(gather(database, [str(edited)]))


def test_a_study_that_was_not_concluded(tmp_path: Path) -> None:
    with open_database(tmp_path / "a.db") as database:
        device = find_device("cpu")
        description = StudyDescription("k", "s", "", Problem({"n": 1}), device, CompilerName.CPU, "gp", 0)
        log = open_study(database, description, current_environment(device, "g++"))
        log.record(TrialResult(Configuration({"a": 1}), TrialStatus.RUNTIME, message="it crashed"))
        html = render(gather(database))
    texts = Outline(html).text_of("p")
    assert "No variant of this study was correct." in texts
    assert "Nothing to show: this study was not concluded." in texts
    assert "it crashed" in html


def test_only_the_newest_study_of_a_problem_is_shown(tmp_path: Path) -> None:
    with open_database(tmp_path / "a.db") as database:
        device = find_device("cpu")
        for seed in range(3):
            description = StudyDescription("k", "s", "", Problem({"n": 1}), device, CompilerName.CPU, "gp", seed)
            log = open_study(database, description, current_environment(device, "g++"))
            log.record(TrialResult(Configuration({"a": 1}), TrialStatus.RUNTIME, message="it crashed"))
        report = gather(database)
        assert [study.row.study_id for study in report.studies] == [3]
        assert "left out (2, 1). tunebench report --study NUMBER shows one." in render(report)
        assert [study.row.study_id for study in gather(database, study_ids=[1, 2]).studies] == [2, 1]
        with pytest.raises(UserError, match="no study 7, 8"):
            gather(database, study_ids=[1, 7, 8])
        with pytest.raises(UnknownNameError, match="unknown kernel 'scaler_mul'; did you mean scalar_mul"):
            gather(database, ["scaler_mul"])


def test_studies_without_trials_do_not_count(tmp_path: Path) -> None:
    with open_database(tmp_path / "a.db") as database:
        device = find_device("cpu")
        description = StudyDescription("k", "s", "", Problem({"n": 1}), device, CompilerName.CPU, "gp", 0)
        log = open_study(database, description, current_environment(device, "g++"))
        assert studies(database) == []
        assert newest_comparison(database, log.study_id) is None


def test_the_command_writes_one_file(run: CommandLine, results: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.html"
    ran = run("report", "scalar_mul", "-o", file, "--db", results)
    assert ran.code == 0 and ran.out.startswith(f"{file}: 1 study, ")
    assert file.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    ran = run("report", "--study", 1, "-o", file, "--db", results, "--json")
    assert ran.json == {"file": str(file), "bytes": file.stat().st_size, "studies": [1], "sections": [1]}
    assert list(tmp_path.glob(".out*")) == []


def test_questions_that_are_wrong_get_one_line(run: CommandLine, results: Path, tmp_path: Path) -> None:
    assert "there is no results database" in run("report", "--db", tmp_path / "none.db").error
    assert "unknown kernel 'scaler'" in run("report", "scaler", "--db", results).error
    assert "no study 99" in run("report", "--study", 99, "--db", results).error
    unwritable = run("report", "-o", tmp_path / "absent" / "a.html", "--db", results)
    assert "cannot write" in unwritable.error
    open_database(tmp_path / "empty.db").close()
    ran = run("report", "--db", tmp_path / "empty.db", "-o", tmp_path / "a.html")
    assert (ran.code, ran.out) == (1, "") and len(ran.err.splitlines()) == 1
    assert not (tmp_path / "a.html").exists()
