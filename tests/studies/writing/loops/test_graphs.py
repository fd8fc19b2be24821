"""Models of random operations are computed by passes as the reference computes them."""

from __future__ import annotations

from itertools import count, islice
from pathlib import Path

import pytest
import torch
from programs import run
from random_graphs import DTYPES, difference, graph_of

_MODELS = 4


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, of sizes that nobody would choose
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def test_passes_of_random_models_agree_with_the_reference(dtype: torch.dtype, tmp_path: Path) -> None:
    graphs = list(islice((graph for graph in map(graph_of, count()) if graph.dtype is dtype), _MODELS))
    results = run({graph.name: graph.case for graph in graphs}, tmp_path, str(dtype).removeprefix("torch."))
    found = {graph: result for graph in graphs if isinstance(result := results[graph.name], torch.Tensor)}
    assert found, results
    for graph, result in found.items():
        assert not (told := difference(graph, graph.inputs, result)), f"seed {graph.seed}: {told}\n{graph.code}"


def test_the_same_seed_draws_the_same_model() -> None:
    one, other = graph_of(5), graph_of(5)
    assert one.code == other.code
    assert all(torch.equal(one.inputs[name], other.inputs[name]) for name in one.inputs)
