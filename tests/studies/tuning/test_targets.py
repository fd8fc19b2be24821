"""What commands are about: study files, and trials, which know their own folder, sizes, dtype and mode."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import CommandLine
from parts_contract import fictional
from sample_kernel import SLOW_REFERENCE, WriteKernel

from tunebench.db.connection.database import open_database
from tunebench.db.queries.one_trial import trial_details
from tunebench.kernels.runtime.registry import import_model
from tunebench.kernels.runtime.shipped import files_of
from tunebench.studies.checking.bench import cases_of
from tunebench.studies.request.measure import BenchRequest
from tunebench.studies.tuning import resolved
from tunebench.studies.tuning.resolved import resolve
from tunebench.studies.tuning.study_file import request_of
from tunebench.studies.tuning.targets import find_target
from tunebench.studies.tuning.tune import tune
from tunebench.tuner import environment
from tunebench.tuner.errors import UserError

pytestmark = pytest.mark.usefixtures("short_studies")


@pytest.fixture
def folder(write_kernel: WriteKernel) -> Path:
    """A kernel's folder with two trials in the user's database, at a size that is not the reference's own."""
    found = write_kernel(reference=SLOW_REFERENCE).kernel.folder
    with open_database() as database:
        tune(
            resolve(request_of(str(found), {"device": "cpu", "trials": 2, "sizes": {"rows": 7, "columns": 5}})),
            database,
        )
    return found


def test_torch_compile_takes_part_on_a_gpu_unless_there_is_no_time_or_nobody_wants_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def compares(**options: object) -> bool | None:
        return resolve(request_of("scalar_mul", options)).request.compile

    assert compares(device="cpu") is False and compares(device="cpu", compile=True) is True
    monkeypatch.setattr(resolved, "find_devices", lambda _: [fictional("sm_90")])
    assert compares() is True and compares(seconds=70.0) is True
    assert compares(seconds=60.0) is False and compares(compile=False) is False
    frozen = request_of("gemm_scale_bn", {"seconds": 100.0, "modes": ["eval", "frozen"]})
    assert resolve(frozen).request.compile is False  # fifty seconds each


def study_file(folder: Path) -> Path:
    file = folder.parent / "study.toml"
    text = f'kernel = "{folder.name}"\ndevice = "cpu"\n[sizes]\nrows = 7\ncolumns = 5\n[tunables]\nblock_size = [128]\n'
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.slow
def test_a_trial_knows_its_folder_sizes_and_configuration(folder: Path, run: CommandLine) -> None:
    found = find_target("1")
    assert Path(found.request.kernel) == folder.resolve()
    sizes = found.request.sizes
    assert sizes["rows"] * sizes["columns"] == 35
    assert found.request.dtype == "float32"
    with open_database(read_only=True) as database:
        details = trial_details(database, 1)
    assert found.configuration == dict(details.row.configuration)
    assert details.trial.environment.kernel_path == str(folder.resolve())
    (case,) = cases_of(["2"], BenchRequest())
    assert (case.kernel, dict(case.sizes)) == (found.request.kernel, dict(sizes))
    assert case.configuration == find_target("2").configuration
    compared = run("compare", 1, "default", "--device", "cpu")
    assert compared.code in (0, 1) and "n=35 float32" in compared.out, compared
    checked = run("check", 2, "--device", "cpu", "--json")
    (report,) = checked.json
    assert checked.code == 0 and report["configuration"] == dict(find_target("2").configuration)


@pytest.mark.slow
def test_what_a_study_had_no_time_for_is_asked_later(write_kernel: WriteKernel, run: CommandLine) -> None:
    """This process has run for longer than a millisecond: there is time for the first configuration alone."""
    found = write_kernel(reference=SLOW_REFERENCE).kernel.folder
    size = ("--size", "rows=7", "--size", "columns=5")
    (late,) = run("tune", found, "--device", "cpu", *size, "--seconds", 0.001, "--json").json
    assert (late["trials"], late["best"], late["unasked"]) == (1, None, ["the final rounds"])
    told = run("tune", found, "--device", "cpu", *size, "--seconds", 0.001)
    assert f"'tunebench confirm {late['study']}' asks it" in " ".join(told.out.split())
    (asked,) = run("confirm", late["study"], "--json").json
    assert asked["trials"] == 1 and asked["best"] is not None and asked["unasked"] == []
    unknown = run("confirm", 99)
    assert unknown.code == 2 and "there is no study 99 with trials here: 'tunebench studies' lists them" in unknown.err


@pytest.mark.slow
def test_study_files_say_what_is_compared_checked_timed_and_shipped(folder: Path, run: CommandLine) -> None:
    file = study_file(folder)
    compared = run("compare", "blocks=1", "default", file)
    assert compared.code in (0, 1) and "n=35 float32" in compared.out, compared
    checked = run("check", file, "--json")
    (report,) = checked.json
    assert checked.code == 0 and report["configuration"]["block_size"] == 128
    (case,) = cases_of([str(file)], BenchRequest())
    assert dict(case.sizes) == {"rows": 7, "columns": 5}
    assert case.device == "cpu" and case.configuration == {"block_size": 128}
    shipped = run("ship", file, "--device", "cpu")
    assert shipped.code == 0, shipped
    assert len(files_of(import_model(str(folder)).kernel)) == 1


@pytest.mark.slow
def test_a_trial_of_elsewhere_names_no_folder_here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "model.py").chmod(0o666)
    with pytest.raises(UserError, match="which others can write: name its folder"):
        find_target("1")
    monkeypatch.setattr(environment.socket, "gethostname", lambda: "another")
    with pytest.raises(UserError, match=r"trial 1 is of a kernel at .*, which is not here: name its folder"):
        find_target("1")


@pytest.mark.slow
def test_a_trial_whose_folder_is_gone_is_one_line(folder: Path, run: CommandLine) -> None:
    folder.rename(folder.with_name("moved"))
    assert "which is not here: name its folder" in run("compare", 1, "default").error
    assert "has no trial 9" in run("check", 9).error
