"""Bundles: binaries that need no compiler where they run, and what is passed over with one warning."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from sample_kernel import WriteKernel

from tunebench.kernels.runtime import decision
from tunebench.kernels.runtime.policy import set_policy
from tunebench.kernels.runtime.selection import Choice, Tier
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.studies.tuning.ahead import bundle
from tunebench.tuner.compile import bundle as bundle_module
from tunebench.tuner.compile.bundle import INDEX, VARIABLE, BundleError, use_bundle
from tunebench.tuner.compile.cpu.compiler import CpuCompiler
from tunebench.tuner.errors import CompilerMissingError, UserError


@pytest.fixture
def bundled(
    write_kernel: WriteKernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[type[TunedModule], Path]:
    """A kernel with a bundle in use, on a machine without a compiler and with an empty build cache."""
    factory = write_kernel()
    problems = tmp_path / "problems.json"
    problems.write_text(json.dumps([{"kernel": "weigh", "axes": {"n": 8}}]), encoding="utf-8")
    bundle(tmp_path / "bundle", [str(factory.kernel.folder)], problems=problems, architectures=["cpu"])

    def missing(_: CpuCompiler) -> str:
        raise CompilerMissingError("there is no g++")

    monkeypatch.setenv("TUNEBENCH_CACHE", str(tmp_path / "empty"))
    monkeypatch.setattr(CpuCompiler, "version", missing)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "bundle"))
    set_policy(wait=False)
    return factory, tmp_path / "bundle"


@pytest.fixture(autouse=True)
def _no_bundle_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunebench.tuner.compile.bundle._named", None)


def served(factory: type[TunedModule], n: int = 8) -> tuple[Choice, list[str]]:
    """What served a call, whose answer is right, and what was warned of."""
    decision.forget_plans()
    model, x = factory(), torch.rand(n)
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.testing.assert_close(model(x), x * model.weight)
    (choice,) = model.choices.values()
    return choice, [str(one.message) for one in caught]


def test_a_bundle_serves_without_a_compiler(bundled: tuple[type[TunedModule], Path]) -> None:
    factory, folder = bundled
    assert served(factory)[0].tier is Tier.DEFAULT
    assert served(factory, n=16)[0].tier is Tier.DEFAULT  # the same binary
    (build,) = json.loads((folder / INDEX).read_bytes())["builds"]
    assert build["kernel"] == "weigh" and build["kernel_digest"] == factory.kernel.digest
    assert set(build["entry_points"]) == {"weigh"}
    assert (folder / build["file"]).stat().st_size == build["bytes"]


def test_without_a_bundle_the_compiler_is_missing(
    bundled: tuple[type[TunedModule], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE)
    choice, said = served(bundled[0])
    assert choice.tier is Tier.REFERENCE and not choice.being_built
    assert said == ["weigh runs the reference's operations: there is no g++"]
    use_bundle(bundled[1])
    assert served(bundled[0])[0].tier is Tier.DEFAULT


def _flip_a_bit(folder: Path) -> None:
    (file,) = folder.glob("*.so")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def _lose_the_binary(folder: Path) -> None:
    (file,) = folder.glob("*.so")
    file.unlink()


def _tear_the_index(folder: Path) -> None:
    (folder / INDEX).write_bytes((folder / INDEX).read_bytes()[:100])


def _of_another_source(folder: Path) -> None:
    _edit_the_index(folder, source_digest="0" * 64, variant_digest="0" * 64)


def _for_another_processor(folder: Path) -> None:
    _edit_the_index(folder, processor="CPU-0")


def _edit_the_index(folder: Path, **fields: str) -> None:
    content = json.loads((folder / INDEX).read_bytes())
    content["builds"][0].update(fields)
    (folder / INDEX).write_text(json.dumps(content), encoding="utf-8")


def _open_to_all(folder: Path) -> None:
    folder.chmod(0o777)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_flip_a_bit, "is not what was written"),
        (_lose_the_binary, "No such file"),
        (_tear_the_index, "damaged"),
        (_of_another_source, "made of another version of weigh"),
        (_for_another_processor, "made for another processor"),
        (_open_to_all, "writable by others"),
    ],
)
def test_a_bundle_that_does_not_fit_is_warned_of_once(
    bundled: tuple[type[TunedModule], Path], spoil: Callable[[Path], None], message: str
) -> None:
    factory, folder = bundled
    spoil(folder)
    choice, said = served(factory)
    assert choice.tier is Tier.REFERENCE
    about_bundle = [one for one in said if str(folder) in one]
    assert len(about_bundle) == 1 and message in about_bundle[0] and "passed over" in about_bundle[0]
    assert not [one for one in served(factory, n=16)[1] if str(folder) in one]


_VALUES = (None, True, -1, 0, 1.5, 2**70, "", "x", "a\0b", "\ud800", [], [1], [None], {}, {"x": 1}, {"x": {"x": 1}})
"""What a mutation puts in the place of a value of an index."""


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each container in a JSON value, with each key of it."""
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


