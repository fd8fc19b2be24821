"""Which functions of a value are affine, and their multiplier and offset."""

import pytest

from tunebench.kernels.blocks.affine import affine_form

VALUES = {"scale": 1.5, "shift": -0.25, "value": 0.0}


def as_number(text: str, value: float = 0.0) -> float:
    """What C++ would make of it, where no division is one of integers."""
    result: float = eval(text, {"accumulator_t": float, "exp": pow, **VALUES, "value": value})
    return result


@pytest.mark.parametrize(
    "text",
    [
        "value",
        "value * scale",
        "scale * value + shift",
        "(value - shift) / 2.0",
        "3 * value / 2",
        "shift - value",
        "-(value + shift) * scale",
        "value * scale + value",
        "value * exp(scale, 2)",
    ],
)
def test_an_affine_function_is_its_multiplier_times_value_plus_its_offset(text: str) -> None:
    form = affine_form(text, {"scale", "shift"})
    assert form is not None
    for value in (-2.0, 0.0, 0.5):
        assert as_number(form[0]) * value + as_number(form[1]) == pytest.approx(as_number(text, value))


@pytest.mark.parametrize(
    "text",
    [
        "value * value",
        "scale / value",
        "exp(value)",
        "value + gate",
        "value > 0 ? value : shift",
        "return value * scale;",
        "value * 2.0f",
        "auto x = value; return x;",
    ],
)
def test_any_other_is_none(text: str) -> None:
    assert affine_form(text, {"scale", "shift"}) is None


def test_a_division_of_integers_stays_one() -> None:
    assert affine_form("value * (1 / 2)", set()) == ("accumulator_t(1 / 2)", "accumulator_t(0)")
