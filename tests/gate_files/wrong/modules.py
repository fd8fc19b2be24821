"""What a module is beside its values: state, settings, modes, hooks, signature, copies, moves."""

from tests.gate_files.entry import DROP_IN, GateFile, forward, problem, wrong
from tests.gate_files.references import BATCH_NORM, CONV, DRAWN, DROPOUT, LAYER_NORM, LEAKY, LINEAR, ROWS, SCALE

_wrong = wrong("modules")


def _no_drop_in(name: str, reference: str, candidate: str) -> GateFile:
    return _wrong(name, reference, candidate, DROP_IN)


_RELU = "return torch.relu(self.linear(x)) + self.offset"

_OPTIONAL = problem(
    "out = x * self.weight\nreturn out if scale is None else out * scale",
    arguments="x, scale=None",
    init="self.weight = nn.Parameter(torch.rand(features))",
    made_of="features",
    inputs=DRAWN,
    constants=ROWS,
)

_TWO_NORMS = problem(
    "return self.second(torch.relu(self.first(x)))",
    init="self.first, self.second = nn.LayerNorm(features), nn.LayerNorm(features)",
    made_of="features",
    inputs=DRAWN,
    constants=ROWS,
)

_GIVEN_BACK = """
class ModelNew(nn.Module):
    def __init__(self, features, offset):
        super().__init__()
        {}
        self.offset = offset

    def forward(self, x):
        return torch.relu(F.linear(x, {}, {})) + self.offset
"""

_BATCH_NORM = """
norm = self.norm
if not self.training or norm.running_mean is None:
    return super().forward(x)
variance, mean = torch.var_mean(x, dim=0, unbiased=False)
with torch.no_grad():
    {}
return (x - mean) * torch.rsqrt(variance + norm.eps) * norm.weight + norm.bias
"""
_COUNT = "norm.num_batches_tracked += 1\n"
_MEAN = "norm.running_mean.lerp_(mean.detach(), norm.momentum)\n"
_VARIANCE = "norm.running_var.lerp_(variance.detach() * len(x) / (len(x) - 1), norm.momentum)\n"


def _statistics(*lines: str) -> str:
    return forward(_BATCH_NORM.format("    ".join(lines)))


FILES = (
    _wrong(
        "another name for its parameters",
        LINEAR,
        _GIVEN_BACK.format("self.product = nn.Linear(features, features)", "self.product.weight", "self.product.bias"),
    ),
    _wrong("draws other weights", LINEAR, forward(_RELU, made="nn.init.xavier_uniform_(self.linear.weight)")),
    _wrong(
        "takes a number from the generator first",
        LINEAR,
        _GIVEN_BACK.format(
            "torch.rand(1); self.linear = nn.Linear(features, features)", "self.linear.weight", "self.linear.bias"
        ),
    ),
    _wrong(
        "weights that are no parameters",
        LINEAR,
        forward(
            "return torch.relu(F.linear(x, self.weight, self.bias)) + self.offset",
            made="""
            self.weight, self.bias = self.linear.weight.detach(), self.linear.bias.detach()
            del self.linear
            """,
        ),
    ),
    _wrong("one more parameter", LINEAR, forward(_RELU, made="self.scale = nn.Parameter(torch.ones(1))")),
    _wrong("leaves the running statistics alone", BATCH_NORM, _statistics("pass")),
    _wrong(
        "running variance of the whole batch",
        BATCH_NORM,
        _statistics(_COUNT, _MEAN, "norm.running_var.lerp_(variance.detach(), norm.momentum)\n"),
    ),
    _wrong("does not count its batches", BATCH_NORM, _statistics(_MEAN, _VARIANCE)),
    _no_drop_in(
        "statistics with the default momentum",
        BATCH_NORM,
        _statistics(_COUNT, _MEAN, _VARIANCE).replace("norm.momentum", "0.1"),
    ),
    _no_drop_in("always in train mode", BATCH_NORM, forward("self.norm.train()\nreturn self.norm(x)")),
    _no_drop_in(
        "train() that returns nothing",
        LINEAR,
        forward("return super().forward(x)") + "    def train(self, mode=True):\n        super().train(mode)\n",
    ),
    _no_drop_in(
        "another answer in eval mode",
        LINEAR,
        forward("out = super().forward(x)\nreturn out if self.training else out + 0.01"),
    ),
    _no_drop_in("drops out in eval mode too", DROPOUT, forward("return F.dropout(self.linear(x), 0.25, True)")),
    _wrong("does not drop out", DROPOUT, forward("return self.linear(x)")),
    _wrong("drops out by another rate", DROPOUT, forward("return F.dropout(self.linear(x), 0.3, self.training)")),
    _no_drop_in(
        "knows one epsilon",
        LAYER_NORM,
        forward("return F.layer_norm(x, x.shape[-1:], self.norm.weight, self.norm.bias, 1e-5)"),
    ),
    _no_drop_in(
        "one epsilon for two norms",
        _TWO_NORMS,
        forward(
            """
            one, other = self.first, self.second
            middle = torch.relu(F.layer_norm(x, x.shape[-1:], one.weight, one.bias, one.eps))
            return F.layer_norm(middle, x.shape[-1:], other.weight, other.bias, one.eps)
            """
        ),
    ),
    _no_drop_in("knows one slope", LEAKY, forward("return F.leaky_relu(self.linear(x), 0.2)")),
    _no_drop_in(
        "reads its slope when it is made",
        LEAKY,
        forward("return F.leaky_relu(self.linear(x), self.slope)", made="self.slope = self.activation.negative_slope"),
    ),
    _no_drop_in(
        "knows one stride and one padding",
        CONV,
        forward("return torch.relu(F.conv2d(x, self.conv.weight, self.conv.bias, 1, 1))"),
    ),
    _no_drop_in(
        "is called without its hooks",
        LINEAR,
        forward(_RELU) + "\n    def __call__(self, x):\n        return self.forward(x)\n",
    ),
    _no_drop_in("another name for its input", LINEAR, forward(_RELU.replace("(x)", "(rows)"), arguments="rows")),
    _no_drop_in("takes its input by position only", LINEAR, forward(_RELU, arguments="x, /")),
    _no_drop_in("without the reference's optional input", _OPTIONAL, forward("return x * self.weight")),
    _no_drop_in(
        "keeps what inference mode has made",
        LINEAR,
        forward(
            """
            if self.ones is None or self.ones.dtype != x.dtype:
                self.ones = torch.ones(x.shape[-1], dtype=x.dtype, device=x.device)
            return torch.relu(F.linear(x * self.ones, self.linear.weight, self.linear.bias)) + self.offset
            """,
            made="self.ones = None",
        ),
    ),
    _wrong("keeps every input for ever", SCALE, forward("KEPT.append(x.clone())\nreturn x * 2.5", before="KEPT = []")),
    _no_drop_in("cannot be copied", LINEAR, forward(_RELU, made="self.lock = threading.Lock()")),
    _no_drop_in("stays in float32", LINEAR, forward(_RELU + " * self.one", made="self.one = torch.ones(1)")),
    _no_drop_in(
        "fails under torch.compile",
        LINEAR,
        forward("if torch.compiler.is_compiling():\n    return torch.relu(self.linear(x))\n" + _RELU),
    ),
    _no_drop_in(
        "does not know autocast", LINEAR, forward("with torch.autocast(x.device.type, enabled=False):\n    " + _RELU)
    ),
)
