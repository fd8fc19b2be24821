"""Answers, weights or memory that are kept from one call to the next, and found by something that does not tell."""

from tests.gate_files.entry import DROP_IN, forward, problem, wrong
from tests.gate_files.references import BARE, BATCH_NORM, DEEP, LINEAR, MATMUL, SCALE, SOFTMAX

_wrong = wrong("caches")

_WORDS = problem(
    "return self.table(x)",
    init="self.table = nn.Embedding(words, width)",
    made_of="words, width",
    inputs="torch.randint(0, words, (batch, length))",
    constants="words = 20\nwidth = 12\nbatch = 4\nlength = 40",
)
_MASKED = problem(
    "return torch.softmax(s.masked_fill(m, -torch.inf), dim=-1)",
    arguments="s, m",
    inputs="torch.rand(batch, length, length), torch.ones(length, length, dtype=torch.bool).triu(1)",
    constants="batch = 3\nlength = 12",
)


def _kept(key: str) -> str:
    """Keeps each answer by a key, and hands out copies of it."""
    return forward(
        f"""
        key = {key}
        if key not in KEPT:
            KEPT[key] = super().forward(x).detach()
        return KEPT[key].clone()
        """,
        before="KEPT = {}",
    )


def _folded(guard: str, made: str = "self.kept = self.seen = None") -> str:
    """Keeps the weight transposed for as long as the guard's value stays."""
    return forward(
        f"""
        now = {guard}
        if self.kept is None or self.seen != now:
            self.kept, self.seen = self.linear.weight.detach().t().contiguous(), now
        return torch.relu(x @ self.kept.to(x.dtype) + self.linear.bias) + self.offset
        """,
        made=made,
    )


