"""The contract between core and a driver: one module a noun, one function a hook.

A driver is a module or object with ``name``, ``priority``, ``viability()`` and ``load()``, found
under the entry point group ``tensorplay_core.drivers``. ``load()`` returns the plugin: an object
whose methods carry ``@hookimpl`` and are named as the hooks here. A hook the plugin lacks is a
capability the driver lacks, and core refuses it by that name.

An observer implements hooks as wrappers (``@hookimpl(wrapper=True)``, one ``yield``). It sees the
arguments and the outcome and can change neither.
"""

from __future__ import annotations

from .markers import PROJECT, hookimpl, hookspec

__all__ = ["PROJECT", "hookimpl", "hookspec"]
