"""What torch's own tests of CUDA graphs ask: captures, native handles, torch's own graphs."""

from __future__ import annotations

import threading

import pytest
import torch

import tensorplay_torch as tp

from .checklist import captured, gpu

# Captures


def test_capturing_is_seen_before_inside_and_after(device):
    told = [tp.is_current_stream_capturing()]
    made = tp.CUDAGraph(device=device)
    x = torch.ones(3, device=device)
    with tp.graph(made):
        x + 1
        told.append(tp.is_current_stream_capturing())
    told.append(tp.is_current_stream_capturing())
    assert told[0] is told[2] is False
    # Without a device named it is the current one that is asked.
    assert told[1] is (device == "cuda" or not torch.cuda.is_available())


def test_ten_additions_are_one_replay(device):
    x = torch.zeros(1000, device=device)

    def work():
        y = x
        for _ in range(10):
            y = y + 1
        return y

    made, y = captured(work, device)
    made.replay()
    assert y.sum().item() == 10 * 1000
    x.add_(1)
    made.replay()
    assert y.sum().item() == 11 * 1000


@gpu
def test_a_capture_stands_inside_a_stream_of_the_users():
    x, side = torch.ones(3, device="cuda"), torch.cuda.Stream()
    made = tp.CUDAGraph()
    with torch.cuda.stream(side), tp.graph(made, stream=side):
        y = x + 1
        assert torch.cuda.current_stream() == side
    made.replay()
    assert y.tolist() == [2.0] * 3


@gpu
def test_two_streams_in_one_graph_are_drawn_and_dumped(tmp_path):
    x, path = torch.ones(3, device="cuda"), tmp_path / "graph.dot"

    def work():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        y = x * 2
        with torch.cuda.stream(side):
            z = x * 3
        torch.cuda.current_stream().wait_stream(side)
        return y + z

    made, _ = captured(work, "cuda")
    made.enable_debug_mode()
    made.debug_dump(str(path))
    assert "digraph" in path.read_text()
    joined = [before for before, after in made.topology.edges if after == 2]
    assert len(joined) == 2


@gpu
def test_timing_events_inside_a_graph_tell_the_time_of_each_replay():
    x = torch.ones(1 << 20, device="cuda")
    start = torch.cuda.Event(enable_timing=True, external=True)
    stop = torch.cuda.Event(enable_timing=True, external=True)

    def work():
        start.record()
        for _ in range(20):
            x.mul_(1.0)
        stop.record()

    made, _ = captured(work, "cuda")
    for _ in range(2):
        made.replay()
        torch.cuda.synchronize()
        assert start.elapsed_time(stop) > 0
    assert {"event_record"} <= set(made.topology.kinds())


@gpu
def test_graphs_record_and_wait_for_an_event_of_the_outside():
    x, out = torch.zeros(1 << 10, device="cuda"), torch.zeros(1 << 10, device="cuda")
    event = torch.cuda.Event(external=True)

    def first():
        x.add_(1)
        event.record()

    def second():
        event.wait()
        out.copy_(x)

    one, _ = captured(first, "cuda")
    two, _ = captured(second, "cuda")
    assert one.topology.count("event_record") == two.topology.count("event_wait") == 1
    for rounds in (1, 2):
        one.replay()
        two.replay()
        assert out.unique().tolist() == [float(rounds)]


@gpu
def test_the_default_stream_is_refused_and_nothing_is_broken():
    with (
        pytest.raises(tp.CaptureError, match="default stream"),
        tp.graph(tp.CUDAGraph(), stream=torch.cuda.default_stream()),
    ):
        pass
    x = torch.ones(3, device="cuda")
    made, y = captured(lambda: x + 1, "cuda")
    made.replay()
    assert y.tolist() == [2.0] * 3


def test_reading_a_value_is_refused(device):
    x = torch.ones(3, device=device)
    with pytest.raises(tp.CaptureError):
        captured(lambda: x.sum().item(), device)
    made, y = captured(lambda: x.sum(), device)
    made.replay()
    assert y.item() == 3.0


@pytest.mark.parametrize("mode", ["thread_local", "relaxed"])
@gpu
def test_another_thread_may_allocate_meanwhile(mode):
    x, made = torch.ones(3, device="cuda"), tp.CUDAGraph()
    found: list[object] = []

    def allocate():
        try:
            torch.cuda.empty_cache()
            found.append(torch.empty(40 << 20, dtype=torch.uint8, device="cuda"))
        except RuntimeError as error:
            found.append(error)

    with tp.graph(made, capture_error_mode=mode):
        y = x + 1
        thread = threading.Thread(target=allocate)
        thread.start()
        thread.join()
    assert isinstance(found[0], torch.Tensor)
    made.replay()
    assert y.tolist() == [2.0] * 3


# Native handles


@pytest.mark.parametrize("keep", [True, False])
def test_native_graphs_are_there_when_torchs_are(device, keep):
    x = torch.ones(3, device=device)
    made = tp.CUDAGraph(keep_graph=keep, device=device)
    with pytest.raises(tp.GraphStateError):
        made.raw_cuda_graph()
    with tp.graph(made):
        y = x + 1
    assert made.raw_cuda_graph() is not None
    if keep:
        with pytest.raises(tp.GraphStateError):
            made.raw_cuda_graph_exec()
        made.instantiate()
    assert made.raw_cuda_graph_exec() is not None
    made.replay()
    assert y.tolist() == [2.0] * 3
    made.reset()
    with pytest.raises(tp.GraphStateError):
        made.raw_cuda_graph()


def test_a_kept_graph_may_be_instantiated_twice_reset_and_captured_anew(device):
    x, made = torch.ones(3, device=device), tp.CUDAGraph(keep_graph=True, device=device)
    for step in (1, 2):
        with tp.graph(made):
            y = x + step
        for _ in range(2):
            made.instantiate()
            made.replay()
            assert y.tolist() == [1.0 + step] * 3
        made.reset()


@gpu
def test_native_handles_are_those_of_the_runtime():
    from cuda.bindings import driver

    x = torch.ones(3, device="cuda")
    made, _ = captured(lambda: x + 1, "cuda")
    code, _, count = driver.cuGraphGetNodes(driver.CUgraph(made.raw_cuda_graph()))
    assert (int(code), count) == (0, 1)


# Torch's own graphs


def test_a_graph_of_torchs_own_is_refused_with_what_to_do(device):
    theirs = torch.cuda.CUDAGraph() if torch.cuda.is_available() else torch.cuda.CUDAGraph
    with pytest.raises(tp.ArgumentTypeError, match="CUDAGraph") as caught:
        tp.graph(theirs)
    assert "none of this library's" in str(caught.value)
    assert "pool=" in caught.value.remedy


@gpu
def test_nodes_of_other_kinds_are_annotated_too():
    x, out = torch.ones(3, device="cuda"), torch.zeros(3, device="cuda")
    event, made = torch.cuda.Event(external=True), tp.CUDAGraph()
    with tp.graph(made, enable_annotations=True), tp.annotate("kinds"):
        out.copy_(x)
        out.zero_()
        event.record()
        out.add_(x)
    kinds = {node.kind: node.attributes.get("annotation") for node in made.topology.nodes}
    assert len(kinds) >= 2
    assert set(kinds.values()) == {"kinds"}
