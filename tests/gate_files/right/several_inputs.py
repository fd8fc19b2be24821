"""Several inputs, and inputs that are no tensors."""

from tests.gate_files.entry import forward, problem, right
from tests.gate_files.references import DRAWN, ROWS

_right = right("several inputs")


def _given(body: str, arguments: str, inputs: str) -> str:
    return problem(body, arguments=arguments, inputs=inputs, constants=ROWS)


FILES = (
    _right(
        "three tensors",
        _given("return a * b + c", "a, b, c", f"{DRAWN}, {DRAWN}, {DRAWN}"),
        forward("return torch.addcmul(c, a, b)", arguments="a, b, c"),
    ),
    _right(
        "a number",
        _given("return x * scale", "x, scale", f"{DRAWN}, 2.5"),
        forward("return torch.mul(x, scale)", arguments="x, scale"),
    ),
    _right(
        "a whole number",
        _given("return x.roll(steps, dims=1)", "x, steps", f"{DRAWN}, 3"),
        forward("return torch.roll(x, shifts=(steps,), dims=(1,))", arguments="x, steps"),
    ),
    _right(
        "a mask between two",
        _given("return torch.where(mask, a, b)", "mask, a, b", f"{DRAWN} > 0.5, {DRAWN}, {DRAWN}"),
        forward("return a.where(mask, b)", arguments="mask, a, b"),
    ),
    _right(
        "nothing for an optional tensor",
        _given("return x * 2 if bias is None else x * 2 + bias", "x, bias=None", f"{DRAWN}, None"),
        forward("out = x + x\nreturn out if bias is None else out + bias", arguments="x, bias=None"),
    ),
    _right(
        "a text",
        _given("return x.sum(dim=1) if kind == 'sum' else x.mean(dim=1)", "x, kind", f"{DRAWN}, 'mean'"),
        forward("return getattr(x, kind)(dim=-1)", arguments="x, kind"),
    ),
    _right(
        "a list of tensors",
        _given("return torch.cat(parts, dim=1)", "parts", f"[{DRAWN}, {DRAWN}, {DRAWN}]"),
        forward("return torch.hstack(parts)", arguments="parts"),
    ),
    _right(
        "a shape that broadcasts",
        _given("return x * scale + shift", "x, scale, shift", f"{DRAWN}, torch.rand(features), torch.rand(batch, 1)"),
        forward("return torch.add(torch.mul(x, scale), shift)", arguments="x, scale, shift"),
    ),
)
