"""Normalisations and softmax, as functions and by hand."""

from tests.gate_files.entry import PROBLEM, forward, problem, right
from tests.gate_files.references import BATCH_NORM, DRAWN, GROUP_NORM, LAYER_NORM, RMS_NORM, ROWS, SOFTMAX

_right = right("norms")

_TWO_PASSES = """
mean = x.mean(dim=-1, keepdim=True)
variance = (x - mean).pow(2).mean(dim=-1, keepdim=True)
return (x - mean) * torch.rsqrt(variance + self.norm.eps) * self.norm.weight + self.norm.bias
"""

FILES = (
    _right(
        "layer norm as a function",
        LAYER_NORM,
        forward("return F.layer_norm(x, self.norm.normalized_shape, self.norm.weight, self.norm.bias, self.norm.eps)"),
    ),
    _right("layer norm in two passes", LAYER_NORM, forward(_TWO_PASSES), PROBLEM),
    _right(
        "group norm as a function",
        GROUP_NORM,
        forward("return F.group_norm(x, self.norm.num_groups, self.norm.weight, self.norm.bias, self.norm.eps)"),
    ),
    _right(
        "group norm in two passes",
        GROUP_NORM,
        forward(
            """
            norm = self.norm
            rows = x.reshape(x.shape[0], norm.num_groups, -1)
            variance, mean = torch.var_mean(rows, dim=-1, keepdim=True, unbiased=False)
            out = ((rows - mean) * torch.rsqrt(variance + norm.eps)).reshape(x.shape)
            return out * norm.weight[:, None, None] + norm.bias[:, None, None]
            """
        ),
        PROBLEM,
    ),
    _right(
        "instance norm",
        problem(
            "return self.norm(x)",
            init="self.norm = nn.InstanceNorm2d(channels)",
            made_of="channels",
            inputs="torch.rand(batch, channels, size, size)",
            constants="batch = 2\nchannels = 4\nsize = 7",
        ),
        forward("return F.instance_norm(x, eps=self.norm.eps)"),
    ),
    _right(
        "RMS norm as a function",
        RMS_NORM,
        forward("return F.rms_norm(x, x.shape[-1:], eps=1e-5) * self.weight"),
        PROBLEM,
    ),
    _right(
        "batch norm by hand",
        BATCH_NORM,
        forward(
            """
            norm = self.norm
            if not self.training:
                return super().forward(x)
            variance, mean = torch.var_mean(x, dim=0, unbiased=False)
            with torch.no_grad():
                norm.num_batches_tracked += 1
                norm.running_mean.lerp_(mean, norm.momentum)
                norm.running_var.lerp_(variance * (len(x) / (len(x) - 1)), norm.momentum)
            return (x - mean) * torch.rsqrt(variance + norm.eps) * norm.weight + norm.bias
            """
        ),
        PROBLEM,
    ),
    _right("batch norm by its module's own method", BATCH_NORM, forward("return nn.BatchNorm1d.forward(self.norm, x)")),
    _right(
        "rows of length one",
        problem("return F.normalize(x, dim=1)", inputs=DRAWN, constants=ROWS),
        forward("return x / x.norm(dim=1, keepdim=True).clamp_min(1e-12)"),
        PROBLEM,
    ),
    _right(
        "softmax by hand",
        SOFTMAX,
        forward("e = torch.exp(x - x.amax(dim=-1, keepdim=True))\nreturn e / e.sum(dim=-1, keepdim=True)"),
        PROBLEM,
    ),
    _right(
        "softmax in blocks of columns",
        SOFTMAX,
        forward(
            """
            top = x.new_full((x.shape[0], 1), -torch.inf)
            total = torch.zeros_like(top)
            for block in x.split(16, dim=1):
                now = torch.maximum(top, block.amax(dim=1, keepdim=True))
                total = total * torch.exp(top - now) + torch.exp(block - now).sum(dim=1, keepdim=True)
                top = now
            return torch.exp(x - top) / total
            """
        ),
        PROBLEM,
    ),
)
