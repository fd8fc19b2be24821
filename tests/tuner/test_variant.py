"""What a kernel's source is made of: an edit of a header concerns the kernels that include it, and no others."""

from pathlib import Path

import pytest

from tunebench.tuner.configuration import Configuration
from tunebench.tuner.errors import KernelFolderError
from tunebench.tuner.space import SearchSpace, Tunable
from tunebench.tuner.variant import KernelSource, prologue

HEADERS = {
    "near.cuh": '#pragma once\n  #  include "deep.cuh"\n',
    "deep.cuh": '#include "near.cuh"\n#include <cstdint>\n#include "nowhere.cuh"\n',
    "other.cuh": "#pragma once\n",
}


def read(folder: Path, text: str) -> KernelSource:
    include = folder / "include"
    include.mkdir(exist_ok=True)
    for name, header in HEADERS.items():
        (include / name).write_text(header, encoding="utf-8")
    (folder / "kernel.cu").write_text(text, encoding="utf-8")
    return KernelSource.read(folder / "kernel.cu", include)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('#include "near.cuh"\n', {"near.cuh", "deep.cuh"}),
        ('#if 0\n#include "other.cuh"\n#endif\n', {"other.cuh"}),
        ('// #include "other.cuh"\n', set()),
        ("#include <near.cuh>\n", set()),
        ('#define HEADER "other.cuh"\n#include HEADER\n', set(HEADERS)),
    ],
)
def test_headers_that_are_included(tmp_path: Path, text: str, names: set[str]) -> None:
    assert set(read(tmp_path, text).headers) == names


def test_only_included_headers_make_another_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = '#include "near.cuh"\n'
    before = read(tmp_path, text).digest
    monkeypatch.setitem(HEADERS, "other.cuh", "int edited;\n")
    assert read(tmp_path, text).digest == before
    monkeypatch.setitem(HEADERS, "deep.cuh", HEADERS["deep.cuh"] + "// edited\n")
    assert read(tmp_path, text).digest == before
    monkeypatch.setitem(HEADERS, "deep.cuh", "int edited;\n")
    assert read(tmp_path, text).digest != before


def test_the_header_beside_the_source_comes_first(tmp_path: Path) -> None:
    (tmp_path / "other.cuh").write_text("// beside\n", encoding="utf-8")
    assert read(tmp_path, '#include "other.cuh"\n').headers == {"other.cuh": "// beside\n"}


def test_a_source_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    (tmp_path / "other.cuh").write_bytes("// 3 µs\n".encode("latin-1"))
    with pytest.raises(KernelFolderError, match=r"other\.cuh: byte 5 is not UTF-8; save it as UTF-8"):
        read(tmp_path, "")


def test_an_option_of_the_problem_is_a_constant_like_a_tunable() -> None:
    space = SearchSpace((Tunable("hint", ("normal", "streaming")),))
    configuration = Configuration({"hint": "streaming"})
    text = prologue(space, configuration, "float32", {"rows": 3}, {"mode": ("train", ("eval", "train"))})
    assert "constexpr long long rows = 3;\n" in text
    mode = "enum class mode_option_t { eval, train };\nconstexpr mode_option_t mode_option = mode_option_t::train;"
    assert mode in text
    assert "enum class hint_t { normal, streaming };\nconstexpr hint_t hint = hint_t::streaming;" in text
