"""The gallery's scripts run as they are, on a machine without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import ended
from warm_process import commands_in

ROOT = Path(__file__).parents[1]

SHOWN = {
    "autotune": "the best: BLOCK=",
    "load_inline": "torch.Size([10000])",
    "submission": "with the maximum subtracted it is right for the problem",
    "transformer": "made of the block Pointwise\n",
    "results": "tunable_block_size",
    "regression": "the pull request FAILS",
}


def test_every_script_is_run_and_listed() -> None:
    folder = ROOT / "docs" / "gallery"
    assert {script.stem for script in folder.glob("*.py")} == set(SHOWN)
    page, site = (path.read_text(encoding="utf-8") for path in (folder / "index.md", ROOT / "mkdocs.yml"))
    for name in SHOWN:
        assert f"({name}.py)" in page and f"gallery/{name}.md" in site


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWN)
def test_a_script_runs(name: str, tmp_path: Path, warm: Path) -> None:
    commands_in(tmp_path / "bin", warm)
    script = ROOT / "docs" / "gallery" / f"{name}.py"
    own = {
        "TUNEBENCH_DB": str(tmp_path / "results.db"),
        "TUNEBENCH_CONFIRM_SECONDS": "0.3",
        "PYTHONPATH": str(ROOT / "src"),
    }
    ran = ended(tmp_path / "bin" / "python", script, folder=tmp_path, **own)
    assert ran.returncode == 0, f"{ran.stdout[-2000:]}\n{ran.stderr[-2000:]}"
    assert SHOWN[name] in ran.stdout
