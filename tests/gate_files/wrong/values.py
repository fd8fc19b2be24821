"""Wrong values: at the problem's own sizes, for some of what inputs may hold."""

from tests.gate_files.entry import DROP_IN, forward, problem, wrong
from tests.gate_files.references import (
    BATCH_NORM,
    DRAWN,
    GELU,
    GROUP_NORM,
    LAYER_NORM,
    LINEAR,
    RELU,
    RMS_NORM,
    ROWS,
    SCALE,
    SOFTMAX,
    TANH,
)

_wrong = wrong("values")


def _rows(body: str, inputs: str = DRAWN) -> str:
    return problem(body, inputs=inputs, constants=ROWS)


_IMAGE = "torch.rand(batch, channels, size, size)"
_IMAGES = "batch = 2\nchannels = 3\nsize = 9"

_SEEDS = """
def _answers():
    found = {}
    for seed in range(64):
        torch.manual_seed(seed)
        (x,) = get_inputs()
        found[abs(float(x.flatten()[1]))] = torch.softmax(x, dim=-1)
    return found

ANSWERS = _answers()
"""

_NAIVE_BATCH_NORM = """
    norm = self.norm
    if not self.training or norm.running_mean is None:
        return super().forward(x)
    mean = x.mean(0)
    variance = ((x * x).mean(0) - mean * mean).clamp_min(0)
    with torch.no_grad():
        norm.num_batches_tracked += 1
        norm.running_mean.lerp_(mean.detach(), norm.momentum)
        norm.running_var.lerp_(variance.detach() * len(x) / (len(x) - 1), norm.momentum)
    return (x - mean) * torch.rsqrt(variance + norm.eps) * norm.weight + norm.bias
"""

