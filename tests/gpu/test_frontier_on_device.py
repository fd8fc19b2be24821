"""`tunebench frontier` on a GPU: TF32 and the products of its accuracy are there, and told with their errors."""

import pytest

import tunebench

pytestmark = pytest.mark.gpu


def test_every_class_has_a_row() -> None:
    found = tunebench.frontier("256x1024x512", device="cuda", trials=1, seconds=240.0)
    timed = {one.product: one for one in found.points if one.measurement and one.wrong}
    strict, tf32 = timed["torch matmul=ieee"], timed["torch matmul=tf32"]
    assert strict.wrong and tf32.wrong and strict.wrong.rms < 1e-6 and tf32.wrong.rms > 1e-4
    rounded = [one for one in timed.values() if one.configuration and one.accuracy == "tf32"]
    assert rounded and all(one.wrong and one.wrong.rms < 1.1 * tf32.wrong.rms for one in rounded if not one.message)
    assert found.best and all(one.message == "" for one in found.best)
    emulated = next(one for one in found.points if one.product.startswith("cuBLAS"))
    assert emulated.message or (emulated.wrong and emulated.wrong.rms < 1e-6)


def test_half_types_have_their_products() -> None:
    found = tunebench.frontier("256x1024x512", device="cuda", dtype="bfloat16", trials=1, seconds=60.0)
    assert {"product=fp32", "torch reductions=reduced"} <= {one.product for one in found.points if one.measurement}
