"""Finding kernels, and knowing their version without importing them."""

import shutil
from pathlib import Path

import pytest

from tunebench.kernels.runtime import registry
from tunebench.kernels.runtime.registry import digest_of, kernel_names, load_model


@pytest.mark.parametrize("name", kernel_names())
def test_a_digest_is_known_again_without_the_kernel(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TUNEBENCH_CACHE", str(tmp_path))
    assert digest_of(name) == load_model(name).kernel.digest
    monkeypatch.setattr(registry, "load_model", lambda _: pytest.fail("the kernel was imported"))
    assert digest_of(name) == load_model(name).kernel.digest


def test_a_digest_of_other_files_is_not_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TUNEBENCH_CACHE", str(tmp_path / "cache"))
    package = tmp_path / "package"
    root = registry._SHIPPED.parent
    for part in ("kernels/scalar_mul", "kernels/blocks", "kernels/shared", "tuner"):
        shutil.copytree(root / part, package / part)
    monkeypatch.setattr(registry, "_SHIPPED", package / "kernels")
    before = registry._digest_file("scalar_mul")
    for file in ("scalar_mul/model.py", "blocks/pointwise.py", "shared/include/vector.cuh", "shared/products.py"):
        path = package / "kernels" / file
        text = path.read_text(encoding="utf-8")
        path.write_text(text + "\n", encoding="utf-8")
        assert registry._digest_file("scalar_mul") != before
        path.write_text(text, encoding="utf-8")
    assert registry._digest_file("scalar_mul") == before


def test_a_cache_that_cannot_be_written_costs_time_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("TUNEBENCH_CACHE", str(tmp_path / "file"))
    assert digest_of("scalar_mul") == load_model("scalar_mul").kernel.digest
