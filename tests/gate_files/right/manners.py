"""Models that do something else in one mode, or where torch records something else, and rightly so."""

from tests.gate_files.entry import forward, right
from tests.gate_files.references import BATCH_NORM, LINEAR, SOFTMAX

_right = right("manners")

FILES = (
    _right(
        "rows in pairs in eval mode",
        LINEAR,
        forward(
            """
            if self.training or len(x) < 3:
                return super().forward(x)
            even = len(x) // 2 * 2
            return torch.cat([super(ModelNew, self).forward(part) for part in (x[:even], x[even:])])
            """
        ),
    ),
    _right(
        "adds the bias first in eval mode",
        LINEAR,
        forward(
            """
            if self.training:
                return super().forward(x)
            return torch.relu(torch.addmm(self.linear.bias, x, self.linear.weight.t())) + self.offset
            """
        ),
    ),
    _right(
        "works in place where nothing is recorded",
        LINEAR,
        forward(
            """
            if torch.is_grad_enabled():
                return super().forward(x)
            return F.linear(x, self.linear.weight, self.linear.bias).relu_().add_(self.offset)
            """
        ),
    ),
    _right(
        "keeps its weight as long as it is equal in eval mode",
        LINEAR,
        forward(
            """
            weight = self.linear.weight
            if self.training or torch.is_grad_enabled() or torch.compiler.is_compiling():
                return super().forward(x)
            kept = self.kept
            if kept is None or kept.dtype != weight.dtype or not torch.equal(kept, weight):
                self.kept = kept = weight.detach().clone()
            return torch.relu(F.linear(x, kept, self.linear.bias)) + self.offset
            """,
            made="self.kept = None",
        ),
    ),
    _right(
        "makes rows dense where gradients are recorded",
        SOFTMAX,
        forward(
            """
            dense = torch.is_grad_enabled() and x.dim() == 2 and x.stride() == (1, x.shape[0])
            return torch.softmax(x.t().contiguous().t() if dense else x, dim=-1)
            """
        ),
    ),
    _right(
        "another function in inference mode",
        SOFTMAX,
        forward("return F.softmax(x, -1) if torch.is_inference_mode_enabled() else super().forward(x)"),
    ),
    _right(
        "batch norm as a function, in its norm's mode",
        BATCH_NORM,
        forward(
            """
            norm = self.norm
            if norm.momentum is None or not norm.track_running_stats or norm.weight is None:
                return super().forward(x)
            if norm.training:
                norm.num_batches_tracked.add_(1)
            mean, variance = norm.running_mean, norm.running_var
            return F.batch_norm(x, mean, variance, norm.weight, norm.bias, norm.training, norm.momentum, norm.eps)
            """
        ),
    ),
)
