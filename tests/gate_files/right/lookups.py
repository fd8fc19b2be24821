"""Embeddings: integers in, rows of a table out."""

from tests.gate_files.entry import PROBLEM, forward, problem, right

_right = right("embeddings")

_CONSTANTS = "words = 20\nwidth = 12\nbatch = 4\nlength = 6"
_WORDS = "torch.randint(0, words, (batch, length))"
_TABLE = "self.table = nn.Embedding(words, width)"


def _table(body: str, init: str = _TABLE) -> str:
    return problem(body, init=init, made_of="words, width", inputs=_WORDS, constants=_CONSTANTS)


FILES = (
    _right(
        "rows of a table", _table("return self.table(x)"), forward("return self.table.weight[x]"), flags=("--dense",)
    ),
    _right("rows as a function", _table("return self.table(x)"), forward("return F.embedding(x, self.table.weight)")),
    _right(
        "means of rows",
        _table("return self.table(x)", "self.table = nn.EmbeddingBag(words, width, mode='mean')"),
        forward("return self.table.weight[x].mean(dim=1)"),
        PROBLEM,
    ),
    _right(
        "words and their places",
        problem(
            "return self.table(x) + self.places(torch.arange(x.shape[1], device=x.device))",
            init=_TABLE + "\nself.places = nn.Embedding(length, width)",
            made_of="words, width, length",
            inputs=_WORDS,
            constants=_CONSTANTS,
        ),
        forward("return self.table.weight[x] + self.places.weight[: x.shape[1]]"),
        flags=("--dense",),
    ),
)
