"""The dispatch mode and torch.compile: neither looks into the other."""

from __future__ import annotations

import pytest
import torch

from tensorplay_torch.tracking.dispatch import CaptureDispatch


class Log:
    def __init__(self) -> None:
        self.names: list[str] = []

    def before(self, func, args, kwargs):
        # What a traced frame would make a graph of.
        assert all(isinstance(one.shape, torch.Size) for one in args if torch.is_tensor(one))
        self.names.append(str(func))

    def after(self, func, args, kwargs, result):
        assert torch.is_tensor(result)


@pytest.fixture
def fresh():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.usefixtures("fresh")
def test_a_compiled_function_stays_compiled_and_no_listener_is_traced():
    graphs = []

    def backend(module, inputs):
        graphs.append([node.target for node in module.graph.nodes if node.op == "call_function"])
        return module.forward

    @torch.compile(backend=backend)
    def work(x):
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2

    x, log = torch.ones(3), Log()
    dispatch = CaptureDispatch([log])
    dispatch.start()
    try:
        # The first compilation of a process may change what torch guards on; so two calls.
        results = [work(x), work(x)]
        made = len(graphs)
        results.append(work(x))
    finally:
        dispatch.stop()
    assert [result.tolist() for result in results] == [[4.0] * 3] * 3
    assert made == len(graphs)
    assert all(len(graph) == 1 for graph in graphs)
    assert log.names == ["aten.add.Tensor", "aten.mul.Tensor"] * 3