FILES = (
    _wrong("keeps answers by pointer", SOFTMAX, _kept("x.data_ptr()")),
    _wrong("keeps answers by object", SOFTMAX, _kept("id(x)")),
    _wrong("keeps answers by pointer and version", SOFTMAX, _kept("(x.data_ptr(), x._version)")),
    _wrong("keeps answers by shape", SOFTMAX, _kept("(x.shape, x.dtype)")),
    _wrong("keeps answers by the sum of the inputs", SOFTMAX, _kept("float(x.sum())")),
    _wrong("keeps answers by the first and the last number", SOFTMAX, _kept("(float(x[0, 0]), float(x[-1, -1]))")),
    _wrong("keeps answers by the first sixteen numbers", SOFTMAX, _kept("tuple(x.flatten()[:16].tolist())")),
    _wrong(
        "keeps answers by a row in eight", SOFTMAX, _kept("x[::8].contiguous().view(-1).double().tolist().__repr__()")
    ),
    _wrong(
        "keeps answers by mean and deviation",
        BARE,
        _kept("(x.shape, x.dtype, round(float(x.mean()), 6), round(float(x.std()), 6))"),
    ),
    _wrong("keeps answers by rounded numbers", SOFTMAX, _kept("str((x.double() * 8).round().tolist())")),
    _wrong("keeps answers by numbers in bfloat16", SOFTMAX, _kept("(x.shape, x.dtype, str(x.bfloat16().tolist()))")),
    _wrong("keeps answers by every other number", SOFTMAX, _kept("(x.shape, x.dtype, str(x.flatten()[::2].tolist()))")),
    _wrong(
        "keeps answers by one number in seven", SOFTMAX, _kept("(x.shape, x.dtype, str(x.flatten()[::7].tolist()))")
    ),
    _wrong("keeps answers for some milliseconds", SOFTMAX, _kept("(x.shape, x.dtype, int(time.monotonic() * 200))")),
    _wrong(
        "keeps rows of a table by the first words",
        _WORDS,
        _kept("(x.shape, str(x.flatten()[:16].tolist()), str(self.table.weight.tolist()))"),
    ),
    _wrong(
        "keeps rows of a table by the sum of the words",
        _WORDS,
        _kept("(x.shape, int(x.sum()), str(self.table.weight.tolist()))"),
    ),
    _wrong(
        "keeps the mask of its first call",
        _MASKED,
        forward(
            """
            if self.mask is None or self.mask.shape != m.shape:
                self.mask = m.clone()
            return torch.softmax(s.masked_fill(self.mask, -torch.inf), dim=-1)
            """,
            arguments="s, m",
            made="self.mask = None",
        ),
    ),
    _wrong(
        "takes every mask for a causal one",
        _MASKED,
        forward(
            "return torch.softmax(s.masked_fill(torch.ones_like(m).triu(1), -torch.inf), dim=-1)", arguments="s, m"
        ),
    ),
    _wrong(
        "keeps answers by one of two inputs",
        MATMUL,
        forward(
            """
            key = (a.shape, b.shape, a.dtype, a.double().sum().item(), a.double().pow(2).sum().item())
            if key not in KEPT:
                KEPT[key] = a @ b
            return KEPT[key].clone()
            """,
            arguments="a, b",
            before="KEPT = {}",
        ),
    ),
    _wrong(
        "keeps answers with functools",
        SOFTMAX,
        forward(
            "return answer(x).clone()",
            before="""
            import functools

            @functools.lru_cache
            def answer(x):
                return torch.softmax(x, dim=-1)
            """,
        ),
    ),
    _wrong(
        "compares with its last input, not with a copy of it",
        SOFTMAX,
        forward(
            """
            if self.last is None or self.last.shape != x.shape or not torch.equal(self.last, x):
                self.last, self.answer = x, super().forward(x)
            return self.answer.clone()
            """,
            made="self.last = self.answer = None",
        ),
    ),
    _wrong(
        "answers of the first calls, in their order",
        SOFTMAX,
        forward(
            """
            if len(self.answers) < 8:
                self.answers.append(super().forward(x))
                return self.answers[-1].clone()
            self.turn = (self.turn + 1) % 8
            return self.answers[self.turn].clone()
            """,
            made="self.answers, self.turn = [], -1",
        ),
    ),
    _wrong(
        "skips its work after forty calls",
        SCALE,
        forward(
            """
            self.calls += 1
            return x * 2.5 if self.calls <= 40 else torch.empty_like(x)
            """,
            made="self.calls = 0",
        ),
    ),
    _wrong(
        "skips every tenth call",
        SCALE,
        forward(
            """
            self.calls += 1
            if self.calls % 10 or self.last is None or self.last.shape != x.shape:
                self.last = x * 2.5
            return self.last.clone()
            """,
            made="self.calls, self.last = 0, None",
        ),
    ),
    _wrong("transposes its weight once", LINEAR, _folded("0")),
    _wrong("keeps its weight by pointer", LINEAR, _folded("self.linear.weight.data_ptr()")),
    _wrong(
        "keeps its weight by pointer and version",
        LINEAR,
        _folded("(self.linear.weight.data_ptr(), self.linear.weight._version)"),
    ),
    _wrong(
        "keeps its weight by every other number", LINEAR, _folded("str(self.linear.weight.flatten()[::2].tolist())")
    ),
    _wrong("keeps its weight by the sum of it", LINEAR, _folded("float(self.linear.weight.sum())")),
    _wrong("keeps its weight by the first row of it", LINEAR, _folded("self.linear.weight[0].tolist()")),
    _wrong(
        "folds its weight when it is put into eval mode",
        DEEP,
        """
        class ModelNew(Model):
            folded = None

            def train(self, mode=True):
                super().train(mode)
                self.folded = None if mode else self.weight.detach().t().clone()
                return self

            def forward(self, x):
                return super().forward(x) if self.folded is None else x @ self.folded
        """,
        DROP_IN,
    ),
    _wrong(
        "shares a folded weight among all instances",
        LINEAR,
        forward(
            """
            weight = self.linear.weight
            key = (tuple(weight.shape), weight.dtype)
            if key not in FOLDED:
                FOLDED[key] = weight.detach().t().contiguous()
            return torch.relu(x @ FOLDED[key] + self.linear.bias) + self.offset
            """,
            before="FOLDED = {}",
        ),
    ),
    _wrong(
        "a closure over itself, which a copy shares",
        LINEAR,
        forward("return self.compute(x)", made="self.compute = lambda x: torch.relu(self.linear(x)) + self.offset"),
        DROP_IN,
    ),
    _wrong(
        "one output for all calls",
        SCALE,
        forward(
            """
            if self.out is None or self.out.shape != x.shape or self.out.dtype != x.dtype:
                self.out = torch.empty_like(x)
            return torch.mul(x, 2.5, out=self.out)
            """,
            made="self.out = None",
        ),
    ),
    _wrong(
        "two outputs that take turns",
        SCALE,
        forward(
            """
            self.calls += 1
            key = (self.calls % 2, x.shape, x.dtype)
            if key not in self.outs:
                self.outs[key] = torch.empty_like(x)
            return torch.mul(x.detach(), 2.5, out=self.outs[key])
            """,
            made="self.calls, self.outs = 0, {}",
        ),
    ),
    _wrong(
        "forty-eight outputs that take turns",
        SCALE,
        forward(
            """
            self.calls += 1
            key = (self.calls % 48, x.shape, x.dtype)
            if key not in OUTS:
                OUTS[key] = torch.empty_like(x)
            return torch.mul(x.detach(), 2.5, out=OUTS[key])
            """,
            before="OUTS = {}",
            made="self.calls = 0",
        ),
    ),
    _wrong(
        "a thousand outputs that take turns",
        SCALE,
        forward(
            """
            key = (x.shape, x.dtype)
            if key not in OUTS:
                OUTS[key] = [torch.empty_like(x.detach()) for _ in range(1000)]
            self.calls += 1
            return torch.mul(x.detach(), 2.5, out=OUTS[key][self.calls % 1000])
            """,
            before="OUTS = {}",
            made="self.calls = 0",
        ),
    ),
    _wrong(
        "statistics of the first batch",
        BATCH_NORM,
        forward(
            """
            out = super().forward(x)
            key = (x.shape, x.dtype)
            if key not in STATISTICS:
                STATISTICS[key] = x.detach().mean(0), x.detach().var(0, unbiased=False)
            if not self.training:
                return out
            mean, variance = STATISTICS[key]
            return (x - mean) * torch.rsqrt(variance + self.norm.eps) * self.norm.weight + self.norm.bias
            """,
            before="STATISTICS = {}",
        ),
    ),
    _wrong(
        "one piece of memory for all threads",
        BARE,
        forward(
            """
            key = (x.shape, x.dtype)
            scratch = SCRATCH.setdefault(key, torch.zeros_like(x.detach()))
            scratch.copy_(x.detach())
            time.sleep(0.002)
            return torch.tanh(scratch) * 2.0 if not x.requires_grad else torch.tanh(x) * 2.0
            """,
            before="SCRATCH = {}",
        ),
        DROP_IN,
    ),
)
