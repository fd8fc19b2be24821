"""`tunebench ship --same-code-as`: results of an edited kernel ship again where the machine code is the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import CommandLine
from sample_results import H200
from versions_of_a_kernel import Repository

from tunebench.kernels.runtime.registry import import_model
from tunebench.kernels.runtime.shipped import ShippedFile, ShippedResult, file_for, is_stale, read_file, write_file

pytest.importorskip("cuda.bindings.nvrtc")
pytest.importorskip("elftools")

SIZES = (4, 8)
TWO_TUNABLES = 'SearchSpace(tunables=(Tunable("turns", (100, 5)), Tunable('


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """A kernel with two results for an H200, in the current folder."""
    made = Repository(tmp_path / "mine")
    monkeypatch.chdir(made.folder)
    give_results(made)
    return made


def give_results(made: Repository) -> None:
    """Commit results for the kernel as it is."""
    kernel = import_model(str(made.kernel)).kernel
    results = [
        ShippedResult(
            {"rows": rows, "columns": 32},
            "float32",
            {},
            {"block_size": 128},
            {"reference": [2.0, 1.9, 2.1]},
            1.0,
            None,
            {},
        )
        for rows in SIZES
    ]
    write_file(kernel, H200.name, H200.architecture, results)
    made.commit("results for it")


def shipped(repository: Repository) -> ShippedFile:
    kernel = import_model(str(repository.kernel)).kernel
    file = read_file(file_for(kernel, H200.name))
    assert not is_stale(kernel, file)
    return file


@pytest.mark.slow
def test_a_new_choice_beside_the_winner_s_keeps_its_results(run: CommandLine, repository: Repository) -> None:
    before = repository.git("rev-parse", "HEAD")
    repository.edit("root.cu", "turn < 100", "turn < turns")
    repository.edit("model.py", "SearchSpace(tunables=(Tunable(", TWO_TUNABLES)
    done = run("ship", repository.kernel, "--same-code-as", "HEAD", "--json")
    (renewal,) = done.json
    assert (done.code, len(renewal["renewed"]), renewal["changed"]) == (0, 2, [])
    first, second = shipped(repository).results
    assert first.configuration == second.configuration == {"turns": 100, "block_size": 128}
    assert first.conditions["same_code_as"] == before
    assert first.speedups == {"reference": [2.0, 1.9, 2.1]}


@pytest.mark.slow
def test_a_choice_that_some_devices_alone_have_is_asked_about_the_results_own(
    run: CommandLine, repository: Repository
) -> None:
    choice = '("turns", (100, 5), when=lambda device: device.architecture.startswith("sm_"))'
    repository.edit("root.cu", "turn < 100", "turn < turns")
    repository.edit("model.py", "SearchSpace(tunables=(Tunable(", TWO_TUNABLES.replace('("turns", (100, 5))', choice))
    done = run("ship", repository.kernel, "--same-code-as", "HEAD", "--json")
    (renewal,) = done.json
    assert (done.code, len(renewal["renewed"]), renewal["changed"]) == (0, 2, [])


@pytest.mark.slow
@pytest.mark.parametrize("body", ["", "y[0] = 1.0f;"], ids=["returns at once", "writes"])
def test_a_function_that_is_gone_matters_where_it_did_something(
    run: CommandLine, repository: Repository, body: str
) -> None:
    function = f'extern "C" __global__ void other(float* y, int n) {{ {body} }}\n'
    repository.edit("root.cu", "// Newton", f"{function}// Newton")
    give_results(repository)
    repository.edit("root.cu", function, "")
    done = run("ship", repository.kernel, "--same-code-as", "HEAD", "--json")
    (renewal,) = done.json
    assert (done.code, len(renewal["renewed"])) == ((1, 0) if body else (0, 2))


@pytest.mark.slow
def test_other_instructions_are_not_shipped(run: CommandLine, repository: Repository) -> None:
    file = file_for(import_model(str(repository.kernel)).kernel, H200.name)
    before = file.read_bytes()
    repository.turns(99)
    done = run("ship", repository.kernel, "--same-code-as", "HEAD~1", "--json")
    (renewal,) = done.json
    assert (done.code, renewal["renewed"], len(renewal["changed"]), renewal["file"]) == (1, [], 2, None)
    assert file.read_bytes() == before


@pytest.mark.slow
def test_what_was_shipped_since_stays(run: CommandLine, repository: Repository) -> None:
    repository.edit("root.cu", "// Newton", "// Isaac Newton")
    kernel = import_model(str(repository.kernel)).kernel
    if kernel.digest == read_file(file_for(kernel, H200.name)).digest:  # a comment is no other kernel
        repository.edit("root.cu", "scalar_t square = x[i]", "scalar_t square = +x[i]")
        kernel = import_model(str(repository.kernel)).kernel
    newer = ShippedResult(
        {"rows": SIZES[0], "columns": 32},
        "float32",
        {},
        {"block_size": 64},
        {"reference": [3.0, 2.9, 3.1]},
        0.5,
        None,
        {},
    )
    write_file(kernel, H200.name, H200.architecture, [newer])
    assert run("ship", repository.kernel, "--same-code-as", "HEAD").code == 0
    assert [one.configuration for one in shipped(repository).results] == [{"block_size": 64}, {"block_size": 128}]


@pytest.mark.slow
def test_what_nobody_shipped_and_what_git_does_not_know_is_one_line(run: CommandLine, repository: Repository) -> None:
    done = run("ship", repository.kernel, "--same-code-as", "HEAD~1")
    assert done.code == 2 and "nothing shipped with root for a GPU at HEAD~1" in done.error
    done = run("ship", repository.kernel, "--same-code-as", "HEAD", "--device", "tpu")
    assert done.code == 2 and f"'tpu' (known: {H200.name})" in done.error
    done = run("ship", repository.kernel, "--same-code-as", "nowhere")
    assert done.code == 2 and "unknown revision 'nowhere'" in done.error
