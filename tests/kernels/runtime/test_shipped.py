"""Results that ship with a kernel: which of them is served, and that those in the repository are served at all."""

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from benchmarks.known_kernels import bench_problems
from sample_kernel import WriteKernel
from sample_results import A100, H100, H200

from tunebench.kernels.runtime.registry import import_model, kernel_names, load_model
from tunebench.kernels.runtime.selection import Tier, choose_shipped, shipped_offers, what_is_known
from tunebench.kernels.runtime.shipped import (
    ShippedFile,
    ShippedFileError,
    ShippedResult,
    file_for,
    files_of,
    is_stale,
    read_file,
    shipped_studies,
    write_file,
)
from tunebench.studies.tuning.for_problem import problem_of, sizes_for
from tunebench.studies.tuning.resolved import resolve
from tunebench.studies.tuning.study_file import read_study_file
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import Device, find_device
from tunebench.tuner.errors import UserError
from tunebench.tuner.kernel import Kernel
from tunebench.tuner.problem import Problem
from tunebench.tuner.settings import settings_of

STUDIES = Path(__file__).parents[3] / "studies" / "files" / "shipped"


def result(n: int, block_size: object = 128, **options: str) -> ShippedResult:
    return ShippedResult(
        axes={"n": n},
        dtype="float32",
        options=options,
        configuration={"block_size": block_size, "blocks": 1, "variety": 0},  # type: ignore[dict-item]
        speedups={"reference": [2.0, 1.9, 2.1]},
        median_ms=0.5,
        error_multiple=1.0,
        conditions={"torch": "2.9.0"},
    )


@pytest.fixture
def kernel(write_kernel: WriteKernel) -> Kernel:
    return write_kernel().kernel


def block_size_for(kernel: Kernel, n: int, device: Device, dtype: str = "float32", **options: str) -> object:
    """What a call runs under, when it comes from a shipped file."""
    choice = next(what_is_known(kernel, Problem({"n": n}, dtype, options), device).choices())
    assert choice.configuration is not None
    return choice.configuration["block_size"] if choice.tier is Tier.SHIPPED else choice.tier


def test_exact_then_nearest_on_the_same_architecture(kernel: Kernel) -> None:
    write_file(kernel, H200.name, H200.architecture, [result(1000, 32), result(9000, 256)])
    assert block_size_for(kernel, 1000, H200) == 32
    assert block_size_for(kernel, 2900, H200) == 32
    assert block_size_for(kernel, 3100, H200) == 256
    assert block_size_for(kernel, 9000, H100) == 256
    assert block_size_for(kernel, 1000, A100) is Tier.DEFAULT
    assert block_size_for(kernel, 1000, H200, "float64") is Tier.DEFAULT
    assert block_size_for(kernel, 1000, H200, mode="frozen") is Tier.DEFAULT


def test_the_problem_counts_before_the_device_and_the_device_before_another(kernel: Kernel) -> None:
    write_file(kernel, H200.name, H200.architecture, [result(1000, 32)])
    write_file(kernel, H100.name, H100.architecture, [result(1000, 64), result(5000, 128)])
    assert block_size_for(kernel, 1000, H200) == 32
    assert block_size_for(kernel, 1000, H100) == 64
    assert block_size_for(kernel, 5000, H200) == 128


def test_a_study_begins_with_what_won_on_its_kind_of_device_alone(kernel: Kernel) -> None:
    write_file(kernel, H200.name, H200.architecture, [result(1000, 32)])
    assert len(shipped_studies(kernel, Problem({"n": 1000}), A100)) == 1
    assert not shipped_studies(kernel, Problem({"n": 1000}), find_device("cpu"))


def test_an_edited_kernel_is_never_served_its_old_results(kernel: Kernel) -> None:
    path = write_file(kernel, H200.name, H200.architecture, [result(1000, 32)])
    for name, edit in (("model.py", "unused = 1"), ("reference.py", "unused = 1"), ("weigh.cu", "int unused;")):
        edited = import_model(str(kernel.folder)).kernel
        assert not is_stale(edited, read_file(path))
        text = (kernel.folder / name).read_text(encoding="utf-8")
        (kernel.folder / name).write_text(f"{text}{edit}\n", encoding="utf-8")
        edited = import_model(str(kernel.folder)).kernel
        assert is_stale(edited, read_file(path))
        assert block_size_for(edited, 1000, H200) is Tier.DEFAULT
        (kernel.folder / name).write_text(text, encoding="utf-8")
    with (kernel.folder / "weigh.cu").open("a", encoding="utf-8") as source:
        source.write("\n// Nobody compiles this.\n")
    assert not is_stale(import_model(str(kernel.folder)).kernel, read_file(path))
    other = json.loads(path.read_text(encoding="utf-8")) | {"kernel": "another"}
    path.write_text(json.dumps(other), encoding="utf-8")
    assert is_stale(kernel, read_file(path))


