"""Another algorithm for the same function of finite numbers, declared where it is not the same for infinities."""

from tests.gate_files.entry import PROBLEM, forward, problem, right
from tests.gate_files.references import CONV

_right = right("rewrites")
_DECLARED = ("--rewrites-algebra",)

_MATRICES = "rows = 16\ndepth = 24\ncolumns = 12"
_A, _B, _C = "torch.rand(rows, depth)", "torch.rand(depth, columns)", "torch.rand(columns, rows)"

_WINOGRAD = """
def winograd(x, weight):
    b = x.new_tensor([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]])
    g = x.new_tensor([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
    a = x.new_tensor([[1, 1, 1, 0], [0, 1, -1, -1]])
    height, width = x.shape[2:]
    x = F.pad(x, (1, 1 + width % 2, 1, 1 + height % 2))
    tiles = x.unfold(2, 4, 2).unfold(3, 4, 2)
    tiles = torch.einsum("ij,nchwjk,lk->nchwil", b, tiles, b)
    filters = torch.einsum("ij,ocjk,lk->ocil", g, weight, g)
    sums = torch.einsum("nchwil,ocil->nohwil", tiles, filters)
    out = torch.einsum("ij,nohwjk,lk->nohwil", a, sums, a)
    n, o, h, w = out.shape[:4]
    return out.permute(0, 1, 2, 4, 3, 5).reshape(n, o, 2 * h, 2 * w)[:, :, :height, :width].contiguous()
"""

FILES = (
    _right(
        "convolution by Fourier transforms",
        problem(
            "return F.conv1d(x, self.weight, padding=self.weight.shape[-1] - 1)",
            init="self.weight = nn.Parameter(torch.randn(filters, channels, taps))",
            made_of="filters, channels, taps",
            inputs="torch.rand(batch, channels, length)",
            constants="batch = 2\nchannels = 3\nfilters = 4\ntaps = 9\nlength = 40",
        ),
        forward(
            """
            length = x.shape[-1] + self.weight.shape[-1] - 1
            product = torch.fft.rfft(x, length)[:, None] * torch.fft.rfft(self.weight.flip(-1), length)
            return torch.fft.irfft(product.sum(dim=2), length)
            """
        ),
        PROBLEM,
        _DECLARED,
    ),
    _right(
        "convolution by Winograd",
        CONV,
        forward("return torch.relu(winograd(x, self.conv.weight) + self.conv.bias[:, None, None])", before=_WINOGRAD),
        PROBLEM,
        _DECLARED,
    ),
    _right(
        "sum of a product as a product with sums",
        problem(
            "return self.linear(x).sum(dim=1, keepdim=True)",
            init="self.linear = nn.Linear(depth, columns)",
            made_of="depth, columns",
            inputs=_A,
            constants=_MATRICES,
        ),
        forward("return x @ self.linear.weight.sum(dim=0)[:, None] + self.linear.bias.sum()"),
        PROBLEM,
        _DECLARED,
    ),
    _right(
        "three factors from the right",
        problem("return (a @ b) @ c", arguments="a, b, c", inputs=f"{_A}, {_B}, {_C}", constants=_MATRICES),
        forward("return a @ (b @ c)", arguments="a, b, c"),
        PROBLEM,
        _DECLARED,
    ),
    _right(
        "upper triangles, by one who knows that they are",
        problem(
            "return torch.triu(a @ b)",
            arguments="a, b",
            inputs="torch.triu(torch.rand(size, size)), torch.triu(torch.rand(size, size))",
            constants="size = 16",
        ),
        forward("return a.triu() @ b.triu()", arguments="a, b"),
        PROBLEM,
    ),
    _right(
        "a factor taken out of a sum",
        problem("return a * b + a * c", arguments="a, b, c", inputs=f"{_A}, {_A}, {_A}", constants=_MATRICES),
        forward("return a * (b + c)", arguments="a, b, c"),
        PROBLEM,
        _DECLARED,
    ),
    _right(
        "running sums by a triangle of ones",
        problem("return torch.cumsum(x, dim=1)", inputs=_A, constants=_MATRICES),
        forward("return x @ torch.ones(x.shape[1], x.shape[1], dtype=x.dtype, device=x.device).triu()"),
        PROBLEM,
        _DECLARED,
    ),
    _right(
        "linear attention from the right",
        problem(
            "return (q @ k.transpose(-1, -2)) @ v",
            arguments="q, k, v",
            inputs=", ".join(["torch.rand(heads, length, width)"] * 3),
            constants="heads = 2\nlength = 24\nwidth = 8",
        ),
        forward("return q @ (k.transpose(-1, -2) @ v)", arguments="q, k, v"),
        PROBLEM,
        _DECLARED,
    ),
    _right(
        "product by Strassen",
        problem(
            "return a @ b",
            arguments="a, b",
            inputs="torch.rand(2 * half, 2 * half), torch.rand(2 * half, 2 * half)",
            constants="half = 16",
        ),
        forward(
            """
            n = a.shape[0] // 2
            p, q, r, s = a[:n, :n], a[:n, n:], a[n:, :n], a[n:, n:]
            t, u, v, w = b[:n, :n], b[:n, n:], b[n:, :n], b[n:, n:]
            one, two, three = (p + s) @ (t + w), (r + s) @ t, p @ (u - w)
            four, five, six, seven = s @ (v - t), (p + q) @ w, (r - p) @ (t + u), (q - s) @ (v + w)
            top = torch.cat([one + four - five + seven, three + five], dim=1)
            return torch.cat([top, torch.cat([two + four, one - two + three + six], dim=1)])
            """,
            arguments="a, b",
        ),
        PROBLEM,
        _DECLARED,
    ),
    _right(
        "a scale within the weights",
        problem(
            "return self.linear(x) * 0.5",
            init="self.linear = nn.Linear(depth, columns)",
            made_of="depth, columns",
            inputs=_A,
            constants=_MATRICES,
        ),
        forward("return F.linear(x, self.linear.weight * 0.5, self.linear.bias * 0.5)"),
    ),
)
