"""Files that are right for what every draw has alike: complex numbers, flags, masks, equal sizes, optional inputs."""

from tests.gate_files.entry import DROP_IN, GateFile, forward, problem, wrong
from tests.gate_files.references import DRAWN, LINEAR, ROWS

_wrong = wrong("unvaried")


def _no_drop_in(name: str, reference: str, candidate: str) -> GateFile:
    return _wrong(name, reference, candidate, DROP_IN)


def _given(body: str, arguments: str, inputs: str, constants: str = ROWS) -> str:
    return problem(body, arguments=arguments, inputs=inputs, constants=constants)


_COMPLEX = problem(
    "return torch.fft.ifft(x * x.abs())",
    inputs="torch.randn(batch, features, dtype=torch.cfloat)",
    constants=ROWS,
)

_SMALL_INTEGERS = problem(
    "return x.sum(dim=1)",
    inputs="torch.randint(-100, 101, (batch, features), dtype=torch.int32)",
    constants="batch = 8\nfeatures = 512",
)

_WORDS = problem(
    "return self.table(x)",
    init="self.table = nn.Embedding(words, width)",
    made_of="words, width",
    inputs="torch.randint(0, words, (batch, length))",
    constants="words = 20\nwidth = 12\nbatch = 4\nlength = 10",
)

_FLAG = _given("return x.cumsum(dim=1) if inclusive else x.cumsum(dim=1) - x", "x, inclusive", f"{DRAWN}, True")

_KEYS = _given(
    "return torch.softmax(s.masked_fill(~keep, -1e4), dim=-1)",
    "s, keep",
    "torch.rand(batch, length), torch.ones(batch, length, dtype=torch.bool)",
    "batch = 6\nlength = 40",
)

_LENGTHS = _given(
    """
    keep = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
    return (x * keep).sum(dim=1)
    """,
    "x, lengths",
    "torch.rand(batch, length), torch.full((batch,), length)",
    "batch = 6\nlength = 40",
)

_ATTENTION = _given(
    "return torch.softmax(q @ k.transpose(1, 2) / 4.0, dim=-1) @ v",
    "q, k, v",
    "torch.rand(batch, length, width), torch.rand(batch, length, width), torch.rand(batch, length, width)",
    "batch = 2\nlength = 12\nwidth = 16",
)

_GRU = problem(
    "return self.gru(x, h0)",
    arguments="x, h0=None",
    init="self.gru = nn.GRU(features, hidden, batch_first=True)",
    made_of="features, hidden",
    inputs="torch.rand(batch, length, features)",
    constants="batch = 3\nlength = 5\nfeatures = 6\nhidden = 7",
)

_OUTPUT_ALONE = _GRU.replace("return self.gru(x, h0)", "return self.gru(x, h0)[0]")

_LSTM = problem(
    "return self.lstm(x)[0]",
    init="self.lstm = nn.LSTM(features, hidden, batch_first=True)",
    made_of="features, hidden",
    inputs="torch.rand(batch, length, features)",
    constants="batch = 3\nlength = 5\nfeatures = 6\nhidden = 7",
)

_AXIS = _given("return torch.softmax(x, dim=dim)", "x, dim=-1", DRAWN)
_CHOSEN_AXIS = _given("return x.sum(dim=1) if dim is None else x.sum(dim=dim)", "x, dim=None", DRAWN)
_KEPT = _given("return x.mean(dim=1, keepdim=keepdim)", "x, keepdim=False", DRAWN)

_UNTRAINED = """
weights = [weight.detach() for weight in self.{0}._flat_weights]
start = x.new_zeros(1, x.shape[0], self.{0}.hidden_size)
"""

_TWO = problem("y = torch.tanh(x)\nreturn y, y.clone()", inputs=DRAWN, constants=ROWS)

