"""The torch driver on stand-ins for torch's CUDA graphs and for core's CUDA driver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest
import torch

from tensorplay_core import CUDAGraph as CoreGraph
from tensorplay_core import graph as capture
from tensorplay_core import reclaim
from tensorplay_core import runtime as runtimes
from tensorplay_core.runtime import Runtime
from tensorplay_torch import _private
from tensorplay_torch.driver import load
from tensorplay_torch.resources import generators
from tensorplay_torch.tracking import turns

from .cuda_beneath import Native
from .cuda_world import Stream, World, event_class, graph_class


@contextmanager
def played(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A world with the torch driver on it, in torch's place; in the end nothing is left open."""
    world = World()
    cuda = torch.cuda
    for name, value in {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": lambda: None,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "device": lambda index: nullcontext(),
        "stream": world.stream,
        "set_stream": lambda stream: setattr(world, "current", stream.cuda_stream),
        "synchronize": world.synchronize,
        "empty_cache": lambda: None,
        "mem_get_info": lambda device=None: (1, 4),
        "memory_snapshot": lambda native, **_: world.segments(native),
        "is_current_stream_capturing": lambda: world.current in world.capturing,
        "graph_pool_handle": world.handle,
        "Stream": Stream,
        "ExternalStream": Stream,
        "CUDAGraph": graph_class(world),
        "Event": event_class(world),
        "default_generators": (world.generator,),
        "current_stream": lambda device=None: Stream(world.current),
        "default_stream": lambda device=None: Stream(0),
    }.items():
        monkeypatch.setattr(cuda, name, value)
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: torch.empty(1))
    for name, value in {
        "current_raw_stream": lambda index: world.current,
        "begin_allocate_stream": world.begin_route,
        "begin_allocate_thread": world.begin_route,
        "end_allocate": world.end_route,
        "release_pool": world.release,
        "host_empty_cache": lambda: None,
    }.items():
        monkeypatch.setitem(_private.PRIVATE, name, _private.Private(value, "nothing"))
    monkeypatch.setattr(generators, "TAKES_IN_ANY", False)
    monkeypatch.setattr(generators, "_keepers", {}, raising=False)
    plugin = load()
    world.native = Native(world)
    plugin.bases._runtimes["cuda"] = Runtime(world.native, name="cuda")
    world.runtime = Runtime(plugin, name="torch")
    monkeypatch.setitem(runtimes._selected, "seam", world.runtime)
    yield world
    assert world.current == 0
    assert not world.capturing
    assert not world.routes
    assert reclaim.captures_live() == 0
    assert turns.is_free()


class Graph(CoreGraph):
    driver = "seam"


UNTRACKED = {"track_operands": False}


def captured(world, **options):
    g = Graph(device=0)
    with capture(g, **{**UNTRACKED, **options}):
        pass
    return g


def works_again(world):
    """The next capture and its end go as they should, and give back all they took."""
    world.broken.clear()
    world.refuse_begin = False
    before = +world.begun
    g = captured(world)
    g.replay()
    g.close()
    assert +world.begun == before
