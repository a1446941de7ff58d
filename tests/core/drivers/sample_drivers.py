"""Drivers that implement next to nothing, found as strangers' drivers are."""

from __future__ import annotations

from types import SimpleNamespace

from tensorplay_core.hookspecs import hookimpl


class Tiny:
    """A driver with a device and no more."""

    @hookimpl
    def tensorplay_describe(self):
        return {"tinylib": "7.5"}

    @hookimpl
    def tensorplay_resolve_device(self, device):
        return device or "tiny:0"


class Workbench:
    def __init__(self, runtime, device):
        self.runtime, self.device = runtime, device


tiny = SimpleNamespace(name="tiny", priority=-10, viability=lambda: None, load=Tiny)
unviable = SimpleNamespace(
    name="unviable",
    priority=-10,
    viability=lambda: "there is no unobtainium here: pip install unobtainium",
    load=Tiny,
)
