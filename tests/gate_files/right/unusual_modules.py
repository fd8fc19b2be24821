"""Right files of modules that are more than weights and a function: parametrised, recurrent, with a state."""

from __future__ import annotations

from tests.gate_files.entry import PROBLEM, forward, problem, right

_right = right("unusual modules")

FILES = (
    _right(
        "a weight of a direction and a length",
        problem(
            "return self.linear(x)",
            inputs="torch.randn(32, 48)",
            init="self.linear = nn.utils.parametrizations.weight_norm(nn.Linear(48, 24))",
        ),
        forward(
            """\
            parts = self.linear.parametrizations.weight
            length, direction = parts.original0, parts.original1
            scale = length / direction.norm(dim=1, keepdim=True)
            return F.linear(x, direction * scale, self.linear.bias)
            """
        ),
    ),
    _right(
        "gated recurrence step by step",
        problem(
            "return self.gru(x)",
            inputs="torch.randn(4, 10, 16)",
            init="self.gru = nn.GRU(16, 24, batch_first=True)",
        ),
        forward(
            """\
            gru = self.gru
            given = F.linear(x, gru.weight_ih_l0, gru.bias_ih_l0)
            h, outputs = x.new_zeros(x.shape[0], gru.hidden_size), []
            for step in range(x.shape[1]):
                own = F.linear(h, gru.weight_hh_l0, gru.bias_hh_l0)
                r, z, n = given[:, step].chunk(3, -1)
                own_r, own_z, own_n = own.chunk(3, -1)
                z = torch.sigmoid(z + own_z)
                n = torch.tanh(n + torch.sigmoid(r + own_r) * own_n)
                h = (1 - z) * n + z * h
                outputs.append(h)
            return torch.stack(outputs).transpose(0, 1), h[None]
            """
        ),
    ),
    _right(
        "two outputs of one memory",
        problem(
            """\
            y = x * 2 + 1
            return y[:, :24], y[:, 24:]
            """,
            inputs="torch.randn(32, 48)",
        ),
        forward(
            """\
            y = torch.add(torch.ones_like(x), x, alpha=2)
            return torch.tensor_split(y, [24], 1)
            """
        ),
    ),
    _right(
        "a moving mean that each call goes on with",
        problem(
            """\
            with torch.no_grad():
                self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
            return x - self.mean
            """,
            inputs="torch.randn(32, 48) + 1",
            init='self.register_buffer("mean", torch.zeros(48))',
        ),
        forward(
            """\
            with torch.no_grad():
                self.mean.lerp_(x.mean(0), 0.1)
            return x - self.mean
            """
        ),
    ),
    _right(
        "a bias that may be left out",
        problem(
            """\
            y = x @ self.weight
            return y if bias is None else y + bias
            """,
            arguments="x, bias=None",
            inputs="torch.randn(32, 48)",
            init="self.weight = nn.Parameter(torch.randn(48, 24))",
        ),
        forward(
            """\
            if bias is None:
                return torch.mm(x, self.weight)
            return torch.addmm(bias, x, self.weight)
            """,
            arguments="x, bias=None",
        ),
    ),
    _right(
        "drops out by a mask of its own",
        problem(
            "return self.linear(self.drop(x))",
            inputs="torch.randn(32, 48)",
            init="self.drop = nn.Dropout(0.2)\nself.linear = nn.Linear(48, 24)",
        ),
        forward(
            """\
            if self.training:
                kept = torch.empty_like(x).bernoulli_(0.8)
                x = x * kept.div_(0.8)
            return F.linear(x, self.linear.weight, self.linear.bias)
            """
        ),
        PROBLEM,
    ),
    _right(
        "a table that is made where and as the input is",
        problem(
            """\
            places = torch.arange(x.shape[-1], device=x.device, dtype=x.dtype)
            return x * torch.cos(places)
            """,
            inputs="torch.randn(32, 48)",
        ),
        forward(
            """\
            table = self.table
            if table is None or (table.shape[0], table.device, table.dtype) != (x.shape[-1], x.device, x.dtype):
                with torch.inference_mode(False), torch.no_grad():
                    table = torch.cos(torch.arange(x.shape[-1], device=x.device, dtype=x.dtype))
                self.table = table
            return x * table
            """,
            made='self.register_buffer("table", None, persistent=False)',
        ),
    ),
)
