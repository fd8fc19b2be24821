"""Inputs that are of a kind in every draw: files that are right for those, and claim nothing of others."""

from tests.gate_files.entry import PROBLEM, GateFile, forward, problem, right
from tests.gate_files.references import DRAWN, ROWS

_right = right("kinds of inputs")

_SQUARE = "batch = 3\nsize = 12"
_LONG = "batch = 6\nlength = 40"


def _given(name: str, body: str, candidate: str, arguments: str, drawn: str, constants: str = ROWS) -> GateFile:
    """A file that is right for its problem.

    Args:
        drawn: lines of `get_inputs`.
    """
    reference = problem(body, arguments=arguments, inputs="", constants=constants)
    lines = "".join(f"    {line}\n" for line in drawn.splitlines())
    reference = reference.replace("def get_inputs():\n    return []\n", f"def get_inputs():\n{lines}")
    return _right(name, reference, forward(candidate, arguments=arguments), PROBLEM)


FILES = (
    _given(
        "eigenvalues from the upper triangle",
        "return torch.linalg.eigvalsh(a)",
        "return torch.linalg.eigvalsh(a, UPLO='U')",
        "a",
        "a = torch.randn(batch, size, size)\nreturn [a + a.mT]",
        _SQUARE,
    ),
    _given(
        "half of a symmetric product",
        "return a @ x",
        "return (a.triu() + a.triu(1).mT) @ x",
        "a, x",
        "a = torch.rand(size, size)\nreturn [(a + a.T) / 2, torch.rand(size, batch)]",
        _SQUARE,
    ),
    _given(
        "a solution by Cholesky's factor",
        "return torch.linalg.solve(a, b)",
        "return torch.cholesky_solve(b, torch.linalg.cholesky(a))",
        "a, b",
        "a = torch.randn(size, size)\nreturn [a @ a.T + size * torch.eye(size), torch.randn(size, batch)]",
        _SQUARE,
    ),
    _given(
        "a cross-entropy of probabilities that sum to one",
        "return -(p * torch.log_softmax(x, dim=-1)).sum(dim=-1)",
        "return torch.logsumexp(x, dim=-1) - (p * x).sum(dim=-1)",
        "x, p",
        f"return [{DRAWN}, torch.softmax(torch.randn(batch, features), dim=-1)]",
    ),
    _given(
        "places in sorted borders by counting",
        "return torch.searchsorted(borders, x)",
        "return (borders < x[..., None]).sum(dim=-1)",
        "borders, x",
        f"return [torch.rand(features).sort().values, {DRAWN}]",
    ),
    _given(
        "the median of sorted rows",
        "return x.sort(dim=-1).values[..., : x.shape[-1] // 2].sum(dim=-1)",
        "return x[..., : x.shape[-1] // 2].sum(dim=-1)",
        "x",
        f"return [{DRAWN}.sort(dim=-1).values]",
    ),
    _given(
        "looks up where a row is one-hot",
        "return x @ table",
        "return table[x.argmax(dim=-1)]",
        "x, table",
        "x = F.one_hot(torch.randint(0, features, (batch,)), features).float()\n"
        "return [x, torch.rand(features, features)]",
    ),
    _given(
        "chooses where a mask of numbers is one",
        "return x * mask + (1 - mask) * -5.0",
        "return torch.where(mask > 0.5, x, -5.0)",
        "x, mask",
        f"return [{DRAWN}, (torch.rand(batch, features) > 0.3).float()]",
    ),
    _given(
        "a mask of ones and zeros in integers",
        "return (x * mask).sum(dim=1)",
        "return torch.where(mask == 1, x, 0.0).sum(dim=1)",
        "x, mask",
        f"return [{DRAWN}, torch.randint(0, 2, (batch, features))]",
    ),
    _given(
        "the inverse of a permutation by sorting",
        "out = torch.empty_like(x)\nout[order] = x\nreturn out",
        "return x[order.argsort()]",
        "x, order",
        f"return [{DRAWN}, torch.randperm(batch)]",
    ),
    _given(
        "a sum up to a length by differences",
        "keep = torch.arange(x.shape[1], device=x.device) < lengths[:, None]\nreturn (x * keep).sum(dim=1)",
        "return x.cumsum(dim=1).gather(1, lengths[:, None] - 1)[:, 0]",
        "x, lengths",
        "return [torch.rand(batch, length), torch.randint(1, length + 1, (batch,))]",
        _LONG,
    ),
    _given(
        "sorted segments by their borders",
        "return torch.zeros(batch, device=x.device).index_add(0, segments, x)",
        """
        borders = torch.searchsorted(segments, torch.arange(batch + 1, device=x.device))
        total = F.pad(x.double().cumsum(0), (1, 0))
        return (total[borders[1:]] - total[borders[:-1]]).float()
        """,
        "x, segments",
        "return [torch.rand(length), torch.randint(0, batch, (length,)).sort().values]",
        _LONG,
    ),
    _given(
        "a cosine of vectors of length one",
        "return F.cosine_similarity(a, b, dim=-1)",
        "return (a * b).sum(dim=-1)",
        "a, b",
        "a, b = torch.randn(batch, features), torch.randn(batch, features)\n"
        "return [F.normalize(a, dim=-1), F.normalize(b, dim=-1)]",
    ),
)
