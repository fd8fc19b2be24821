"""Models that draw random numbers: the same ones after the same seed."""

from tests.gate_files.entry import forward, problem, right
from tests.gate_files.references import DRAWN, DROPOUT, ROWS

_right = right("random numbers")

FILES = (
    _right(
        "dropout as a function", DROPOUT, forward("return F.dropout(self.linear(x), self.dropout.p, self.training)")
    ),
    _right(
        "dropout before a sum",
        problem("return F.dropout(torch.relu(x), 0.5, self.training).sum(dim=1)", inputs=DRAWN, constants=ROWS),
        forward("return F.dropout(x.clamp_min(0), 0.5, self.training).sum(dim=-1)"),
    ),
    _right(
        "dropout of channels",
        problem(
            "return self.dropout(x) + 1",
            init="self.dropout = nn.Dropout2d(0.5)",
            inputs="torch.rand(batch, channels, size, size)",
            constants="batch = 4\nchannels = 8\nsize = 4",
        ),
        forward("return F.dropout2d(x, self.dropout.p, self.training) + 1"),
    ),
    _right(
        "noise",
        problem("return x + 0.1 * torch.randn_like(x)", inputs=DRAWN, constants=ROWS),
        forward("return torch.randn_like(x).mul(0.1).add(x)"),
    ),
)
