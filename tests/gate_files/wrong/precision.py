"""Less precision than the reference's, whether the inputs that are drawn show it or not."""

from tests.gate_files.entry import DROP_IN, forward, problem, wrong
from tests.gate_files.references import CONV, DEEP, DRAWN, LAYER_NORM, LINEAR, RMS_NORM, ROWS, SOFTMAX

_wrong = wrong("precision")

_TF32 = """
def tf32(value):
    return ((value.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
"""

_LONG = problem("return x.mean(dim=1)", inputs="torch.rand(batch, length)", constants="batch = 4\nlength = 4096")

_BF16 = problem(
    "return x @ self.weight.t()",
    init="self.weight = nn.Parameter(torch.rand(features, depth, dtype=torch.bfloat16))",
    made_of="features, depth",
    inputs="torch.rand(batch, depth, dtype=torch.bfloat16)",
    constants="batch = 8\ndepth = 512\nfeatures = 8",
)

FILES = (
    _wrong(
        "product of numbers rounded to bfloat16",
        DEEP,
        forward("return x.bfloat16().float() @ self.weight.bfloat16().float().t()"),
    ),
    _wrong("product in bfloat16", DEEP, forward("return (x.bfloat16() @ self.weight.bfloat16().t()).float()")),
    _wrong("product in float16", DEEP, forward("return (x.half() @ self.weight.half().t()).float()")),
    _wrong("product of numbers rounded to TF32", DEEP, forward("return tf32(x) @ tf32(self.weight).t()", before=_TF32)),
    _wrong(
        "weights in eight bits",
        DEEP,
        forward(
            """
            step = self.weight.abs().max() / 127
            return x @ ((self.weight / step).round().clamp(-127, 127) * step).t()
            """
        ),
    ),
    _wrong(
        "weights of a low rank",
        DEEP,
        forward(
            "u, s, v = torch.linalg.svd(self.weight, full_matrices=False)\nreturn x @ v[:8].t() * s[:8] @ u[:, :8].t()"
        ),
    ),
    _wrong(
        "leaves out small weights",
        DEEP,
        forward("return x @ torch.where(self.weight.abs() < 0.01, torch.zeros_like(self.weight), self.weight).t()"),
    ),
    _wrong("half of the depth, doubled", DEEP, forward("return 2 * (x[:, ::2] @ self.weight[:, ::2].t())")),
    _wrong(
        "less precision at the problem's own size alone",
        DEEP,
        forward(
            """
            if x.shape == (16, 1024):
                return x.bfloat16().float() @ self.weight.bfloat16().float().t()
            return super().forward(x)
            """
        ),
    ),
    _wrong(
        "runs under autocast to bfloat16",
        LINEAR,
        forward(
            "with torch.autocast(x.device.type, torch.bfloat16):\n    out = super().forward(x)\nreturn out.to(x.dtype)"
        ),
    ),
    _wrong("mean in float16", _LONG, forward("return x.half().mean(dim=1).float()")),
    _wrong("layer norm in float16", LAYER_NORM, forward("return F.layer_norm(x.half(), x.shape[-1:]).float()")),
    _wrong("softmax in bfloat16", SOFTMAX, forward("return torch.softmax(x.bfloat16(), dim=-1).float()")),
    _wrong(
        "exponentials of rounded numbers",
        SOFTMAX,
        forward("e = torch.exp((x - x.amax(-1, keepdim=True)).half().float())\nreturn e / e.sum(-1, keepdim=True)"),
    ),
    _wrong(
        "convolution with weights in bfloat16",
        CONV,
        forward(
            """
            weight = self.conv.weight.bfloat16().to(x.dtype)
            return torch.relu(F.conv2d(x, weight, self.conv.bias, padding=1))
            """
        ),
    ),
    _wrong(
        "inverse root by one step of Newton",
        RMS_NORM,
        forward(
            """
            square = x.pow(2).mean(dim=-1, keepdim=True) + 1e-5
            guess = (0x5F3759DF - (square.float().view(torch.int32) >> 1)).view(torch.float32)
            return self.weight * x * (guess * (1.5 - 0.5 * square * guess * guess))
            """
        ),
    ),
    _wrong(
        "sigmoid in straight pieces",
        problem("return torch.sigmoid(x)", inputs=DRAWN, constants=ROWS),
        forward("return F.hardsigmoid(1.5 * x)"),
    ),
    _wrong(
        "adds up in bfloat16 one product after the other",
        _BF16,
        forward(
            """
            out = x.new_zeros(x.shape[0], self.weight.shape[0])
            for k in range(x.shape[1]):
                out = out + x[:, k, None] * self.weight[:, k]
            return out
            """
        ),
    ),
    _wrong(
        "float64 in float32",
        LINEAR,
        forward(
            """
            weight, bias = self.linear.weight, self.linear.bias
            return (torch.relu(F.linear(x.float(), weight.float(), bias.float())) + self.offset).to(x.dtype)
            """
        ),
        DROP_IN,
    ),
)
