"""Stand-ins for torch's streams, pools and CUDA graphs, which note what is called."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from types import SimpleNamespace

import torch

GPU = torch.device("cuda", 0)


class Stream:
    """A stand-in for torch.cuda.Stream and ExternalStream."""

    serial = 100

    def __init__(self, handle=None, device=None, **_):
        if handle is None or isinstance(handle, torch.device):
            Stream.serial += 1
            handle = Stream.serial
        self.cuda_stream, self.device = handle, GPU

    def __repr__(self):
        return f"stream {self.cuda_stream}"

    def __cuda_stream__(self):
        return (0, self.cuda_stream)


class World:
    """What torch and the CUDA driver would keep: the streams, the pools, what was called."""

    def __init__(self):
        self.log = []
        self.current = 0
        self.capturing = set()
        self.broken = set()
        self.serial = 0
        self.begun = Counter()
        self.routes = []
        self.generator = SimpleNamespace(offset=0, device=GPU, _cdata=1)
        self.generator.get_offset = lambda: self.generator.offset
        self.refuse_begin = self.draws = False
        self.live = 512
        self.end_error = "operation failed due to a previous error during capture"

    def note(self, *what):
        self.log.append(what if len(what) > 1 else what[0])

    def since(self, place):
        return self.log[place:]

    @contextmanager
    def stream(self, stream):
        before, self.current = self.current, stream.cuda_stream
        try:
            yield
        finally:
            self.current = before

    def synchronize(self, *_):
        if self.capturing:
            self.broken |= self.capturing
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        self.note("synchronize")

    def handle(self):
        self.serial += 1
        return (0, self.serial)

    def segments(self, native):
        """Of a pool in which something of a graph's is still alive, if not told otherwise."""
        return [{"device": 0, "total_size": 2 << 20, "active_size": self.live}]

    def begin_route(self, index, native):
        assert native not in self.routes, "already recording to mempool_id"
        self.routes.append(native)
        self.begun[native] += 1

    def end_route(self, index, native):
        if native not in self.routes:
            raise RuntimeError("not currently recording to mempool_id")
        self.routes.remove(native)
        self.note("end route")

    def release(self, index, native):
        self.begun[native] -= 1
        assert self.begun[native] >= 0
        self.note("release pool")


def event_class(world):
    class Event:
        def record(self):
            world.note("record event", world.current)

        def wait(self):
            world.note("wait for event", world.current)

    return Event


def graph_class(world):
    class Graph:
        def __init__(self, keep_graph=False):
            self.stream = self.native = None
            self.ended = self.dead = False
            self.registered = []

        def register_generator_state(self, one):
            self.registered.append(one)

        def capture_begin(self, pool=None, capture_error_mode="global"):
            if world.refuse_begin:
                raise RuntimeError("CUDA error: out of memory")
            self.native = pool or world.handle()
            world.begin_route(0, self.native)
            self.stream = world.current
            world.capturing.add(self.stream)
            world.note("capture_begin")

        def capture_end(self):
            assert world.current == self.stream
            if self.stream in world.broken:
                # As torch up to 2.13: nothing is undone.
                world.capturing.discard(self.stream)
                world.broken.discard(self.stream)
                raise RuntimeError(f"CUDA error: {world.end_error}")
            if self.stream not in world.capturing:
                raise RuntimeError("CUDA error: the operation cannot be performed in this state")
            world.capturing.discard(self.stream)
            world.routes.remove(self.native)
            self.ended = True
            world.note("capture_end")

        def raw_cuda_graph(self):
            return 7

        def instantiate(self):
            world.note("instantiate")

        def raw_cuda_graph_exec(self):
            return 8

        def replay(self):
            assert not self.dead
            world.note("torch replay", world.current)
            if world.draws:
                world.generator.offset += 4

        def reset(self):
            if self.ended:
                world.release(0, self.native)
            self.ended, self.dead = False, True
            world.note("reset")

    return Graph