def _mutations(text: bytes) -> Iterator[object]:
    """An index with one value replaced, left out or beside another one, in every place."""
    yield from _VALUES
    for number in range(len(list(_places(json.loads(text))))):
        for value in (*_VALUES, _places):
            content = json.loads(text)
            container, key = list(_places(content))[number]
            if value is not _places:
                container[key] = value
            else:
                del container[key]
            yield content
        content = json.loads(text)
        container, key = list(_places(content))[number]
        if isinstance(container, dict):
            container[f"{key}!"] = container[key]
            yield content


@pytest.mark.slow
def test_no_mutation_of_an_index_reaches_a_call(bundled: tuple[type[TunedModule], Path]) -> None:
    factory, folder = bundled
    text = (folder / INDEX).read_bytes()
    tried = passed_over = 0
    for content in _mutations(text):
        (folder / INDEX).write_text(json.dumps(content), encoding="utf-8")
        bundle_module._index.cache_clear()
        bundle_module._warn_once.cache_clear()
        choice, said = served(factory)
        about_bundle = [one for one in said if str(folder) in one]
        assert len(about_bundle) <= 1 and all("passed over" in one for one in about_bundle)
        assert choice.tier is Tier.DEFAULT or choice.tier is Tier.REFERENCE
        tried, passed_over = tried + 1, passed_over + len(about_bundle)
    assert tried > 300 and passed_over > 200


def test_a_folder_that_is_no_bundle_is_refused(tmp_path: Path, write_kernel: WriteKernel) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(BundleError, match=r"no bundle: index\.json: No such file"):
        use_bundle(tmp_path / "other")
    folder = str(write_kernel().kernel.folder)
    problems = tmp_path / "problems.json"
    problems.write_text(json.dumps([{"kernel": "weigh", "axes": {"n": 8}}]), encoding="utf-8")
    with pytest.raises(UserError, match="neither empty nor a bundle"):
        bundle(tmp_path / "other", [folder], problems=problems)
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["notes.txt"]


def test_of_a_folder_with_an_index_only_what_it_lists_goes(
    bundled: tuple[type[TunedModule], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The user's own library, and one that a false index names elsewhere, stay."""
    monkeypatch.undo()
    factory, folder = bundled
    index = json.loads((folder / INDEX).read_bytes())
    (build,) = index["builds"]
    older, elsewhere = folder / "weigh-older.so", tmp_path / "elsewhere.so"
    for file in (folder / "mine.so", folder / "notes.txt", elsewhere, older):
        file.write_bytes(b"mine")
    names = (older.name, "../elsewhere.so", "notes.txt", build["file"])
    index["builds"] = [{**build, "file": name} for name in names]
    (folder / INDEX).write_text(json.dumps(index), encoding="utf-8")
    bundle(folder, [str(factory.kernel.folder)], problems=tmp_path / "problems.json", architectures=["cpu"])
    assert {path.name for path in folder.iterdir()} == {INDEX, build["file"], "mine.so", "notes.txt"}
    assert elsewhere.exists()


@pytest.mark.parametrize("index", ["{}", "[1, 2]", '{"format": 1}', '{"name": "site", "pages": []}', "<html>"])
def test_a_folder_with_somebody_elses_index_is_refused(tmp_path: Path, write_kernel: WriteKernel, index: str) -> None:
    factory, other = write_kernel(), tmp_path / "other"
    problems = tmp_path / "problems.json"
    problems.write_text(json.dumps([{"kernel": "weigh", "axes": {"n": 8}}]), encoding="utf-8")
    other.mkdir()
    (other / INDEX).write_text(index, encoding="utf-8")
    (other / "mine.so").write_bytes(b"mine")
    with pytest.raises(UserError, match="neither empty nor a bundle"):
        bundle(other, [str(factory.kernel.folder)], problems=problems, architectures=["cpu"])
    assert (other / "mine.so").read_bytes() == b"mine" and (other / INDEX).read_text(encoding="utf-8") == index
    assert len(list(other.iterdir())) == 2
