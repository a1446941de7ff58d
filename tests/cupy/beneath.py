"""A stand-in for the driver beneath CuPy's: it notes calls and keeps what it is given."""

from __future__ import annotations

import contextlib
import types


class Stream:
    """A CuPy stream that notes when it is current."""

    def __init__(self, log, ptr):
        self.log, self.ptr = log, ptr
        self._graph_host_funcargs = None

    def __enter__(self):
        self.log.append(f"stream {self.ptr}")
        return self

    def __exit__(self, *_):
        self.log.append(f"not stream {self.ptr}")


class Template:
    """What the driver beneath makes of a capture."""

    device = 0

    def __init__(self):
        self.closed = False

    def close(self):
        self.closed = True


class Beneath:
    """Driver and runtime beneath: they note calls and keep what they are given."""

    def __init__(self, log):
        self.log, self.kept, self.always, self.failing = log, [], [], {}
        self.words = set()
        self.runtime = self.driver = self

    def _call(self, name):
        self.log.append(name)
        if name in self.failing:
            raise self.failing[name]

    def graph_begin(self, device, stream, pool, mode, options):
        self._call("begin")
        return types.SimpleNamespace(device=device, stream=100)

    def graph_end(self, capture):
        self._call("end")
        return Template()

    def graph_abort(self, capture, error):
        self._call("abort")

    def graph_adopt(self, stream, owner):
        return types.SimpleNamespace(device=0, stream=stream)

    def conditional_open(self, capture, kind, predicate, branches, first, max_steps):
        self._call(f"open {kind.value}")
        self.sampled = predicate
        return tuple(types.SimpleNamespace(device=0, stream=200 + n) for n in range(branches))

    def conditional_enter(self, body):
        self._call("enter")

    def conditional_set(self, body, predicate):
        self._call("set")

    def conditional_exit(self, body):
        self._call("exit")

    def mentioned(self, capture):
        self._call("mentioned")
        return self.words

    def retain(self, handle, operands, always=()):
        self.log.append(f"retain on {handle}")
        self.kept += operands
        self.always += always

    def resolve_stream(self, stream, device):
        return stream

    @contextlib.contextmanager
    def relaxed(self):
        yield
