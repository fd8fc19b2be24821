"""Attention and recurrent networks."""

from tests.gate_files.entry import PROBLEM, forward, problem, right

_right = right("networks")

_HEADS = "batch = 2\nheads = 2\nlength = 10\nwidth = 8"
_QKV = ", ".join(["torch.rand(batch, heads, length, width)"] * 3)


def _attention(body: str) -> str:
    return problem(body, arguments="q, k, v", inputs=_QKV, constants=_HEADS)


def _recurrent(body: str, kind: str) -> str:
    return problem(
        body,
        init=f"self.cell = nn.{kind}(width, hidden, batch_first=True)",
        made_of="width, hidden",
        inputs="torch.rand(batch, length, width)",
        constants="batch = 3\nlength = 5\nwidth = 6\nhidden = 8",
    )


_GATES = """
cell = self.cell
h = x.new_zeros(x.shape[0], cell.hidden_size)
c, rows = torch.zeros_like(h), []
for step in x.unbind(1):
    gates = F.linear(step, cell.weight_ih_l0, cell.bias_ih_l0) + F.linear(h, cell.weight_hh_l0, cell.bias_hh_l0)
    i, f, g, o = gates.chunk(4, dim=1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    h = o.sigmoid() * c.tanh()
    rows.append(h)
"""

FILES = (
    _right(
        "attention by hand",
        _attention("return F.scaled_dot_product_attention(q, k, v)"),
        forward("return torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, dim=-1) @ v", arguments="q, k, v"),
        PROBLEM,
    ),
    _right(
        "causal attention by hand",
        _attention("return F.scaled_dot_product_attention(q, k, v, is_causal=True)"),
        forward(
            """
            scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
            later = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).triu(1)
            return torch.softmax(scores.masked_fill(later, -torch.inf), dim=-1) @ v
            """,
            arguments="q, k, v",
        ),
        PROBLEM,
    ),
    _right(
        "attention in one call",
        _attention("return torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, dim=-1) @ v"),
        forward("return F.scaled_dot_product_attention(q, k, v)", arguments="q, k, v"),
        PROBLEM,
    ),
    _right(
        "attention of several heads, with its weights",
        problem(
            "return self.attention(x, x, x)",
            init="self.attention = nn.MultiheadAttention(width, 2, batch_first=True)",
            made_of="width",
            inputs="torch.rand(batch, length, width)",
            constants="batch = 2\nlength = 6\nwidth = 8",
        ),
        forward("return self.attention(query=x, key=x, value=x, need_weights=True)"),
    ),
    _right(
        "LSTM, all that it returns",
        _recurrent("return self.cell(x)", "LSTM"),
        forward(_GATES + "return torch.stack(rows, dim=1), (h[None], c[None])"),
        PROBLEM,
    ),
    _right(
        "LSTM, the last state",
        _recurrent("return self.cell(x)[0][:, -1]", "LSTM"),
        forward(_GATES + "return h"),
        PROBLEM,
    ),
    _right(
        "GRU by hand",
        _recurrent("return self.cell(x)[0]", "GRU"),
        forward(
            """
            cell = self.cell
            h, rows = x.new_zeros(x.shape[0], cell.hidden_size), []
            for step in x.unbind(1):
                a, b, c = F.linear(step, cell.weight_ih_l0, cell.bias_ih_l0).chunk(3, dim=1)
                d, e, f = F.linear(h, cell.weight_hh_l0, cell.bias_hh_l0).chunk(3, dim=1)
                keep = torch.sigmoid(b + e)
                h = (1 - keep) * torch.tanh(c + torch.sigmoid(a + d) * f) + keep * h
                rows.append(h)
            return torch.stack(rows, dim=1)
            """
        ),
        PROBLEM,
    ),
    _right(
        "RNN by hand",
        _recurrent("return self.cell(x)[0]", "RNN"),
        forward(
            """
            cell = self.cell
            h, rows = x.new_zeros(x.shape[0], cell.hidden_size), []
            given = F.linear(x, cell.weight_ih_l0, cell.bias_ih_l0)
            for step in given.unbind(1):
                h = torch.tanh(step + F.linear(h, cell.weight_hh_l0, cell.bias_hh_l0))
                rows.append(h)
            return torch.stack(rows, dim=1)
            """
        ),
        PROBLEM,
    ),
)
