"""What the documentation says to type is typed here: every block that needs no GPU runs on a database of real studies.

A block that cannot run here has a comment before it: `<!-- not run by the tests: why -->`. Its commands must be ours.
A block that is a file, for other blocks to use, has a comment that says where: `<!-- file: folder/name -->`.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shlex
import shutil
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
from processes import ended
from sample_kernel import MODEL, REFERENCE, SOURCE
from warm_process import commands_in

from tunebench.db.connection.database import open_database
from tunebench.db.exchange.files import import_file
from tunebench.db.exchange.formats import format_named
from tunebench.studies.faces.cli import app
from tunebench.studies.faces.cli.reference import reference
from tunebench.studies.tuning.resolved import resolve
from tunebench.studies.tuning.study_file import request_of, studies_in
from tunebench.studies.tuning.tune import tune

pytestmark = pytest.mark.usefixtures("short_studies")

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]

TRIALS_OF_A_STATUS = 20
"""Of each study in the database that the blocks run on: reports and exports of all take most of a minute."""

_BLOCK = re.compile(
    r"(?:(?P<not_run><!-- not run by the tests: [^\n]+ -->\n)|<!-- file: (?P<file>[^\n ]+) -->\n)?"
    r"```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.M | re.S,
)
_FENCED = re.compile(r"^```\w*\n.*?^```$", re.M | re.S)
_INDENTED = re.compile(r"(?:^    .*\n)+", re.M)
_COMMAND = re.compile(r"""^(?:    |\$ )?(tunebench (?:"[^"]*"|[^"\n\\]|\\\n)+)""", re.M)


@dataclass(frozen=True)
class Block:
    """A block of code in the documentation."""

    page: str
    line: int
    language: str
    text: str
    run: bool
    file: str | None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks() -> Iterator[Block]:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for found in _BLOCK.finditer(text):
            line = text.count("\n", 0, found.start("language")) + 1
            yield Block(page.name, line, found["language"], found["text"], found["not_run"] is None, found["file"])


def commands() -> Iterator[tuple[str, str]]:
    """Every command line in code, with its page."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        code = "\n".join([*_FENCED.findall(text), *_INDENTED.findall(_FENCED.sub("", text))])
        for found in _COMMAND.finditer(code if page.name != "cli.md" else ""):
            for part in re.split(r"&&|\|", found[1]):
                if part.strip().startswith("tunebench "):
                    yield page.name, part.strip()


def by_name(group: Any) -> dict[str, Any]:
    """The commands of a group by their names, those of a group within it among them."""
    return {name: by_name(one) if hasattr(one, "commands") else one for name, one in group.commands.items()}


COMMANDS = by_name(typer.main.get_command(app))
RUN = [
    block
    for block in blocks()
    if block.run and not block.file and block.language in ("sh", "python") and block.page != "tutorial.md"
]
"""Those of the tutorial are for one folder, one after another: test_tutorial.py."""


def thin(export: Path, thinned: Path) -> None:
    """A part of an export: of each study what won its comparison, and the first few trials of each status."""
    kept: Counter[str] = Counter()
    with gzip.open(export, "rt", encoding="utf-8") as whole, gzip.open(thinned, "wt", encoding="utf-8") as part:
        for line in whole:
            entry = json.loads(line)
            place = json.dumps([entry["study"], entry["trial"]["status"]])
            kept[place] += 1
            if kept[place] <= TRIALS_OF_A_STATUS or entry["trial"]["comparisons"]:
                part.write(line)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, warm: Path) -> Path:
    """A folder with what the documentation's examples name: seven studies, of an H200 and of this machine's CPU."""
    folder = tmp_path_factory.mktemp("world")
    kernel = folder / "path" / "to" / "my_kernel"
    kernel.mkdir(parents=True)
    for name, text in (("my_kernel.cu", SOURCE), ("model.py", MODEL), ("reference.py", REFERENCE)):
        (kernel / name).write_text(text, encoding="utf-8")
    for block in blocks():
        if block.file is not None:
            file = folder / block.file
            file.parent.mkdir(exist_ok=True)
            file.write_text(block.text, encoding="utf-8")
    spaces = folder / "docs" / "results" / "spaces"
    spaces.mkdir(parents=True)
    thin(ROOT / "docs" / "results" / "spaces" / "h200.jsonl.gz", spaces / "h200.jsonl.gz")
    with open_database(folder / "tunebench.db") as database:
        import_file(database, spaces / "h200.jsonl.gz", format_named("jsonl"))
        options = {"device": "cpu", "trials": 4, "sizes": {"M": 64, "N": 33}}
        tune(resolve(request_of("scalar_mul", options)), database)
        tune(resolve(request_of(str(kernel), {"device": "cpu", "trials": 4})), database)
    for name in ("machine1.db", "machine2.db", "laptop.db", "server.db"):
        shutil.copy(folder / "tunebench.db", folder / name)
    commands_in(folder / "bin", warm)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("block", RUN, ids=str)
def test_a_block_runs(block: Block, world: Path, tmp_path: Path) -> None:
    for program in ("sqlite3", "jq"):
        if re.search(rf"\b{program} -|\b{program} '", block.text) and shutil.which(program) is None:
            pytest.skip(f"needs {program}")
    folder = tmp_path / "world"
    shutil.copytree(world, folder, symlinks=True)
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    own = {"PATH": path, "TUNEBENCH_DB": str(folder / "tunebench.db"), "PYTHONPATH": str(ROOT / "src")}
    start = ["bash", "-euo", "pipefail", "-c"] if block.language == "sh" else [folder / "bin" / "python", "-c"]
    ran = ended(*start, block.text, folder=folder, **own)
    assert ran.returncode == 0, f"{block}\n{ran.stdout[-2000:]}\n{ran.stderr[-2000:]}"


@pytest.mark.slow
def test_every_query_has_an_answer(world: Path) -> None:
    if shutil.which("sqlite3") is None:
        pytest.skip("needs sqlite3")
    queries = [
        shlex.split(command, comments=True)
        for block in blocks()
        if block.language == "sh"
        for command in re.findall(r'^sqlite3 (?:[^"\n]|"(?:[^"\\]|\\.)*")*', block.text, re.M)
    ]
    assert len(queries) >= 4
    for query in queries:
        ran = ended(*query, folder=world)
        assert ran.returncode == 0 and ran.stdout.strip(), query


def test_a_command_is_one_of_ours() -> None:
    for page, command in sorted(set(commands())):
        words = shlex.split(command.replace("\\\n", " "), comments=True)[1:]
        found = COMMANDS
        while isinstance(found, Mapping):
            name = words.pop(0)
            assert name in found, f"{page}: {command}"
            found = found[name]
        found.make_context(name, words)


def test_study_files_are_legal() -> None:
    found = [block for block in blocks() if block.language == "toml"]
    assert found
    for block in found:
        studies_in(tomllib.loads(block.text), Path(str(block)))


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if not target.startswith(("http:", "https:")):
                name, _, place = target.partition("#")
                file = (page.parent / name) if name else page
                assert file.exists(), f"{page.name} links to {target}"
                if place:
                    heads = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.M)
                    assert place in [re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in heads], target


def test_the_reference_of_the_command_line_is_up_to_date() -> None:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert text == reference(), "run: python -m tunebench.studies.faces.cli.reference > docs/cli.md"
