"""References that some questions break, with files that are as right as they are."""

from tests.gate_files.entry import PROBLEM, forward, problem, right
from tests.gate_files.references import DRAWN, ROWS

_right = right("reference first")

_NORMED = """
from torch.nn.utils import parametrizations
"""


def _weight_norm(made: str) -> str:
    return problem(
        "return self.linear(x)",
        init=f"self.linear = {made}",
        made_of="features, outputs",
        inputs=DRAWN,
        constants=f"{ROWS}\noutputs = 24",
        before=_NORMED,
    )


_COMPLEX = problem(
    "return x @ self.weight",
    init="self.weight = nn.Parameter(torch.randn(features, outputs, dtype=torch.cfloat))",
    made_of="features, outputs",
    inputs="torch.randn(batch, features, dtype=torch.cfloat)",
    constants=f"{ROWS}\noutputs = 24",
)

_MODES = problem(
    """
    modes = torch.fft.rfft(x)[..., : self.weight.shape[0]] @ self.weight
    return torch.fft.irfft(modes, n=x.shape[-1])
    """,
    init="self.weight = nn.Parameter(torch.randn(kept, kept, dtype=torch.cfloat) / kept)",
    made_of="kept",
    inputs=DRAWN,
    constants=f"{ROWS}\nkept = 8",
)

_STATE = problem(
    "self.state = x if self.state is None else 0.5 * self.state + x\nreturn self.state * 2.0",
    init="self.state = None",
    inputs=DRAWN,
    constants=ROWS,
)

_CALLS = problem(
    "self.calls += 1\nreturn torch.tanh(x) * self.calls", init="self.calls = 0", inputs=DRAWN, constants=ROWS
)

_TWO = problem("y = torch.tanh(x)\nreturn y, torch.exp(y) * x", inputs=DRAWN, constants=ROWS)

_OVERFLOWS = problem("return torch.exp(x) / (1 + torch.exp(x))", inputs="torch.randn(batch, features)", constants=ROWS)

FILES = (
    _right(
        "a weight that torch's parametrisation normalises",
        _weight_norm("parametrizations.weight_norm(nn.Linear(features, outputs))"),
        forward(
            """
            held = self.linear.parametrizations.weight
            g, v = held.original0, held.original1
            return F.linear(x, v * (g / torch.linalg.vector_norm(v, dim=1, keepdim=True)), self.linear.bias)
            """
        ),
        PROBLEM,
    ),
    _right(
        "the same module for a normalised weight",
        _weight_norm("parametrizations.weight_norm(nn.Linear(features, outputs))"),
        forward("return self.linear(x)"),
    ),
    _right(
        "a weight that a hook of torch's normalises",
        _weight_norm("nn.utils.weight_norm(nn.Linear(features, outputs))"),
        forward("return self.linear(x)"),
    ),
    _right("complex weights", _COMPLEX, forward("return torch.einsum('ij,jk->ik', x, self.weight)")),
    _right(
        "complex weights between real numbers",
        _MODES,
        forward(
            """
            kept = torch.fft.rfft(x)[..., : self.weight.shape[0]]
            return torch.fft.irfft(torch.einsum('...j,jk->...k', kept, self.weight), n=x.shape[-1])
            """
        ),
    ),
    _right(
        "keeps a state as the reference does",
        _STATE,
        forward("self.state = x if self.state is None else x + self.state / 2\nreturn self.state + self.state"),
        PROBLEM,
    ),
    _right(
        "counts its calls as the reference does",
        _CALLS,
        forward("self.calls += 1\nreturn self.calls * x.tanh()"),
        PROBLEM,
    ),
    _right(
        "makes two outputs beside each other",
        _TWO,
        forward("return torch.tanh(x), torch.exp(torch.tanh(x)) * x"),
    ),
    _right("is finite where the reference overflows", _OVERFLOWS, forward("return torch.sigmoid(x)"), PROBLEM),
)
