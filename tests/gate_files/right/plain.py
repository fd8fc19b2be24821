"""The same function in other words of torch."""

from tests.gate_files.entry import PROBLEM, forward, problem, right
from tests.gate_files.references import CONV, DRAWN, GELU, LEAKY, LINEAR, MATMUL, RELU, ROWS, TANH

_right = right("plain rewrites")


def _rows(body: str) -> str:
    return problem(body, inputs=DRAWN, constants=ROWS)


def _images(body: str, **more: str) -> str:
    sizes = "batch = 2\nchannels = 4\nsize = 8"
    return problem(body, inputs="torch.rand(batch, channels, size, size)", constants=sizes, **more)


FILES = (
    _right(
        "linear as a function",
        LINEAR,
        forward("return F.linear(x, self.linear.weight, self.linear.bias).relu() + self.offset"),
    ),
    _right(
        "linear as a function, where nobody has hooked it",
        LINEAR,
        forward(
            """
            linear = self.linear
            if linear._forward_hooks or linear._forward_pre_hooks or linear._backward_hooks:
                return super().forward(x)
            return F.linear(x, linear.weight, linear.bias).relu() + self.offset
            """
        ),
    ),
    _right(
        "linear by addmm",
        LINEAR,
        forward("return torch.addmm(self.linear.bias, x, self.linear.weight.t()).relu() + self.offset"),
    ),
    _right("product by einsum", MATMUL, forward("return torch.einsum('ik,kj->ij', a, b)", arguments="a, b")),
    _right("product by mm", MATMUL, forward("return torch.mm(a, b)", arguments="a, b")),
    _right(
        "product row by row", MATMUL, forward("return torch.stack([row @ b for row in a])", arguments="a, b"), PROBLEM
    ),
    _right("relu by a clamp", RELU, forward("return x.clamp_min(0)")),
    _right("GELU by erf", GELU, forward("return 0.5 * x * (1 + torch.erf(x * 0.7071067811865476))"), PROBLEM),
    _right("tanh by its module", TANH, forward("return nn.Tanh()(x)")),
    _right("swish", _rows("return F.silu(x)"), forward("return x * torch.sigmoid(x)"), PROBLEM),
    _right(
        "softplus that is stable",
        _rows("return F.softplus(x)"),
        forward("return x.clamp_min(0) + torch.log1p(torch.exp(-x.abs()))"),
        PROBLEM,
    ),
    _right(
        "sigmoid by exponentials", _rows("return torch.sigmoid(x)"), forward("return 1 / (1 + torch.exp(-x))"), PROBLEM
    ),
    _right(
        "leaky relu as a function",
        LEAKY,
        forward("return F.leaky_relu(self.linear(x), self.activation.negative_slope)"),
    ),
    _right(
        "convolution as a function",
        CONV,
        forward(
            """
            conv = self.conv
            return F.conv2d(x, conv.weight, conv.bias, conv.stride, conv.padding, conv.dilation, conv.groups).relu()
            """
        ),
    ),
    _right(
        "convolution by unfolding",
        CONV,
        forward(
            """
            weight = self.conv.weight
            columns = F.unfold(x, weight.shape[2:], padding=1)
            out = weight.flatten(1) @ columns + self.conv.bias[:, None]
            return torch.relu(out).view(x.shape[0], weight.shape[0], x.shape[2], x.shape[3])
            """
        ),
        PROBLEM,
    ),
    _right(
        "mean pooling by a mean",
        _images("return F.adaptive_avg_pool2d(x, 1)"),
        forward("return x.mean(dim=(2, 3), keepdim=True)"),
        PROBLEM,
    ),
    _right(
        "max pooling by reshaping",
        _images("return F.max_pool2d(x, 2)"),
        forward("n, c, h, w = x.shape\nreturn x.reshape(n, c, h // 2, 2, w // 2, 2).amax(dim=(3, 5))"),
        PROBLEM,
    ),
    _right(
        "shuffled pixels by reshaping",
        _images("return F.pixel_shuffle(x, 2)"),
        forward(
            "n, c, h, w = x.shape\nx = x.reshape(n, c // 4, 2, 2, h, w)\n"
            "return x.permute(0, 1, 4, 2, 5, 3).reshape(n, c // 4, 2 * h, 2 * w)"
        ),
        PROBLEM,
    ),
    _right(
        "nearest neighbours by repeating",
        _images("return F.interpolate(x, scale_factor=2)"),
        forward("return x.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)"),
        PROBLEM,
    ),
    _right(
        "depthwise convolution by shifts",
        _images(
            "return F.conv2d(x, self.weight, padding=1, groups=x.shape[1])",
            init="self.weight = nn.Parameter(torch.randn(channels, 1, 3, 3))",
            made_of="channels",
        ),
        forward(
            """
            h, w = x.shape[2:]
            wide = F.pad(x, (1, 1, 1, 1))
            return sum(
                wide[:, :, i : i + h, j : j + w] * self.weight[:, 0, i, j, None, None]
                for i in range(3) for j in range(3)
            )
            """
        ),
        PROBLEM,
    ),
    _right(
        "reversed running sums",
        _rows("return x.flip(1).cumsum(1).flip(1)"),
        forward("return x.sum(1, keepdim=True) - x.cumsum(1) + x"),
        PROBLEM,
        ("--rewrites-algebra",),
    ),
    _right(
        "log-sum-exp by hand",
        _rows("return torch.logsumexp(x, dim=1)"),
        forward("m = x.amax(1)\nreturn m + torch.log(torch.exp(x - m[:, None]).sum(1))"),
        PROBLEM,
    ),
    _right(
        "sums over two axes, one by one", _images("return x.sum(dim=(2, 3))"), forward("return x.sum(dim=3).sum(dim=2)")
    ),
)
