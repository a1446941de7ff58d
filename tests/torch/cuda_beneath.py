"""A stand-in for core's CUDA driver, beneath the torch driver: it notes what it is asked."""

from __future__ import annotations

from types import FunctionType, SimpleNamespace

from tensorplay_core.errors import DriverCallFailed
from tensorplay_core.hookspecs import hookimpl
from tensorplay_core.protocols import Update
from tensorplay_core.topology import Node, Topology
from tensorplay_torch.resources.bases import NativeExecutable

from .cuda_world import Stream

ASKED = {
    name
    for kind in NativeExecutable.__mro__
    for name, asked in vars(kind).items()
    if isinstance(asked, property | FunctionType) and not name.startswith("_")
}
"""What the torch driver may ask of an executable beneath."""


class NoGaps:
    """A capture without foreign work."""

    def follow(self, capture):
        pass

    def look(self):
        pass

    def pass_over(self):
        pass

    def __bool__(self):
        return False


class Native:
    """A stand-in for core's CUDA driver: what the torch driver asks of it."""

    def __init__(self, world):
        self.world = world
        self.poison = ""

    @hookimpl
    def tensorplay_resolve_device(self, device):
        return device

    @hookimpl
    def tensorplay_pool_create(self, device):
        return SimpleNamespace(id=("cuda", id(self)), device=device)

    @hookimpl
    def tensorplay_side_stream(self, device, pool):
        return Stream()

    @hookimpl
    def tensorplay_resolve_stream(self, stream, device):
        return stream if isinstance(stream, int) else stream.__cuda_stream__()[1]

    @hookimpl
    def tensorplay_graph_adopt(self, stream, owner):
        assert stream in self.world.capturing
        return SimpleNamespace(
            device=0, stream=stream, parent=None, poisoned="", bodies=[], buried=False
        )

    @hookimpl
    def tensorplay_graph_abort(self, capture, error):
        self.world.note("abort bodies")
        for body in capture.bodies:
            self.world.capturing.discard(body.stream)
        if capture.bodies and self.poison:
            capture.poisoned = self.poison

    def gaps(self, stream):
        assert stream in self.world.capturing
        return NoGaps()

    def bury(self, capture, error=None):
        self.world.note("bury")
        capture.buried = True

    def is_capturing(self, handle):
        return handle in self.world.capturing

    def template_of(self, capture, graph, owner, device):
        return SimpleNamespace(
            node_count=1,
            functions=lambda: self.functions,
            close=lambda: self.world.note("close template"),
        )

    functions = None

    once_only = False

    def make_executable(self, template, raw=None, owner=None, current=None):
        if raw is None:
            if self.once_only:
                raise DriverCallFailed(
                    call="cuGraphInstantiate",
                    code=801,
                    code_name="CUDA_ERROR_NOT_SUPPORTED",
                    meaning="no",
                    subject="a graph",
                    remedy="Do without.",
                )
            self.world.serial += 1
            raw = 1000 + self.world.serial
            self.world.note("instantiate beside")

        def native(executable, target):
            self.world.note("direct launch", target)
            return (0,)

        def launch(stream=None):
            where = current() if stream is None else stream
            made.call(raw, getattr(where, "cuda_stream", where))

        def close(idle=False):
            self.world.note("end idle" if idle else "drain")

        def settle(wait):
            self.world.note("settle")
            wait()

        made = SimpleNamespace(
            launch=launch,
            call=native,
            divert=lambda call: setattr(made, "call", call or native),
            upload=lambda stream=None: self.world.note("upload"),
            raw=lambda: raw,
            close=close,
            settle=settle,
            unsettled=False,
            follow=lambda stream, doing: self.world.note("follow", current()),
        )
        assert {"close", "divert"} <= ASKED <= vars(made).keys()
        return made

    @hookimpl
    def tensorplay_graph_topology(self, template):
        return Topology(nodes=(Node(index=0, kind="kernel", name=self.kernel),))

    kernel = "add"

    @hookimpl
    def tensorplay_graph_update(self, executable, template):
        self.world.note("update")
        return Update(in_place=True)

    @hookimpl
    def tensorplay_conditional_open(self, capture, kind, predicate, branches, first, max_steps):
        return tuple(SimpleNamespace(parent=capture, stream=0, of=capture) for _ in range(branches))

    @hookimpl
    def tensorplay_conditional_enter(self, body):
        body.stream = body.lane.cuda_stream
        root = body.of
        while getattr(root, "of", None) is not None:
            root = root.of
        root.bodies.append(body)
        self.world.capturing.add(body.stream)
        self.world.note("enter body")

    @hookimpl
    def tensorplay_conditional_exit(self, body):
        self.world.capturing.discard(body.stream)
        self.world.note("exit body")
