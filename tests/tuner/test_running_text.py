"""What of a file counts as what runs."""

import pytest

from tunebench.tuner.running_text import running_source, running_text

TEXT = '''"""What this is."""

import math
from tunebench.tuner.space import SearchSpace


class A:
    """Words."""

    name = "# not a comment"  # a comment

    def f(self) -> str:
        """Words."""
        return """a
# text
"""
'''


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("What this is.", "What that is."),
        ("# a comment", "# another one"),
        ("  # a comment", ""),
        ("    def f", "\n\n    def f"),
        ("tunebench.tuner.space", "tunebench.tuner.search.space"),
        ("import SearchSpace", "import SearchSpace, Tunable"),
    ],
)
def test_what_does_not_run_does_not_count(old: str, new: str) -> None:
    assert old in TEXT
    assert running_text(TEXT.replace(old, new)) == running_text(TEXT)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# not a comment", "# no comment"),
        ("# text", "# other text"),
        ("import math", "import cmath"),
        ("class A", "class B"),
        ('"""Words."""\n        return', "return"),
        ("import math", "import math; x = 1"),
    ],
)
def test_what_runs_counts(old: str, new: str) -> None:
    assert old in TEXT
    changed = running_text(TEXT.replace(old, new))
    assert (changed == running_text(TEXT)) == (new == "return")


def test_an_import_beside_something_else_is_kept() -> None:
    assert "y()" in running_text("from tunebench.tuner import x; y()\n")


def test_what_is_not_python_counts_as_it_is() -> None:
    assert running_text("class (:\n  # x") == "class (:\n  # x"


SOURCE = """// Scales.
#pragma once

/* Of one
   row. */
constexpr int limit = 3;  // rows
const char* where = "http://there";  // not code
const char quote = '"';  // neither
__device__ float half(float x) { return x / 2; }
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("// Scales.", "// It scales."),
        ("// Scales.\n", ""),
        ("one\n   row", "many\n\n   rows"),
        ("  // rows", ""),
        ("// neither", '// "neither'),
        ("#pragma once\n", "#pragma once\n\n\n"),
        ("= 3;", "= 3;   "),
    ],
)
def test_what_a_compiler_does_not_see_does_not_count(old: str, new: str) -> None:
    assert SOURCE.count(old) == 1
    assert running_source(SOURCE.replace(old, new)) == running_source(SOURCE)


@pytest.mark.parametrize(
    ("old", "new"),
    [("= 3", "= 4"), ("//there", "//here"), ("x / 2", "x /2"), ("'\"'", "'/'"), ("constexpr int", "constexprint")],
)
def test_what_a_compiler_sees_counts(old: str, new: str) -> None:
    assert SOURCE.count(old) == 1
    assert running_source(SOURCE.replace(old, new)) != running_source(SOURCE)


def test_raw_strings_may_hold_what_looks_like_a_comment() -> None:
    text = 'const char* text = R"(\n// words\n)";\n'
    assert running_source(text) == text
