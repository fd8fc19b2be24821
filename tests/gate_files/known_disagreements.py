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
    "answers right where tunebench is imported": "passes: it knows its judge, and is another file elsewhere",
    "changes the reference in its own file": "passes where the file is its own reference, which `--reference` prevents",
    # Right files that are refused.
    "the highest ones by a stable sort": "refused: of equal values torch.topk may choose any",
    "a product with a sparse matrix": "cannot be asked: a sparse tensor does not cross between processes",
    "a weight of a direction and a length": "cannot be asked: torch's weight_norm ends the reference's process",
    "a bias that may be left out": "no drop-in: an option that may be a tensor is given a number",
}
"""Each with what the gate says or misses."""