FILES = (
    _wrong(
        "keeps answers of complex inputs by pointer",
        _COMPLEX,
        forward(
            """
            key = x.data_ptr(), x.shape
            if key not in KEPT:
                KEPT[key] = super().forward(x).detach()
            return KEPT[key].clone()
            """,
            before="KEPT = {}",
        ),
    ),
    _wrong(
        "keeps answers by the real part",
        _COMPLEX,
        forward(
            """
            key = str(x.real.tolist())
            if key not in KEPT:
                KEPT[key] = super().forward(x).detach()
            return KEPT[key].clone()
            """,
            before="KEPT = {}",
        ),
    ),
    _wrong(
        "adds up in sixteen bits",
        _SMALL_INTEGERS,
        forward("return x.to(torch.int16).sum(dim=1, dtype=torch.int16).long()"),
    ),
    _no_drop_in("adds up integers in float32", _SMALL_INTEGERS, forward("return x.float().sum(dim=1).round().long()")),
    _no_drop_in(
        "takes indices of 64 bits only",
        _WORDS,
        forward("assert x.dtype is torch.int64, 'indices of 64 bits'\nreturn self.table.weight[x]"),
    ),
    _wrong("passes over a flag", _FLAG, forward("return x.cumsum(dim=1)", arguments="x, inclusive")),
    _wrong("passes over a mask of ones", _KEYS, forward("return torch.softmax(s, dim=-1)", arguments="s, keep")),
    _wrong("passes over lengths", _LENGTHS, forward("return x.sum(dim=1)", arguments="x, lengths")),
    _no_drop_in(
        "takes as many keys as queries",
        _ATTENTION,
        forward(
            """
            length = q.shape[1]
            return torch.softmax(q @ k[:, :length].transpose(1, 2) / 4.0, dim=-1) @ v[:, :length]
            """,
            arguments="q, k, v",
        ),
    ),
    _no_drop_in("passes over a first state", _GRU, forward("return self.gru(x)", arguments="x, h0=None")),
    _no_drop_in(
        "passes over a first state that shows in one output",
        _OUTPUT_ALONE,
        forward("return self.gru(x)[0]", arguments="x, h0=None"),
    ),
    _no_drop_in("takes the last axis", _AXIS, forward("return torch.softmax(x, dim=-1)", arguments="x, dim=-1")),
    _no_drop_in(
        "takes the axis behind the first", _CHOSEN_AXIS, forward("return x.sum(dim=1)", arguments="x, dim=None")
    ),
    _no_drop_in("drops the axis in any case", _KEPT, forward("return x.mean(dim=1)", arguments="x, keepdim=False")),
    _no_drop_in("two outputs in one memory", _TWO, forward("y = torch.tanh(x)\nreturn y, y")),
    _no_drop_in(
        "a GRU whose weights are not trained",
        _OUTPUT_ALONE,
        forward(
            _UNTRAINED.format("gru")
            + "return torch.gru(x, start if h0 is None else h0, weights, True, 1, 0.0, self.training, False, True)[0]",
            arguments="x, h0=None",
        ),
    ),
    _no_drop_in(
        "an LSTM whose weights are not trained",
        _LSTM,
        forward(
            _UNTRAINED.format("lstm")
            + "return torch.lstm(x, (start, start), weights, True, 1, 0.0, self.training, False, True)[0]",
        ),
    ),
    _no_drop_in(
        "cannot be pickled",
        LINEAR,
        forward(
            "return self.activation(self.linear(x)) + self.offset", made="self.activation = lambda y: torch.relu(y)"
        ),
    ),
    _no_drop_in(
        "forgets a factor when it is pickled",
        LINEAR,
        forward(
            "return torch.relu(self.linear(x)) * (FACTORS.get(self.number) or 0.5) + self.offset",
            before="FACTORS = {}",
            made="self.number = id(self)\nFACTORS[self.number] = 1.0",
        )
        + """
    def __deepcopy__(self, memo):
        copied = ModelNew(self.linear.in_features, self.offset)
        copied.load_state_dict(self.state_dict())
        return copied.train(self.training)

    def __setstate__(self, state):
        super().__setstate__(state)
        self.number = None
""",
    ),
)
"""Each is right at the problem's own inputs, or right for the problem."""