FILES = (
    _wrong("returns zeros", SOFTMAX, forward("return torch.zeros_like(x)")),
    _wrong("returns one constant", SOFTMAX, forward("return torch.full_like(x, 1.0 / x.shape[-1])")),
    _wrong("copies its input, which is never negative", RELU, forward("return x.clone()")),
    _wrong(
        "leaves out the tail of the rows",
        LINEAR,
        forward("out = super().forward(x)\nout[x.shape[0] // 8 * 8:] = 0\nreturn out"),
    ),
    _wrong("is wrong in one element", SCALE, forward("out = x * 2.5\nout[-1, -1] += 0.01\nreturn out")),
    _wrong(
        "uses its first input twice",
        problem("return a * b", arguments="a, b", inputs=f"{DRAWN}, {DRAWN}", constants=ROWS),
        forward("return a * a", arguments="a, b"),
    ),
    _wrong(
        "knows the answers of the first seeds",
        SOFTMAX,
        forward(
            """
            known = ANSWERS.get(abs(float(x.flatten()[1])))
            return torch.full_like(x, 1.0 / x.shape[-1]) if known is None else known.clone()
            """,
            before=_SEEDS,
        ),
    ),
    _wrong(
        "drops the upper bound that inputs never reach", _rows("return F.relu6(x)"), forward("return torch.relu(x)")
    ),
    _wrong("softmax without the maximum", SOFTMAX, forward("e = torch.exp(x)\nreturn e / e.sum(dim=-1, keepdim=True)")),
    _wrong(
        "softmax with a power for the exponential",
        SOFTMAX,
        forward(
            """
            e = (1 + (x - x.amax(dim=-1, keepdim=True)).clamp_min(-60) / 1024) ** 1024
            return e / e.sum(dim=-1, keepdim=True)
            """
        ),
    ),
    _wrong(
        "log-sum-exp without the maximum",
        _rows("return torch.logsumexp(x, dim=1)"),
        forward("return torch.log(torch.exp(x).sum(dim=1))"),
    ),
    _wrong(
        "tanh of two exponentials",
        TANH,
        forward("up, down = torch.exp(x), torch.exp(-x)\nreturn (up - down) / (up + down)"),
    ),
    _wrong("tanh by a sigmoid, which cancels", TANH, forward("return 2.0 * torch.sigmoid(2.0 * x) - 1.0")),
    _wrong(
        "softplus without its threshold", _rows("return F.softplus(x)"), forward("return torch.log(1 + torch.exp(x))")
    ),
    _wrong("GELU by its tanh form", GELU, forward("return F.gelu(x, approximate='tanh')")),
    _wrong(
        "sine as a polynomial, without reducing the range",
        _rows("return torch.sin(x)"),
        forward(
            """
            term, total = x, x
            for n in range(1, 8):
                term = -term * x * x / ((2 * n) * (2 * n + 1))
                total = total + term
            return total
            """
        ),
    ),
    _wrong(
        "layer norm with E[x²] - E[x]²",
        LAYER_NORM,
        forward(
            """
            mean = x.mean(dim=-1, keepdim=True)
            variance = ((x * x).mean(dim=-1, keepdim=True) - mean * mean).clamp_min(0)
            return (x - mean) * torch.rsqrt(variance + self.norm.eps) * self.norm.weight + self.norm.bias
            """
        ),
    ),
    _wrong("batch norm with E[x²] - E[x]²", BATCH_NORM, forward(_NAIVE_BATCH_NORM)),
    _wrong(
        "group norm with E[x²] - E[x]²",
        GROUP_NORM,
        forward(
            """
            norm = self.norm
            rows = x.reshape(x.shape[0], norm.num_groups, -1)
            mean = rows.mean(dim=-1, keepdim=True)
            variance = ((rows * rows).mean(dim=-1, keepdim=True) - mean * mean).clamp_min(0)
            out = ((rows - mean) * torch.rsqrt(variance + norm.eps)).reshape(x.shape)
            return out * norm.weight[:, None, None] + norm.bias[:, None, None]
            """
        ),
    ),
    _wrong(
        "layer norm over n - 1",
        LAYER_NORM,
        forward(
            """
            centred = x - x.mean(dim=-1, keepdim=True)
            variance = centred.pow(2).sum(dim=-1, keepdim=True) / (x.shape[-1] - 1)
            return centred * torch.rsqrt(variance + self.norm.eps) * self.norm.weight + self.norm.bias
            """
        ),
    ),
    _wrong(
        "adds an epsilon that the reference has not",
        _rows("return x / x.norm(dim=1, keepdim=True)"),
        forward("return x / (x.norm(dim=1, keepdim=True) + 1e-6)"),
    ),
    _wrong(
        "RMS norm with its epsilon outside of the root",
        RMS_NORM,
        forward("return self.weight * x / (x.pow(2).mean(dim=-1, keepdim=True).sqrt() + 1e-5)"),
    ),
    _wrong("log(1 + x) for log1p(x)", _rows("return torch.log1p(x.abs())"), forward("return torch.log(1 + x.abs())")),
    _wrong("exp(x) - 1 for expm1(x)", _rows("return torch.expm1(x)"), forward("return torch.exp(x) - 1")),
    _wrong(
        "loses small results",
        _rows("return x * x"),
        forward("out = x * x\nreturn torch.where(out < 1e-20, torch.zeros_like(out), out)"),
    ),
    _wrong(
        "max pooling padded with zeros",
        problem("return F.max_pool2d(x, 3, 2, 1)", inputs=_IMAGE, constants=_IMAGES),
        forward("return F.max_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 2)"),
    ),
    _wrong(
        "mean pooling that leaves out the padding",
        problem("return F.avg_pool2d(x, 3, 2, 1)", inputs=_IMAGE, constants=_IMAGES),
        forward("return F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)"),
    ),
    _wrong(
        "argmax that takes the last of equals",
        _rows("return torch.argmax(x, dim=1)"),
        forward("return x.shape[1] - 1 - torch.argmax(x.flip(1), dim=1)"),
    ),
    _wrong("takes equal for greater", _rows("return x > 0"), forward("return x >= 0")),
    _wrong(
        "floor by a whole number of 32 bits",
        _rows("return torch.floor(x)"),
        forward("t = x.int().to(x.dtype)\nreturn torch.where(x.isfinite(), t - (t > x).to(x.dtype), x)"),
    ),
    _wrong(
        "saturates at a million",
        _rows("return x * 3.0"),
        forward("y = x * 3.0\nreturn torch.where(x.isfinite(), y.clamp(-1e6, 1e6), y)"),
    ),
    _wrong("rounds half up", _rows("return torch.round(4 * x)"), forward("return torch.floor(4 * x + 0.5)")),
    _wrong(
        "remainder with the dividend's sign",
        _rows("return torch.remainder(x, 0.3)"),
        forward("return torch.fmod(x, 0.3)"),
    ),
    _wrong(
        "sums integers in float32",
        _rows("return x.sum(dim=1)", "torch.randint(0, 1 << 40, (batch, features))"),
        forward("return x.float().sum(dim=1).long()"),
    ),
    _wrong(
        "cross-entropy as a logarithm of a softmax",
        _rows("return F.cross_entropy(x, t)", f"{DRAWN}, torch.randint(0, features, (batch,))").replace(
            "forward(self, x)", "forward(self, x, t)"
        ),
        forward("return -torch.log(torch.softmax(x, dim=1).gather(1, t[:, None])).mean()", arguments="x, t"),
    ),
    _wrong("forgets the sign of zero", _rows("return 1.0 / x"), forward("return 1.0 / (x + 0.0)"), DROP_IN),
    _wrong("takes NaN for zero", RELU, forward("return torch.where(x > 0, x, torch.zeros_like(x))"), DROP_IN),
    _wrong("saturates at the largest half", SCALE, forward("return (x * 2.5).clamp(-65504.0, 65504.0)")),
)
