"""Losses: one number, or one a row."""

from tests.gate_files.entry import PROBLEM, forward, problem, right

_right = right("losses")

_CONSTANTS = "batch = 8\nclasses = 10"
_TWO = "torch.rand(batch, classes), torch.rand(batch, classes)"
_CLASSES = "torch.rand(batch, classes), torch.randint(0, classes, (batch,))"


def _loss(body: str, inputs: str, arguments: str = "x, t") -> str:
    return problem(body, inputs=inputs, arguments=arguments, constants=_CONSTANTS)


FILES = (
    _right(
        "mean squared error",
        _loss("return F.mse_loss(x, t)", _TWO),
        forward("return (x - t).pow(2).mean()", arguments="x, t"),
    ),
    _right(
        "smooth L1",
        _loss("return F.smooth_l1_loss(x, t)", _TWO),
        forward(
            "away = (x - t).abs()\nreturn torch.where(away < 1, 0.5 * away * away, away - 0.5).mean()", arguments="x, t"
        ),
    ),
    _right(
        "hinge",
        _loss(
            "return torch.mean(torch.clamp(1 - x * t, min=0))",
            "torch.randn(batch), torch.randint(0, 2, (batch,)).float() * 2 - 1",
        ),
        forward("return F.relu(1 - x * t).mean()", arguments="x, t"),
    ),
    _right(
        "cross-entropy by its log-softmax",
        _loss("return F.cross_entropy(x, t)", _CLASSES),
        forward("return -F.log_softmax(x, dim=1).gather(1, t[:, None]).mean()", arguments="x, t"),
    ),
    _right(
        "cross-entropy by log-sum-exp",
        _loss("return F.cross_entropy(x, t)", _CLASSES),
        forward("return (torch.logsumexp(x, dim=1) - x.gather(1, t[:, None])[:, 0]).mean()", arguments="x, t"),
        PROBLEM,
    ),
    _right(
        "Kullback-Leibler divergence",
        _loss(
            "return F.kl_div(torch.log(x), t, reduction='batchmean')",
            "torch.rand(batch, classes).softmax(dim=-1), torch.rand(batch, classes).softmax(dim=-1)",
        ),
        forward("return (torch.xlogy(t, t) - t * torch.log(x)).sum() / x.shape[0]", arguments="x, t"),
        PROBLEM,
    ),
    _right(
        "triplets",
        problem(
            "return self.loss(a, p, n)",
            arguments="a, p, n",
            init="self.loss = nn.TripletMarginLoss(margin=1.0)",
            inputs="torch.rand(batch, classes), torch.rand(batch, classes), torch.rand(batch, classes)",
            constants=_CONSTANTS,
        ),
        forward(
            "return F.relu(F.pairwise_distance(a, p) - F.pairwise_distance(a, n) + self.loss.margin).mean()",
            arguments="a, p, n",
        ),
        PROBLEM,
    ),
    _right(
        "cosine distance by hand",
        _loss("return (1 - F.cosine_similarity(x, t, dim=1)).mean()", _TWO),
        forward(
            """
            norms = x.norm(dim=1).clamp_min(1e-8) * t.norm(dim=1).clamp_min(1e-8)
            return (1 - (x * t).sum(dim=1) / norms).mean()
            """,
            arguments="x, t",
        ),
        PROBLEM,
    ),
    _right(
        "sum of everything, in two steps",
        _loss("return x.sum()", "torch.rand(batch, classes)", "x"),
        forward("return x.sum(dim=0).sum()"),
    ),
    _right(
        "Frobenius norm",
        _loss("return torch.norm(x)", "torch.rand(batch, classes)", "x"),
        forward("return x.pow(2).sum().sqrt()"),
        PROBLEM,
    ),
)
