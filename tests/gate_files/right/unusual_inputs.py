"""Right files whose inputs are more than random numbers: symmetric, sorted, masks, lengths, probabilities."""

from __future__ import annotations

from tests.gate_files.entry import PROBLEM, forward, problem, right

_right = right("unusual inputs")

FILES = (
    _right(
        "a product with a symmetric matrix",
        problem(
            "return x @ s",
            arguments="x, s",
            before="def symmetric(n):\n    a = torch.randn(n, n)\n    return (a + a.t()) / 2",
            inputs="torch.randn(32, 48), symmetric(48)",
        ),
        forward("return F.linear(x, s)", arguments="x, s"),
        PROBLEM,
    ),
    _right(
        "a solution with a positive definite matrix",
        problem(
            "return torch.cholesky_solve(b, torch.linalg.cholesky(a))",
            arguments="a, b",
            before="def positive(n):\n    a = torch.randn(n, n)\n    return a @ a.t() + n * torch.eye(n)",
            inputs="positive(24), torch.randn(24, 6)",
        ),
        forward("return torch.linalg.solve(a, b)", arguments="a, b"),
        PROBLEM,
    ),
    _right(
        "bins by counting sorted edges",
        problem(
            "return torch.searchsorted(edges, x)",
            arguments="edges, x",
            inputs="torch.randn(20).sort().values, torch.randn(64)",
        ),
        forward("return (edges < x[..., None]).sum(-1)", arguments="edges, x"),
        PROBLEM,
    ),
    _right(
        "a divergence of probability vectors",
        problem(
            "return F.kl_div(torch.log(p), q, reduction='batchmean')",
            arguments="p, q",
            inputs="torch.randn(32, 48).softmax(-1), torch.randn(32, 48).softmax(-1)",
        ),
        forward("return (torch.xlogy(q, q) - q * torch.log(p)).sum() / len(p)", arguments="p, q"),
    ),
    _right(
        "an inner product of complex vectors",
        problem(
            "return (x * y.conj()).sum(-1)",
            arguments="x, y",
            inputs="torch.randn(32, 48, dtype=torch.complex64), torch.randn(32, 48, dtype=torch.complex64)",
        ),
        forward("return torch.linalg.vecdot(y, x)", arguments="x, y"),
    ),
    _right(
        "a softmax under a mask by hand",
        problem(
            "return x.masked_fill(~mask, float('-inf')).softmax(-1)",
            arguments="x, mask",
            inputs="torch.randn(16, 24), torch.rand(16, 24) < 0.8",
        ),
        forward(
            """\
            x = torch.where(mask, x, float("-inf")).to(x.dtype)
            powers = torch.exp(x - x.amax(-1, keepdim=True))
            return powers / powers.sum(-1, keepdim=True)
            """,
            arguments="x, mask",
        ),
        PROBLEM,
    ),
    _right(
        "means of sequences of several lengths",
        problem(
            """\
            inside = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
            return torch.where(inside[..., None], x, 0.0).sum(1) / lengths[:, None]
            """,
            arguments="x, lengths",
            inputs="torch.randn(8, 20, 12), torch.randint(1, 21, (8,))",
        ),
        forward(
            """\
            sums = [row[: max(n, 0)].sum(0) / n for row, n in zip(x, lengths.tolist())]
            return torch.stack(sums) if sums else x.sum(1)
            """,
            arguments="x, lengths",
        ),
        PROBLEM,
    ),
    _right(
        "bags of rows by their offsets",
        problem(
            "return F.embedding_bag(indices, self.table, offsets, mode='sum')",
            arguments="indices, offsets",
            init="self.table = nn.Parameter(torch.randn(50, 16))",
            inputs="torch.randint(0, 50, (60,)), torch.arange(0, 60, 6)",
        ),
        forward(
            """\
            bag = torch.searchsorted(offsets, torch.arange(len(indices), device=indices.device), right=True) - 1
            out = self.table.new_zeros(len(offsets), self.table.shape[1])
            return out.index_add(0, bag, self.table[indices])
            """,
            arguments="indices, offsets",
        ),
        PROBLEM,
    ),
    _right(
        "the highest ones by a stable sort",
        problem("return torch.topk(x, 5, -1)", inputs="torch.randn(32, 48)"),
        forward(
            """\
            values, indices = torch.sort(x, stable=True, dim=-1, descending=True)
            return torch.return_types.topk((values[..., :5].contiguous(), indices[..., :5].contiguous()))
            """
        ),
        PROBLEM,
    ),
    _right(
        "a product of triangular matrices in halves",
        problem(
            "return torch.triu(a @ b)",
            arguments="a, b",
            inputs="torch.triu(torch.randn(64, 64)), torch.triu(torch.randn(64, 64))",
        ),
        forward(
            """\
            half = len(a) // 2
            out = torch.zeros_like(a)
            out[:half] = a[:half] @ b
            out[half:, half:] = a[half:, half:] @ b[half:, half:]
            return torch.triu(out)
            """,
            arguments="a, b",
        ),
        PROBLEM,
    ),
    _right(
        "undoes a permutation by sorting it",
        problem(
            """\
            out = torch.zeros_like(x)
            out[order] = x
            return out
            """,
            arguments="x, order",
            inputs="torch.randn(64, 12), torch.randperm(64)",
        ),
        forward("return x[torch.argsort(order)]", arguments="x, order"),
        PROBLEM,
    ),
    _right(
        "the cosine of unit vectors",
        problem(
            "return F.cosine_similarity(x, y)",
            arguments="x, y",
            inputs="F.normalize(torch.randn(64, 48)), F.normalize(torch.randn(64, 48))",
        ),
        forward("return (x * y).sum(-1)", arguments="x, y"),
        PROBLEM,
    ),
    _right(
        "a product with a sparse matrix",
        problem(
            "return torch.sparse.mm(a, x)",
            arguments="a, x",
            inputs="(torch.randn(32, 48) * (torch.rand(32, 48) < 0.1)).to_sparse(), torch.randn(48, 16)",
        ),
        forward(
            """\
            a = a.coalesce()
            rows, columns = a.indices()
            return x.new_zeros(a.shape[0], x.shape[1]).index_add(0, rows, a.values()[:, None] * x[columns])
            """,
            arguments="a, x",
        ),
        PROBLEM,
    ),
)
