"""Quick builds for tests that ask what a kernel computes."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def without_optimisation(quick_builds: None) -> None:
    """All tests of new kernels have them; `../loops/test_programs.py` builds passes as users do."""
