"""One declaration of an option: the command line, Python, study files, agents and the reference have it from there."""

from __future__ import annotations

import importlib.util
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import pytest
from command_line import CommandLine
from pydantic import Field, create_model
from typer.main import get_command

import tunebench
from tunebench.studies.faces import api
from tunebench.studies.faces.cli import app, command, reference
from tunebench.studies.request import keywords, options
from tunebench.studies.tuning import study_file
from tunebench.studies.tuning.study_file import StudyRequest, make_request, read_study_file
from tunebench.tuner.errors import StudyFileError, UserError

HELP = "How many more there are, for this test alone."


@pytest.fixture
def extra(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`StudyRequest` with one more option, declared in one place."""
    field = Annotated[int, Field(ge=0, le=9, description=HELP)]
    more = create_model("StudyRequest", __base__=StudyRequest, spare_parts=(field, 3))
    monkeypatch.setattr(study_file, "StudyRequest", more)
    yield


def again(module: ModuleType) -> ModuleType:
    """A module that is imported once more, beside itself."""
    spec = importlib.util.spec_from_file_location(f"{module.__name__}_again", str(module.__file__))
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.mark.usefixtures("extra")
def test_an_option_that_is_added_is_everywhere(tmp_path: Path) -> None:
    root: Any = get_command(app)
    (option,) = [one for one in root.get_command(None, "tune").params if one.name == "spare_parts"]
    assert (option.opts, option.help) == (["--spare-parts"], HELP)
    assert f"| `--spare-parts` `N` | {HELP} |" in reference.reference()

    tune = again(api).tune
    assert inspect.signature(tune).parameters["spare_parts"].annotation == "int | None"
    assert f"spare_parts: {HELP}" in inspect.getdoc(tune)

    file = tmp_path / "study.toml"
    file.write_text('kernel = "scalar_mul"\nspare_parts = 4\n', encoding="utf-8")
    assert read_study_file(file).model_dump()["spare_parts"] == 4
    with pytest.raises(StudyFileError, match="'spare_parts' is not legal: Input should be less than or equal to 9"):
        make_request({"kernel": "scalar_mul", "spare_parts": 10}, "a file")


@pytest.mark.usefixtures("extra")
def test_a_tool_has_an_option_that_is_added(tmp_path: Path) -> None:
    server = again(pytest.importorskip("tunebench.studies.faces.mcp.server"))
    (tool,) = [one for one in server.published(tmp_path) if one["name"] == "tune"]
    published = tool["inputSchema"]["properties"]
    assert published["spare_parts"]["description"] == HELP
    (limits,) = [one for one in published["spare_parts"]["anyOf"] if one["type"] == "integer"]
    assert (limits["minimum"], limits["maximum"]) == (0, 9)
    assert set(published) == {"kernel", "spare_parts", *options.options_of(StudyRequest)} - {"executor", "address"}


@pytest.mark.parametrize("study", [0, 2**63])
def test_a_number_beyond_its_limits_is_refused_in_every_face(study: int, run: CommandLine) -> None:
    with pytest.raises(UserError, match=f"'study' is not legal: .* \\(got {study}\\)"):
        tunebench.trials(study=study)
    assert "study" in run("trials", "--study", study).error
    with pytest.raises(UserError, match="'study' is not legal"):
        command.ask(command_of("trials"), {"given": {"study": study}})


def test_a_seed_may_have_63_bits(run: CommandLine) -> None:
    assert "unknown kernel 'nosuch'" in run("tune", "nosuch", "--seed", 2**63 - 1).error
    assert "'seed' is not legal" in run("tune", "nosuch", "--seed", 2**63).error


def test_type_checkers_know_the_keywords() -> None:
    assert Path(str(keywords.__file__)).read_text(encoding="utf-8") == reference.keywords()
    taken = inspect.signature(tunebench.tune).parameters
    assert set(keywords.TuneOptions.__annotations__) == taken.keys() - {"kernel", "progress", "db"}
    with pytest.raises(TypeError, match="trails"):
        tunebench.tune("scalar_mul", trails=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "name", ["best", "bundle", "export", "misses", "new", "regress", "sweep", "trials", "tune", "warm"]
)
def test_the_command_line_and_python_take_the_same_options(name: str) -> None:
    model, taken = vars(getattr(tunebench, name))["declaration"]
    root: Any = get_command(app)
    listed = {one.name for one in root.get_command(None, name).params}
    assert taken and set(taken) <= listed & options.options_of(model).keys()


def test_text_means_the_same_from_every_face() -> None:
    (given,) = {
        json.dumps(options.given(StudyRequest, one), default=str)
        for one in (
            {"sizes": ["M=3", "N=4"], "devices": "cuda:0,cuda:1", "accuracy": "eager", "seed": None},
            {"sizes": {"M": 3, "N": 4}, "devices": ["cuda:0", "cuda:1"], "accuracy": tunebench.Accuracy.EAGER},
        )
    }
    assert json.loads(given) == {"sizes": {"M": 3, "N": 4}, "devices": ["cuda:0", "cuda:1"], "accuracy": "eager"}


def test_a_share_is_written_in_percent_and_a_declaration_as_a_flag(run: CommandLine) -> None:
    assert options.given(study_file.RegressRequest, {"threshold": "5"}) == {"threshold": 0.05}
    assert "'threshold' is not legal" in run("regress", "HEAD", "--threshold", "150").error
    assert "is no number: write 2 for two percent" in run("regress", "HEAD", "--threshold", "x").error
    for asked in (["check", "scalar_mul"], ["compare", "default", "reference", "scalar_mul"]):
        assert "--rewrites-algebra is for files" in run(*asked, "--rewrites-algebra").error
    with pytest.raises(UserError, match="unknown declaration 'fast'"):
        tunebench.check("scalar_mul", declared=["fast"])


def test_a_command_is_asked_by_json(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = {"target": "scalar_mul", "given": {"sizes": {"M": 4, "N": 4}, "device": "cpu", "modes": None}}
    command.ask(command_of("space"), arguments)
    (described,) = json.loads(capsys.readouterr().out)
    assert described["problem"]["axes"] == {"elements": 16}
    for wrong, message in (({"device": ""}, "device is empty"), ({"modes": ["fast"]}, "unknown mode 'fast'")):
        with pytest.raises(UserError, match=message):
            command.ask(command_of("space"), {"target": "scalar_mul", "given": wrong})


def command_of(name: str) -> Any:
    """The function of a command."""
    return type(get_command(app)).functions[name]  # type: ignore[attr-defined]
