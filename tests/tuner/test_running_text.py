"""What of a Python file counts as what runs."""

import pytest

from tunebench.tuner.running_text import running_text

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
