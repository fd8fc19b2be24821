"""References that several files of the set are submitted for; sizes are small, so that a check is quick."""

from tests.gate_files.entry import problem

ROWS = "batch = 8\nfeatures = 64"
DRAWN = "torch.rand(batch, features)"

SCALE = problem("return x * 2.5", inputs="torch.rand(batch, features)", constants="batch = 8\nfeatures = 33")
RELU = problem("return torch.relu(x)", inputs=DRAWN, constants=ROWS)
SOFTMAX = problem("return torch.softmax(x, dim=-1)", inputs=DRAWN, constants=ROWS)
GELU = problem("return F.gelu(x)", inputs=DRAWN, constants=ROWS)
TANH = problem("return torch.tanh(x)", inputs=DRAWN, constants=ROWS)
ROW_SUMS = problem("return x.sum(dim=1)", inputs=DRAWN, constants=ROWS)

BARE = problem("return torch.tanh(x) * 2.0", inputs="torch.rand(8, 36)")
"""Without constants: nothing says what its sizes are but the tensors."""

LINEAR = problem(
    "return torch.relu(self.linear(x)) + self.offset",
    init="self.linear = nn.Linear(features, features)\nself.offset = offset",
    made_of="features, offset",
    inputs=DRAWN,
    constants="batch = 12\nfeatures = 10\noffset = 0.5",
)

DEEP = problem(
    "return x @ self.weight.t()",
    init="self.weight = nn.Parameter(torch.rand(features, depth))",
    made_of="features, depth",
    inputs="torch.rand(batch, depth)",
    constants="batch = 16\ndepth = 1024\nfeatures = 16",
)

MATMUL = problem(
    "return a @ b",
    arguments="a, b",
    inputs="torch.rand(rows, depth), torch.rand(depth, columns)",
    constants="rows = 12\ndepth = 20\ncolumns = 9",
)

LAYER_NORM = problem(
    "return self.norm(x)", init="self.norm = nn.LayerNorm(features)", made_of="features", inputs=DRAWN, constants=ROWS
)

RMS_NORM = problem(
    "return self.weight * x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + 1e-5)",
    init="self.weight = nn.Parameter(torch.ones(features))",
    made_of="features",
    inputs=DRAWN,
    constants=ROWS,
)

BATCH_NORM = problem(
    "return self.norm(x)",
    init="self.norm = nn.BatchNorm1d(features)",
    made_of="features",
    inputs=DRAWN,
    constants="batch = 16\nfeatures = 12",
)

GROUP_NORM = problem(
    "return self.norm(x)",
    init="self.norm = nn.GroupNorm(groups, channels)",
    made_of="groups, channels",
    inputs="torch.rand(batch, channels, size, size)",
    constants="batch = 3\nchannels = 8\ngroups = 4\nsize = 6",
)

CONV = problem(
    "return torch.relu(self.conv(x))",
    init="self.conv = nn.Conv2d(channels, filters, kernel, padding=1)",
    made_of="channels, filters, kernel",
    inputs="torch.rand(batch, channels, size, size)",
    constants="batch = 2\nchannels = 3\nfilters = 4\nkernel = 3\nsize = 8",
)

LEAKY = problem(
    "return self.activation(self.linear(x))",
    init="self.linear = nn.Linear(features, features)\nself.activation = nn.LeakyReLU(0.2)",
    made_of="features",
    inputs=DRAWN,
    constants="batch = 12\nfeatures = 10",
)

DROPOUT = problem(
    "return self.dropout(self.linear(x))",
    init="self.linear = nn.Linear(features, features)\nself.dropout = nn.Dropout(0.25)",
    made_of="features",
    inputs=DRAWN,
    constants="batch = 12\nfeatures = 16",
)

TRIANGLE = problem("return torch.tril(x)", inputs="torch.rand(size, size)", constants="size = 160")
