"""The dispatch mode and torch.compile: neither looks into the other."""

from __future__ import annotations

from typing import Any

# In a process of its own: what torch guards on is the state of the whole process, which tests
# before this one have moved.
PROGRAM = """
import torch
from tensorplay_torch.tracking.dispatch import CaptureDispatch


class Log:
    def __init__(self):
        self.names = []

    def before(self, func, args, kwargs):
        # What a traced frame would make a graph of.
        assert all(isinstance(one.shape, torch.Size) for one in args if torch.is_tensor(one))
        self.names.append(str(func))

    def after(self, func, args, kwargs, result):
        assert torch.is_tensor(result)


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
    first = work(x)
    made = len(graphs)
    second = work(x)
finally:
    dispatch.stop()
assert first.tolist() == second.tolist() == [4.0] * 3
assert made == len(graphs) == 2, graphs
assert log.names == ["aten.add.Tensor", "aten.mul.Tensor"] * 2, log.names
print("compiled once")
"""


def test_a_compiled_function_stays_compiled_and_no_listener_is_traced(forked: Any) -> None:
    done = forked("-c", PROGRAM)
    assert (done.returncode, done.stdout) == (0, "compiled once\n"), done.stderr
