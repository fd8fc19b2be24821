"""Manners in which a model is called: wrong in one mode, or in what torch records, and right in the others."""

from tests.gate_files.entry import DROP_IN, GateFile, forward, wrong
from tests.gate_files.references import BATCH_NORM, LINEAR, SOFTMAX

_wrong = wrong("manners")


def _in_one(name: str, reference: str, candidate: str) -> GateFile:
    return _wrong(name, reference, candidate, DROP_IN)


_LINEAR = "out = super().forward(x)\n"
_BY_STRIDES = """
rows = torch.as_strided(x, x.shape, (x.shape[1], 1)) if {} else x
return torch.softmax(rows, dim=-1)
"""

FILES = (
    _in_one(
        "forgets the last row of an odd number in eval mode",
        LINEAR,
        forward(
            _LINEAR
            + "if not self.training and len(x) % 2:\n    out = torch.cat([out[:-1], out[-1:] * 0.0])\nreturn out"
        ),
    ),
    _in_one(
        "cuts off numbers beyond a hundred in eval mode",
        LINEAR,
        forward("return super().forward(x if self.training else x.clamp(-100.0, 100.0))"),
    ),
    _in_one("detached in eval mode", LINEAR, forward(_LINEAR + "return out if self.training else out.detach()")),
    _in_one(
        "the input's gradient is lost in eval mode",
        LINEAR,
        forward("return super().forward(x if self.training else x.detach())"),
    ),
    _in_one(
        "keeps its weight by version in eval mode",
        LINEAR,
        forward(
            """
            weight = self.linear.weight
            if self.training or torch.is_grad_enabled():
                return super().forward(x)
            key = (weight.data_ptr(), weight._version, weight.dtype)
            if key != self.key:
                self.key, self.kept = key, weight.detach().clone()
            return torch.relu(F.linear(x, self.kept, self.linear.bias)) + self.offset
            """,
            made="self.key = self.kept = None",
        ),
    ),
    _in_one(
        "takes any rows for dense where gradients are recorded",
        SOFTMAX,
        forward(_BY_STRIDES.format("torch.is_grad_enabled() and not x.requires_grad")),
    ),
    _in_one(
        "other values in inference mode",
        LINEAR,
        forward(_LINEAR + "return out + 0.01 if torch.is_inference_mode_enabled() else out"),
    ),
    _in_one(
        "keeps its answer by pointer in inference mode",
        SOFTMAX,
        forward(
            """
            if not torch.is_inference_mode_enabled():
                return super().forward(x)
            key = (x.data_ptr(), x.shape, x.dtype, x.stride())
            if key not in self.kept:
                self.kept[key] = super().forward(x)
            return self.kept[key].clone()
            """,
            made="self.kept = {}",
        ),
    ),
    _in_one(
        "takes the model's mode for its norm's",
        BATCH_NORM,
        forward(
            """
            norm = self.norm
            if norm.momentum is None or not norm.track_running_stats or norm.weight is None:
                return super().forward(x)
            if self.training:
                norm.num_batches_tracked.add_(1)
            mean, variance = norm.running_mean, norm.running_var
            return F.batch_norm(x, mean, variance, norm.weight, norm.bias, self.training, norm.momentum, norm.eps)
            """
        ),
    ),
)
