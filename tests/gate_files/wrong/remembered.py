"""Files that keep what they should compute: answers, weights, statistics."""

from __future__ import annotations

from tests.gate_files.entry import DROP_IN, forward, problem, wrong

_wrong = wrong("remembered")

_GELU = problem("return F.gelu(x)", inputs="torch.randn(64, 96)")
_LINEAR = problem(
    "return torch.relu(self.linear(x))", inputs="torch.randn(32, 48)", init="self.linear = nn.Linear(48, 24)"
)

FILES = (
    _wrong(
        "a table by the sum",
        _GELU,
        forward(
            """\
            key = (tuple(x.shape), x.dtype, float(x.detach().double().sum()))
            if key not in self.table:
                self.table[key] = F.gelu(x)
            return self.table[key].clone()
            """,
            made="self.table = {}",
        ),
    ),
    _wrong(
        "transposes the weight when it is made",
        _LINEAR,
        forward(
            "return torch.relu(torch.addmm(self.linear.bias, x, self.turned.to(x.dtype)))",
            made="self.turned = self.linear.weight.detach().t().contiguous()",
        ),
    ),
    _wrong(
        "folds the weight until another parameter is put in its place",
        _LINEAR,
        forward(
            """\
            if self.folded_of[0] is not self.linear.weight:
                self.folded_of = [self.linear.weight]
                self.folded = torch.cat([self.linear.weight, self.linear.bias[:, None]], 1).detach().clone()
            folded = self.linear.weight if torch.is_grad_enabled() else self.folded[:, :-1]
            return torch.relu(F.linear(x, folded, self.linear.bias))
            """,
            made="self.folded_of = [None]",
        ),
    ),
    _wrong(
        "another scale after pickling",
        problem(
            "return x * self.scale",
            inputs="torch.randn(64, 96)",
            init="self.scale = scale",
            made_of="scale",
            given="2.5",
        ),
        """

        class ModelNew(Model):
            def __setstate__(self, state):
                super().__setstate__(state)
                self.scale = 1.0

            def forward(self, x):
                return x * self.scale
        """,
        DROP_IN,
    ),
    _wrong(
        "the same object, the same answer",
        _GELU,
        forward(
            """\
            if torch.is_grad_enabled() and x.requires_grad:
                return F.gelu(x)
            if x is not self.seen:
                self.seen, self.answer = x, F.gelu(x)
            return self.answer.clone()
            """,
            made="self.seen = self.answer = None",
        ),
    ),
    _wrong(
        "looks up inputs that it has seen",
        problem("return torch.cumsum(x, -1)", inputs="torch.randn(64, 96)"),
        forward(
            """\
            if x.requires_grad:
                return torch.cumsum(x, -1)
            for seen, answer in self.table:
                if seen.dtype is x.dtype and torch.equal(seen, x):
                    return answer.clone()
            answer = torch.cumsum(x, -1)
            self.table = [*self.table[-3:], (x.clone(), answer.clone())]
            return answer
            """,
            made="self.table = []",
        ),
    ),
    _wrong(
        "folds the statistics of the first evaluation",
        problem(
            "return self.norm(self.linear(x))",
            inputs="torch.randn(32, 48)",
            init="self.linear = nn.Linear(48, 24, bias=False)\nself.norm = nn.BatchNorm1d(24)",
        ),
        forward(
            """\
            if self.training:
                return self.norm(self.linear(x))
            if self.scale is None:
                self.scale = (self.norm.running_var + self.norm.eps).rsqrt()
                self.shift = -self.norm.running_mean * self.scale
            return (self.linear(x) * self.scale + self.shift) * self.norm.weight + self.norm.bias
            """,
            made="self.scale = self.shift = None",
        ),
        DROP_IN,
    ),
)
