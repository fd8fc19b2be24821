"""Duels, with injected times: who wins, who is not asked again, and what costs a contender the duel."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tunebench.kernels.runtime import duel as duels
from tunebench.kernels.runtime.duel import Answer, Score, duel, winner_of
from tunebench.tuner.errors import LaunchError

HERE = torch.device("cpu")
REFERENCE_SECONDS = 0.01


class Timed:
    """An answer that is said to take so long."""

    def __init__(self, seconds: float, value: float = 1.0, dtype: torch.dtype = torch.float32) -> None:
        self.seconds = seconds
        self.timed = 0
        self._answer = torch.full((3, 4), value, dtype=dtype)

    def __call__(self) -> torch.Tensor:
        return self._answer


@pytest.fixture(autouse=True)
def injected_times(monkeypatch: pytest.MonkeyPatch) -> None:
    def seconds(answer: Answer, calls: int, _: torch.device) -> float:
        assert isinstance(answer, Timed)
        answer.timed += 1
        answer()
        return answer.seconds * calls

    monkeypatch.setattr(duels, "_seconds", seconds)


def held(*contenders: Callable[[], torch.Tensor]) -> tuple[int | None, list[Score]]:
    scores = duel(contenders, Timed(REFERENCE_SECONDS), HERE)
    return winner_of(scores), scores


@pytest.mark.parametrize(
    ("seconds", "winner"),
    [
        ((0.005,), 0),
        ((0.02,), None),
        ((0.01,), None),
        ((0.0099,), None),  # noise could make it so
        ((0.008, 0.004, 0.005), 1),
        ((0.02, 0.03, 0.009), 2),
    ],
)
def test_the_fastest_wins_and_an_equal_one_is_no_reason_to_leave_the_reference(
    seconds: tuple[float, ...], winner: int | None
) -> None:
    found, scores = held(*map(Timed, seconds))
    assert found == winner
    assert [score.ratio for score in scores] == pytest.approx([REFERENCE_SECONDS / one for one in seconds])


def test_who_cannot_win_takes_no_more_time() -> None:
    slow, good, fast = Timed(0.02), Timed(0.0045), Timed(0.004)
    assert held(slow, good, fast)[0] == 2
    assert slow.timed == 1
    assert good.timed == fast.timed >= 3


@pytest.mark.parametrize("value", [1.5, float("nan"), float("inf"), 0.0])
def test_a_wrong_answer_loses_however_fast_it_is(value: float) -> None:
    winner, (score, other) = held(Timed(1e-6, value), Timed(0.005))
    assert winner == 1
    assert "off the reference's" in str(score)
    assert str(other) == "2.00×"


def test_an_answer_of_another_type_loses() -> None:
    assert held(Timed(1e-6, dtype=torch.float64))[0] is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_may_differ_by_what_they_round(dtype: torch.dtype) -> None:
    large = Timed(REFERENCE_SECONDS, 3e4, dtype)  # whose norm a half cannot hold
    near = Timed(0.005, 3e4 * (1 + torch.finfo(dtype).eps), dtype)
    assert winner_of(duel([near], large, HERE)) == 0


class Failing(Timed):
    """Raises in its nth call."""

    def __init__(self, error: Exception, call: int) -> None:
        super().__init__(0.001)
        self._error, self._left = error, call

    def __call__(self) -> torch.Tensor:
        self._left -= 1
        if self._left < 0:
            raise self._error
        return super().__call__()


@pytest.mark.parametrize("call", [0, 1, 2])
@pytest.mark.parametrize(
    ("error", "said"), [(torch.OutOfMemoryError("CUDA"), "not enough memory"), (LaunchError("refused"), "refused")]
)
def test_who_fails_has_lost_and_the_others_go_on(error: Exception, said: str, call: int) -> None:
    winner, (score, _) = held(Failing(error, call), Timed(0.005))
    assert winner == 1
    assert said in str(score)


@pytest.mark.parametrize("call", [0, 1, 3])
def test_where_the_reference_has_no_room_beside_a_kernel_it_serves(call: int) -> None:
    scores = duel([Timed(0.001)], Failing(torch.OutOfMemoryError("CUDA"), call), HERE)
    assert winner_of(scores) is None
    assert "not enough memory" in str(scores[0])


def test_any_other_error_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        held(Failing(ZeroDivisionError(), 1))
