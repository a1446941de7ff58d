"""Notices that what a graph depends on beside its inputs is not what it was at the capture.

A graph reads parameters and buffers where they were, and numbers as they were. A parameter, buffer
or submodule that is set on a module is noticed by the next call. With compiled parts so is whatever
becomes of a parameter's or a buffer's memory, by the next call with gradients and, if they are few,
without. Otherwise looking for that would cost more than the launch, so each call looks at some in
turn, for less than 3 % of its time: at one parameter without gradients, at four with. Whatever
changes all parameters at once (``.to()``, ``requires_grad_()``, ``functional_call``) is noticed by
the next call, and one that was moved or frozen by itself after as many calls as a round takes.
Every call with gradients, and every sixteenth without, looks at something else: at a buffer, at a
submodule (its mode, its hooks, its class), at four values that code finds by name: in attributes,
globals and closures, and what is in the lists, dicts and objects there; or at the forms of two
tensors, which may change where the memory stays.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tensorplay_core.errors import StaleGraph
from tensorplay_torch.compiled import parts
from tensorplay_torch.resources.signatures import PLAIN
from tensorplay_torch.tracking.code import Mentions
from tensorplay_torch.tracking.reached import Reached

from .bindings import binding_entries
from .entries import (
    ModuleEntry,
    TensorEntry,
    constants_of,
    form_entries,
    tensor_entries,
)
from .registrations import hear

if TYPE_CHECKING:
    import torch

__all__ = ["Watch", "constants_of"]

LOOKS = 4
"""How many parameters a call with gradients looks at."""
SELDOM = 16
"""Every so many calls without gradients look at something else as well."""
FEW = 16
"""So many tensors cost a call without gradients no more, compiled, than a look at one in Python."""
HOLDING = ("_parameters", "_buffers", "_modules")


def _always() -> bool:
    return True


class Watch:
    """See the module.

    Args:
        reached: What the callable runs and reads.
        others: Further tensors that its graph reads, with what errors call them.
        hooks_outside: The outermost modules' own hooks run around the graph at every call.
        subject: What errors call the callable.

    Attributes:
        stirred: Something was registered on one of the modules since the last look at everything.
    """

    def __init__(
        self,
        reached: Reached,
        others: Iterable[tuple[str, torch.Tensor]],
        *,
        hooks_outside: bool,
        subject: str,
    ) -> None:
        self._subject = subject
        loose = [TensorEntry({0: tensor}, 0, tensor, name) for name, tensor in others]
        self._often = [*tensor_entries(reached, "_parameters", "parameter"), *loose]
        outermost = {id(module) for module in reached.roots.values()}
        buffers = list(tensor_entries(reached, "_buffers", "buffer"))
        mentions = Mentions()
        forms = list(form_entries([*self._often, *buffers]))
        self._seldom: list[Any] = [
            *buffers,
            *(
                ModuleEntry(
                    path,
                    module,
                    mode=id(module) not in outermost,
                    hooks=id(module) not in outermost or not hooks_outside,
                    mentions=mentions,
                    names=reached.names_of(module),
                )
                for path, module in reached.modules.items()
            ),
            *binding_entries(reached.bindings),
            *forms,
        ]
        # Not the attributes themselves, among which are the graphs that this is watching for.
        self._holding = [vars(one)[kind] for one in reached.modules.values() for kind in HOLDING]
        self._tensors = [entry.value for entry in (*self._often, *buffers)]
        self._compiled = parts() if all(type(one) in PLAIN for one in self._tensors) else None
        self._few = self._compiled is not None and len(self._tensors) <= FEW
        if self._compiled is not None:
            self._holds = self._all_at_once()
            taken = {*map(id, buffers), *map(id, forms)}
            turning = [entry for entry in self._seldom if id(entry) not in taken]
            self._looks = 0
        else:
            self._holds, turning = _always, self._seldom
            self._looks = min(LOOKS, len(self._often))
        self._next = itertools.cycle(self._often).__next__
        self._other = itertools.cycle(turning).__next__ if turning else None
        self._rest = itertools.cycle(self._seldom).__next__ if self._seldom else None
        self._calls = itertools.cycle(range(SELDOM if self._often else LOOKS)).__next__
        self._any = bool(self._often)
        self.stirred = False
        hear(self, reached.modules.values())

    def _all_at_once(self) -> Callable[[], bool]:
        """Whether modules hold the tensors that they hold now, as they are now."""
        assert self._compiled is not None, "asked for where they are"
        held = self._compiled.Same(self._holding)
        unmoved = self._compiled.Unmoved(self._tensors)
        return self._compiled.All([held, unmoved], bool)

    def glance(self) -> bool:
        """A look by a call without gradients; True if something changed."""
        if (self.stirred or (self._few and not self._holds())) and self._anything_changed():
            return True
        if self._any and not self._few:
            entry = self._next()
            value = entry.value
            if (
                entry.container.get(entry.key) is not value
                or value.data_ptr() != entry.pointer
                or value.requires_grad is not entry.requires
            ):
                return True
        return not self._calls() and self._rest is not None and self._rest().changed

    def look(self) -> bool:
        """A look by a call with gradients; True if something changed."""
        if (self.stirred or not self._holds()) and self._anything_changed():
            return True
        for _ in range(self._looks):
            entry = self._next()
            value = entry.value
            if (
                entry.container.get(entry.key) is not value
                or value.data_ptr() != entry.pointer
                or value.requires_grad is not entry.requires
            ):
                return True
        return self._other is not None and self._other().changed

    def _anything_changed(self) -> bool:
        self.stirred = False
        changed = any(entry.changed for entry in (*self._often, *self._seldom))
        # Who sees the error and calls again is to see it again.
        self.stirred = changed
        if not changed and self._compiled is not None:
            self._holds = self._all_at_once()
        return changed

    def error(self) -> StaleGraph:
        """The error that names everything that changed."""
        entries = [*self._often, *self._seldom]
        met = dict.fromkeys(line for entry in entries for line in entry.changes())
        return StaleGraph(
            doing="calling",
            subject=self._subject,
            met="; ".join(met) or "what it depends on changed and changed back",
            remedy="Graph it again after such a change (release(x), then make_graphed_callables), "
            "or pass on_change='recapture'. To keep a graph, change values in place: p.copy_(v), "
            "load_state_dict(state) without assign=True; and keep what varies in tensors.",
        )
