"""The host driver, with one law broken in each: what the conformance suite must see."""

from __future__ import annotations

import dataclasses
import itertools
from types import SimpleNamespace

from tensorplay_core import discovery
from tensorplay_core.hookspecs import hookimpl

Host = type(discovery.load_card("host").load())


class ReplayDiffers(Host):
    """Law 1: only the first replay runs."""

    @hookimpl
    def tensorplay_graph_instantiate(self, template):
        executable = super().tensorplay_graph_instantiate(template)
        launch, launched = executable.launch, itertools.count()
        executable.launch = lambda stream=None: None if next(launched) else launch(stream)
        return executable


class CaptureChangesThings(Host):
    """Law 2: the end of a capture leaves another stream current."""

    @hookimpl
    def tensorplay_graph_end(self, capture):
        template = super().tensorplay_graph_end(capture)
        # A new one each time: the same one again would be no change.
        side = self.stream()
        self.never_left = self.tensorplay_using_stream(side, capture.device)
        self.never_left.__enter__()
        return template


class GraphDoesNotOwn(Host):
    """Law 3: a graph holds what it reads weakly, without having been asked to."""

    @hookimpl
    def tensorplay_graph_begin(self, device, stream, pool, mode, options):
        weakly = dataclasses.replace(options, check_input_liveness=True)
        return super().tensorplay_graph_begin(device, stream, pool, mode, weakly)


class FailureLeavesATrace(Host):
    """Law 5: a capture that failed is not ended."""

    @hookimpl
    def tensorplay_graph_abort(self, capture, error):
        return None


class EndsLeak(Host):
    """Law 8: a pool's memory is never given back."""

    def __init__(self):
        super().__init__()
        self.kept = []

    @hookimpl
    def tensorplay_pool_release(self, pool):
        self.kept.append(pool)


def card(name, driver):
    return SimpleNamespace(name=name, priority=-10, viability=lambda: None, load=driver)


whole = card("whole", Host)
broken1 = card("broken1", ReplayDiffers)
broken2 = card("broken2", CaptureChangesThings)
broken3 = card("broken3", GraphDoesNotOwn)
broken5 = card("broken5", FailureLeavesATrace)
broken8 = card("broken8", EndsLeak)


def workbench(runtime, device):
    return discovery.find_workbench("host")(runtime, device)
