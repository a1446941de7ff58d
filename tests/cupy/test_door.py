"""The public door: core's whole graph API bound to the CuPy driver, and what is CuPy's own."""

from __future__ import annotations

import subprocess
import sys

import pytest

import tensorplay_core as core
import tensorplay_cupy as tp

# How a driver is chosen and spoken to is for those who write one.
NOT_BOUND = {"select", "Runtime", "SupportsCudaStream"}


def test_it_has_all_of_the_graph_api():
    assert set(core.__all__) - NOT_BOUND <= set(tp.__all__)


def test_what_chooses_a_driver_is_bound_to_this_one():
    assert tp.CUDAGraph.driver == "cupy"
    assert issubclass(tp.CUDAGraph, core.CUDAGraph)
    assert issubclass(tp.graph, core.graph)
    for name in ("cond", "while_loop", "graph_pool_handle", "is_current_stream_capturing"):
        assert getattr(tp, name) is not getattr(core, name)


def test_errors_and_what_is_bound_to_nothing_are_cores_own():
    for name in set(core.__all__) & set(tp.__all__):
        if isinstance(getattr(core, name), type) and issubclass(getattr(core, name), Exception):
            assert getattr(tp, name) is getattr(core, name)
    assert tp.export_dot is core.export_dot
    assert tp.close_all is core.close_all


def test_modules_come_when_they_are_asked_for():
    code = (
        "import sys, tensorplay_cupy as tp\n"
        "assert 'cupy' not in sys.modules\n"
        "assert tp.linalg.matmul and tp.random.Generator\n"
        "assert 'nvmath' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nothing"):
        tp.nothing  # noqa: B018


def test_a_graph_block_takes_a_graph_only():
    with pytest.raises(tp.ArgumentTypeError), tp.graph(object()):
        pytest.fail("the block was entered")
