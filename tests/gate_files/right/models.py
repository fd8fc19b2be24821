"""Models that are put together otherwise, and outputs of unusual kinds."""

from tests.gate_files.entry import PROBLEM, forward, problem, right
from tests.gate_files.references import BARE, DRAWN, LINEAR, ROWS, SCALE

_right = right("models")


def _rows(body: str, **more: str) -> str:
    return problem(body, inputs=DRAWN, constants=ROWS, **more)


_LAYERS = problem(
    "return self.layers(x)",
    init="self.layers = nn.Sequential(nn.Linear(features, wide), nn.ReLU(), nn.Linear(wide, features))",
    made_of="features, wide",
    inputs=DRAWN,
    constants="batch = 6\nfeatures = 10\nwide = 14",
)

FILES = (
    _right("a function that returns the model", LINEAR, "\ndef ModelNew(*given):\n    return Model(*given)\n"),
    _right("the reference itself", LINEAR, "\nModelNew = Model\n"),
    _right(
        "a model of its own",
        LINEAR,
        """
        class ModelNew(nn.Module):
            def __init__(self, features, offset):
                super().__init__()
                self.linear = nn.Linear(features, features)
                self.offset = offset

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                x = torch.nn.functional.linear(x, self.linear.weight, self.linear.bias)
                return torch.relu(x) + self.offset
        """,
    ),
    _right("no sizes but the tensors' own", BARE, forward("return x.tanh().mul(2.0)")),
    _right("layers one by one", _LAYERS, forward("for layer in self.layers:\n    x = layer(x)\nreturn x")),
    _right(
        "shared weights",
        _rows(
            "return x @ self.weight @ self.weight.t()",
            init="self.weight = nn.Parameter(torch.rand(features, 16))",
            made_of="features",
        ),
        forward("return F.linear(torch.mm(x, self.weight), self.weight)"),
    ),
    _right(
        "weights with a norm of their own",
        _rows(
            "return self.linear(x)",
            init="self.linear = torch.nn.utils.parametrizations.weight_norm(nn.Linear(features, features))",
            made_of="features",
        ),
        forward("return F.linear(x, self.linear.weight, self.linear.bias)"),
    ),
    _right(
        "a buffer that is not saved",
        _rows(
            "return x * self.ramp",
            init="self.register_buffer('ramp', torch.arange(features).float(), persistent=False)",
            made_of="features",
        ),
        forward("return torch.mul(x, self.ramp)"),
    ),
    _right(
        "keeps a mask by its size",
        problem("return torch.tril(x)", inputs="torch.rand(size, size)", constants="size = 24"),
        forward(
            """
            key = (x.shape, x.device)
            if key not in self.masks:
                self.masks[key] = torch.ones(x.shape, dtype=torch.bool, device=x.device).triu(1)
            return x.masked_fill(self.masks[key], 0)
            """,
            made="self.masks = {}",
        ),
        PROBLEM,
    ),
    _right(
        "keeps a transposed weight and looks whether it is the same",
        LINEAR,
        forward(
            """
            weight = self.linear.weight.detach()
            same = self.seen is not None and self.seen.dtype == weight.dtype and torch.equal(self.seen, weight)
            if not same:
                self.seen, self.kept = weight.clone(), weight.t().contiguous()
            return torch.relu(x @ self.kept + self.linear.bias) + self.offset
            """,
            made="self.seen = self.kept = None",
        ),
        PROBLEM,
    ),
    _right("returns its input, as the reference does", _rows("return x"), forward("return x")),
    _right("a view, as the reference's", _rows("return x.t()"), forward("return x.permute(1, 0)")),
    _right(
        "one row for all, as the reference",
        _rows("return x.mean(dim=0).expand(8, x.shape[1])"),
        forward("return torch.mean(x, 0).expand(8, x.shape[1])"),
    ),
    _right("complex numbers", _rows("return torch.fft.rfft(x, dim=1)"), forward("return torch.fft.rfft(x)"), PROBLEM),
    _right(
        "as many numbers as the inputs say",
        _rows("return x[x > 0.5]"),
        forward("return torch.masked_select(x, x > 0.5)"),
    ),
    _right(
        "a branch on what is computed",
        _rows("return x * 2 if x.sum() > 0 else x - 1"),
        forward("return x + x if bool(x.sum() > 0) else x.sub(1)"),
    ),
    _right(
        "an output in another order, declared",
        problem("return torch.tanh(x)", inputs="torch.rand(2, 3, 6, 6)"),
        forward("return torch.tanh(x).contiguous(memory_format=torch.channels_last)"),
        flags=("--dense",),
    ),
    _right(
        "a transposed output, declared", SCALE, forward("return (x * 2.5).t().contiguous().t()"), flags=("--dense",)
    ),
    _right(
        "another order of its sums each time, declared",
        problem("return x.sum(dim=1)", inputs="torch.rand(batch, length)", constants="batch = 8\nlength = 2000"),
        forward(
            "return x[:, torch.randperm(x.shape[1], generator=DRAWS)].sum(dim=1)", before="DRAWS = torch.Generator()"
        ),
        PROBLEM,
        flags=("--atomics",),
    ),
    _right(
        "another order of its sums by threads, declared",
        problem("return x.sum(dim=0)", inputs="torch.rand(batch, length)", constants="batch = 64\nlength = 40"),
        forward(
            """
            total, lock = torch.zeros_like(x[0]), threading.Lock()

            def add(part):
                mine = part.sum(dim=0)
                with lock:
                    total.add_(mine)

            workers = [threading.Thread(target=add, args=(part,)) for part in x.detach().chunk(4)]
            for worker in workers: worker.start()
            for worker in workers: worker.join()
            return total
            """
        ),
        PROBLEM,
        flags=("--atomics",),
    ),
)
