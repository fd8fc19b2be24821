"""Models in half types, and in double precision."""

from tests.gate_files.entry import PROBLEM, forward, problem, right

_right = right("half types")

_CONSTANTS = "batch = 8\ndepth = 48\nfeatures = 36"


def _linear(dtype: str) -> str:
    return problem(
        "return self.linear(x)",
        init=f"self.linear = nn.Linear(depth, features, dtype=torch.{dtype})",
        made_of="depth, features",
        inputs=f"torch.rand(batch, depth).to(torch.{dtype})",
        constants=_CONSTANTS,
    )


_WIDE = "return (x.float() @ self.linear.weight.float().t() + self.linear.bias.float()).to(x.dtype)"
_PRODUCT = "return torch.addmm(self.linear.bias, x, self.linear.weight.t())"

FILES = (
    _right("bfloat16, summed in float32", _linear("bfloat16"), forward(_WIDE), PROBLEM),
    _right("float16, summed in float32", _linear("float16"), forward(_WIDE), PROBLEM),
    _right("bfloat16 by addmm", _linear("bfloat16"), forward(_PRODUCT)),
    _right("float64 by addmm", _linear("float64"), forward(_PRODUCT)),
    _right(
        "softmax of bfloat16",
        problem(
            "return torch.softmax(x, dim=-1)", inputs="torch.randn(batch, features).bfloat16()", constants=_CONSTANTS
        ),
        forward(
            """
            wide = x.to(torch.promote_types(x.dtype, torch.float32))
            e = torch.exp(wide - wide.amax(dim=-1, keepdim=True))
            return (e / e.sum(dim=-1, keepdim=True)).to(x.dtype)
            """
        ),
        PROBLEM,
    ),
)
