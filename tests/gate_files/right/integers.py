"""Outputs and inputs that are no floating-point numbers."""

from tests.gate_files.entry import PROBLEM, forward, problem, right
from tests.gate_files.references import DRAWN, ROWS

_right = right("integers")


def _rows(body: str, inputs: str = DRAWN) -> str:
    return problem(body, inputs=inputs, constants=ROWS)


FILES = (
    _right("argmax", _rows("return torch.argmax(x, dim=1)"), forward("return x.max(dim=1).indices")),
    _right("argmin", _rows("return torch.argmin(x, dim=1)"), forward("return x.min(dim=1)[1]")),
    _right("a mask", _rows("return x > 0.5"), forward("return torch.gt(x, 0.5)")),
    _right("counts", _rows("return (x > 0.5).sum(dim=1)"), forward("return torch.count_nonzero(x > 0.5, dim=1)")),
    _right(
        "sums of integers",
        _rows("return x.sum(dim=1)", "torch.randint(-1000, 1000, (batch, features))"),
        forward("return torch.einsum('ij->i', x)"),
        PROBLEM,
    ),
    _right(
        "bits",
        _rows("return (x >> 3) & 7", "torch.randint(0, 1 << 20, (batch, features), dtype=torch.int32)"),
        forward("return torch.bitwise_and(torch.bitwise_right_shift(x, 3), 7)"),
    ),
    _right(
        "an image in eight bits",
        _rows(
            "return (x.float() * 1.5).clamp(0, 255).to(torch.uint8)",
            "torch.randint(0, 256, (batch, features), dtype=torch.uint8)",
        ),
        forward("return ((3 * x.int()) // 2).clamp(max=255).to(torch.uint8)"),
    ),
    _right(
        "one-hot rows",
        _rows("return F.one_hot(x, 16)", "torch.randint(0, 16, (batch, features))"),
        forward("return (x[..., None] == torch.arange(16, device=x.device)).long()"),
        flags=("--dense",),
    ),
)
