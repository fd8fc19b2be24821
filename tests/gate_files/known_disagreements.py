"""Files about which the gate says something else than what is true; `tests.benchmarks.gate_files` says which changed.

The suite asks the gate about none of these. What the gate has learned to judge goes.
"""

from __future__ import annotations

from collections.abc import Mapping

KNOWN_DISAGREEMENTS: Mapping[str, str] = {
    # Wrong files that pass, or of which only the stronger claim is refused.
    "looks up inputs that it has seen": "passes: every answer is right, and work is skipped where an input comes again",
    "another axis where nothing is masked": "only no drop-in: no mask is all true at the problem's own sizes",
    "sums integers in 32 bits": "only no drop-in: integers stay as small as they are drawn",
    "squares in half precision": "passes: halves are not so large that their squares overflow",
    "nothing for an input of zeros": "passes: no input is all zeros",
    "a straight line for small inputs": "only no drop-in: no input is small everywhere",
    "leaves an optional mask out": "passes: an option that `get_inputs` leaves out is given a number and not a mask",
    # Right files that are refused.
    "the highest ones by a stable sort": "refused: of equal values torch.topk may choose any",
    "undoes a permutation by sorting it": "refused: a permutation with one index changed is none",
    "a product with a sparse matrix": "cannot be asked: a sparse tensor does not cross between processes",
    "a weight of a direction and a length": "cannot be asked: torch's weight_norm ends the reference's process",
    "a bias that may be left out": "no drop-in: an option that may be a tensor is given a number",
}
"""Each with what the gate says or misses."""
