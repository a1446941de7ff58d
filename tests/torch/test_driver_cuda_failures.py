"""The torch driver on a GPU: after what goes wrong, everything else goes on."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap

import pytest
import torch

import tensorplay_torch as tp

from .cuda_captures import held, record

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("clean")]


def test_a_user_error_leaves_no_trace():
    x = torch.randn(1 << 18, device="cuda")
    record(lambda: x * 2)  # The first capture of a process keeps the generator's state for all.
    before, random = held(), torch.cuda.get_rng_state()
    with pytest.raises(KeyError), tp.graph(tp.CUDAGraph()):
        torch.nn.functional.dropout(x * 2)
        raise KeyError
    assert held() == before
    assert torch.equal(torch.cuda.get_rng_state(), random)
    g, y = record(lambda: x * 2)
    g.replay()
    assert torch.equal(y, x * 2)


@pytest.mark.parametrize("tracked", [True, False])
def test_reading_a_value_breaks_nothing_for_good(tracked):
    """Untracked, the call reaches CUDA and breaks the capture; torch must be mended then."""
    x = torch.randn(1 << 18, device="cuda")
    before = held()
    for _ in range(3):
        with (
            pytest.raises(RuntimeError) as caught,
            tp.graph(tp.CUDAGraph(), track_operands=tracked),
        ):
            torch.nn.functional.dropout(x)
            (x * 2).sum().item()
        assert isinstance(caught.value, tp.OperationRefused) == tracked
        del caught
        torch.nn.functional.dropout(x)  # A generator left capturing would refuse this.
        torch.cuda.empty_cache()
        g, y = record(lambda: torch.nn.functional.dropout(x) * 2)
        g.replay()
        g.close()
        del g, y
    assert held() <= before + 4096


def test_a_fork_that_is_not_joined_is_named():
    x, side = torch.ones(4, device="cuda"), torch.cuda.Stream()
    with pytest.raises(tp.UnjoinedWork), tp.graph(tp.CUDAGraph()):
        x.add_(1)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x.add_(1)
    g, y = record(lambda: x * 2)
    g.replay()
    assert y.eq(2).all()


BROKEN_BODY = """
    import torch, tensorplay_torch as tp
    x, flag = torch.ones(4, device="cuda"), torch.tensor(True, device="cuda")
    g = tp.CUDAGraph()
    try:
        with tp.graph(g, track_operands={tracked}, capture_error_mode="thread_local"):
            x.add_(1)
            with g.if_then(flag):
                y = x * 2
                {illegal}
    except RuntimeError as error:
        print("refused", type(error).__name__)
    torch.cuda.synchronize()
    torch.nn.functional.dropout(x)
    g = tp.CUDAGraph()
    with tp.graph(g, capture_error_mode="thread_local"), g.if_then(flag):
        x.add_(1)
    g.replay()
    torch.cuda.synchronize()
    print("well", x.tolist())
"""


@pytest.mark.parametrize("tracked", [True, False])
@pytest.mark.parametrize("illegal", ["y.sum().item()", "1 / 0", "raise RuntimeError('mine')"])
def test_a_body_that_breaks_does_not_end_the_process(tracked, illegal):
    source = textwrap.dedent(BROKEN_BODY).format(tracked=tracked, illegal=illegal)
    source = source.replace("except RuntimeError", "except (RuntimeError, ZeroDivisionError)")
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == "well [2.0, 2.0, 2.0, 2.0]", done.stdout


def test_a_host_tensor_is_not_written_by_captured_work():
    x, on_host = torch.ones(4, device="cuda"), torch.zeros(4)
    with pytest.raises(tp.OperationRefused), tp.graph(tp.CUDAGraph()):
        x.add_(1)
        on_host.add_(1)


def test_an_input_that_died_is_found_before_the_launch():
    total, operands = torch.zeros(8, device="cuda"), [torch.ones(8, device="cuda")]
    g, _ = record(lambda: total.add_(operands[0]), check_input_liveness=True)
    g.replay()
    operands.clear()
    gc.collect()
    with pytest.raises(tp.StaleGraph, match="died"):
        g.replay()
    assert total.eq(1).all()


def test_running_out_of_memory_in_a_capture_is_survived():
    with pytest.raises(torch.OutOfMemoryError), tp.graph(tp.CUDAGraph()):
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    g, y = record(lambda: torch.ones(4, device="cuda") * 2)
    g.replay()
    assert y.eq(2).all()