def test_only_members_of_the_valid_space_are_served(kernel: Kernel) -> None:
    for wrong in (100, 128.0, True, "128; int evil"):
        write_file(kernel, H200.name, H200.architecture, [result(1000, wrong), result(8000, 256)])
        assert block_size_for(kernel, 1000, H200) == 256, wrong


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "Expecting property name"),
        ("[]", "the file: list instead of dict"),
        ('{"kernel": "weigh"}', "architecture: is missing"),
        ("\x00", "Expecting value"),
        ("[" * 100_000, "maximum recursion depth exceeded"),
    ],
)
def test_a_file_that_is_none_is_warned_of_and_passed_over(kernel: Kernel, text: str, message: str) -> None:
    good = write_file(kernel, H200.name, H200.architecture, [result(1000, 32)])
    bad = good.with_name("bad.json")
    bad.write_text(text, encoding="utf-8")
    with pytest.raises(ShippedFileError, match=message):
        read_file(bad)
    with pytest.warns(RuntimeWarning, match="bad.json: not shipped results"):
        assert block_size_for(kernel, 1000, H200) == 32


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("axes", {"n": 10**400}, "results.0.axes.n: more than 64 bits"),
        ("axes", {"n": 1.0}, "results.0.axes.n: float instead of int"),
        ("axes", {"n": True}, "results.0.axes.n: bool instead of int"),
        ("axes", [1], "results.0.axes: list instead of dict"),
        ("speedups", {"reference": ["2"]}, "results.0.speedups.reference.0: str instead of float"),
        ("error_multiple", "1", "results.0.error_multiple: str instead of float"),
        ("configuration", {"block_size": None}, "block_size: NoneType instead of bool or int or float or str"),
        ("another", 1, "results.0.another: is not a field"),
    ],
)
def test_a_field_that_is_wrong_is_named(kernel: Kernel, field: str, value: object, message: str) -> None:
    path = write_file(kernel, H200.name, H200.architecture, [result(1000, 32)])
    values = json.loads(path.read_text(encoding="utf-8"))
    values["results"][0][field] = value
    path.write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(ShippedFileError, match=re.escape(message)):
        read_file(path)


def test_writing_keeps_other_problems_of_the_same_kernel_and_is_the_same_text_again(kernel: Kernel) -> None:
    path = write_file(kernel, H200.name, H200.architecture, [result(2000, 32)])
    assert path == file_for(kernel, H200.name) and path.name == "nvidia-h200.json"
    write_file(kernel, H200.name, H200.architecture, [result(1000, 64)])
    text = path.read_text(encoding="utf-8")
    assert [(one.problem.axes["n"], one.configuration["block_size"]) for one in read_file(path).results] == [
        (1000, 64),
        (2000, 32),
    ]
    write_file(kernel, H200.name, H200.architecture, [result(2000, 32), result(1000, 64)])
    assert path.read_text(encoding="utf-8") == text
    path.write_text(text.replace(kernel.digest, "0" * 64), encoding="utf-8")
    write_file(kernel, H200.name, H200.architecture, [result(3000, 64)])
    assert [one.problem.axes["n"] for one in read_file(path).results] == [3000]


def test_a_folder_that_cannot_be_written_is_a_line(kernel: Kernel) -> None:
    (kernel.folder / "tuned").write_text("in the way", encoding="utf-8")
    with pytest.raises(UserError, match=r"cannot be written .*: ship from a checkout"):
        write_file(kernel, H200.name, H200.architecture, [result(2000, 32)])


@pytest.mark.parametrize("name", kernel_names())
def test_what_the_repository_ships_is_of_its_kernels_as_they_are(name: str) -> None:
    """Where this fails: `tunebench tune studies/files/shipped/NAME*.toml && tunebench ship NAME`."""
    kernel = load_model(name).kernel
    for path in files_of(kernel):
        file = read_file(path)
        assert not is_stale(kernel, file), f"{path} is of another version of {name}: tune and ship it again"
        assert path == file_for(kernel, file.device)
        device = replace(H200, name=file.device, architecture=file.architecture, max_shared_bytes=232_448)
        for one in file.results:
            served = choose_shipped(shipped_offers([file]), kernel.space, one.problem, device)
            assert served is not None
            assert served.configuration == (one.configuration and Configuration(one.configuration))


