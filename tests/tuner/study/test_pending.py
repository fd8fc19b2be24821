"""How many configurations are pending: as many as devices and compilers need, by what evaluations say they waited."""

from tunebench.tuner.study.pending import FEW, MOST, Pending

WAITED = {"wait": 0.5, "compile": 1.4, "check": 0.1, "measure": 0.1}
BUSY = {"wait": 0.01, "compile": 1.4, "check": 0.1, "measure": 0.1}


def after(evaluations: int, slots: int, seconds: dict[str, float], builds: int = 16) -> int:
    pending = Pending()
    for _ in range(evaluations):
        pending.learn(slots, seconds)
    return pending.most(slots, builds)


def test_there_are_few_and_no_more_than_compilers_and_devices_can_have() -> None:
    assert Pending().most(1, 16) == Pending().most(4, 16) == FEW
    assert (Pending().most(1, 2), Pending().most(2, 1)) == (3, 4)
    assert Pending().most(8, 16) == 16


def test_several_devices_that_wait_for_compilers_have_more_up_to_a_bound() -> None:
    assert after(FEW - 1, 2, WAITED) == FEW
    assert after(FEW, 2, WAITED) == FEW + 2
    assert after(1000, 2, WAITED) == MOST
    assert after(1000, 2, WAITED, builds=8) == 10


def test_devices_that_do_not_wait_have_no_more() -> None:
    assert after(1000, 2, BUSY) == FEW


def test_one_device_has_the_same_number_at_any_speed() -> None:
    assert after(1000, 1, WAITED) == FEW
