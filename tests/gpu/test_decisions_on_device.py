"""What serves a problem that nobody measured, decided on a GPU: duels, saved choices, tuning on first sight."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tunebench
from tunebench.kernels.runtime.duel import duel, winner_of
from tunebench.kernels.runtime.policy import Policy, use_policy
from tunebench.kernels.runtime.selection import Tier

pytestmark = pytest.mark.gpu

HERE = torch.device("cuda", 0)


def test_a_duel_has_the_default_in_it_and_its_winner_is_right_and_saved(tmp_path: Path) -> None:
    model = tunebench.load("gemm_scale_bn")(1024, 768, (768,)).to(HERE).eval()
    x = torch.rand(300, 1024, device=HERE)
    expected = model.reference_forward(x)
    with torch.no_grad(), use_policy(Policy.BEST):
        torch.testing.assert_close(model(x), expected, rtol=1e-3, atol=1e-3)
        ((_, choice),) = model.choices.items()
        assert "a duel on a call's own inputs" in choice.reason
        file = tmp_path / "choices.json"
        assert tunebench.save_choices(file, model) == tunebench.load_choices(file) == 1
        again = tunebench.load("gemm_scale_bn")(1024, 768, (768,)).to(HERE).eval()
        again(x)
    ((_, loaded),) = again.choices.items()
    assert loaded.configuration == choice.configuration
    assert loaded.reason.startswith(f"loaded from {file}")


def test_a_contender_without_room_beside_the_reference_has_lost() -> None:
    free, _ = torch.cuda.mem_get_info(HERE)
    x = torch.rand(256, device=HERE)

    def greedy() -> torch.Tensor:
        torch.empty(2 * free, dtype=torch.uint8, device=HERE)
        return x * 2

    scores = duel([greedy], lambda: x * 2, HERE)
    assert winner_of(scores) is None
    assert "not enough memory" in str(scores[0])


def test_a_problem_is_tuned_on_first_sight() -> None:
    model = tunebench.load("scalar_mul")()
    x = torch.rand(1000, 333, device=HERE)
    with torch.no_grad(), use_policy("tune", seconds=200):  # most of it for the device, which other tests work on
        torch.testing.assert_close(model(x, 2.5), x * 2.5)
    ((_, choice),) = model.choices.items()
    assert choice.measured and choice.tier is Tier.EXACT