@pytest.mark.slow
@pytest.mark.parametrize("name", kernel_names())
def test_what_ships_is_found_as_measured_for_its_own_call(name: str) -> None:
    """Where this fails: `tunebench ship --same-code-as HEAD`."""
    model = load_model(name)
    kernel = model.kernel
    sizes_of = cache(lambda axes, dtype: sizes_for(model, Problem(dict(axes), dtype), kernel.modes[0]))
    for file in map(read_file, files_of(kernel)):
        device = replace(H200, name=file.device, architecture=file.architecture, max_shared_bytes=232_448)
        offers = shipped_offers([file])
        for one in file.results:
            reference = kernel.reference(sizes_of(tuple(one.axes.items()), one.dtype), one.dtype)
            settings = settings_of(one.problem.options)
            problem = problem_of(model, reference, kernel.mode_of(one.problem), "cuda", settings)
            assert problem is not None and problem.at(one.problem.accuracy) == one.problem
            served = choose_shipped(offers, kernel.space, problem.at(one.problem.accuracy), device)
            assert served is not None and served.measured


@pytest.mark.parametrize("name", kernel_names())
def test_studies_of_three_sizes_or_more_and_of_each_half_type_reproduce_what_ships(name: str) -> None:
    own = load_model(name).kernel.reference().sizes
    sizes: dict[str | None, list[dict[str, int | float]]] = {}
    for file in sorted(STUDIES.glob(f"{name}_*.toml")):
        read = read_study_file(file)
        found = resolve(read.model_copy(update={"device": "cpu"})).reference.sizes
        sizes.setdefault(read.dtype, []).append(dict(found))
    assert sizes.keys() == {None, "float16", "bfloat16"}
    assert own in sizes[None] and len({tuple(one.items()) for one in sizes[None]}) >= 3
    assert sizes["float16"] == sizes["bfloat16"] == [own]


@pytest.mark.slow
def test_a_kernel_of_a_block_is_tried_with_what_ships_with_others_of_its_block(kernel: Kernel, tmp_path: Path) -> None:
    swish = import_model(str(bench_problems()["level2_59_swish_scale"].write(tmp_path).folder)).kernel
    problem = Problem({"rows": 200, "in_features": 8192, "out_features": 8192}, "float32", {"mode": "eval"})
    h200 = replace(H200, max_shared_bytes=232448)  # as the real one: the winners ask for it
    known = what_is_known(swish, problem, h200)
    assert [choice.tier for choice in known.choices()] == [Tier.DEFAULT]
    *others, default = known.contenders()
    assert [choice.tier for choice in others] == [Tier.RELATED, Tier.RELATED] and default.tier is Tier.DEFAULT
    for choice in others:
        assert choice.configuration is not None and swish.space.admits(choice.configuration, problem, h200)
        assert choice.configuration["product"] != "fp32" and not choice.trusted
        assert re.match(r"shipped with gemm_\w+, measured for in_features=8192 .* rows=128 float32", choice.reason)
    assert {study.description.split(",")[0] for study in shipped_studies(swish, problem, H200)} == {
        "gemm_scale_bn",
        "gemm_sigmoid_residual",
    }
    # What it has of its own comes first, and a kernel with a source of its own has no relatives.
    own = {"axes": problem.axes, "dtype": "float32", "options": {"mode": "eval"}, "configuration": None}
    assert [choice.tier for choice in what_is_known(kernel, Problem({"n": 64}, "float32"), H200).contenders()] == [
        Tier.DEFAULT
    ]
    winner = replace(result(1), **{**own, "configuration": dict(others[0].configuration)})  # type: ignore[arg-type]
    offers = shipped_offers([ShippedFile(swish.name, swish.digest, H200.name, "sm_90", [winner])])
    assert [choice.tier for choice in replace(known, shipped=offers).contenders()] == [Tier.SHIPPED, Tier.DEFAULT]
    # Of a problem that is farther away than one of theirs, theirs is tried beside it.
    farther = replace(winner, axes={**problem.axes, "rows": 6400}, configuration=dict(others[1].configuration))
    offers = shipped_offers([ShippedFile(swish.name, swish.digest, H200.name, "sm_90", [farther])])
    tried = replace(known, shipped=offers).contenders()
    assert [choice.tier for choice in tried] == [Tier.SHIPPED, Tier.RELATED, Tier.DEFAULT]
    assert tried[1] == others[0]


def test_a_file_round_trips(kernel: Kernel) -> None:
    path = write_file(kernel, H200.name, H200.architecture, [result(1)])
    assert read_file(path) == ShippedFile("weigh", kernel.digest, H200.name, H200.architecture, [result(1)])
