"""What warm-up calls change, saved before the first change and put back in place.

Memory is saved when an operation is about to write it, wherever it is held: in parameters, buffers,
plain attributes or closures. Buffers are saved ahead of that as well, since compiled regions and
custom operations write without saying so. Random generators are saved before they draw.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from tensorplay_torch.resources.generators import put_back
from tensorplay_torch.resources.storages import Watched, key_of
from tensorplay_torch.resources.versions import Versions

from .operations import HIDDEN_WRITES, describe, tensors_in

__all__ = ["HostRandom", "Preservation"]


class Preservation:
    """See the module. It is a listener of ``CaptureDispatch``.

    Args:
        device: Where the work runs; its default generator is saved, and the CPU's.
        buffers: Memory to save ahead.

    Attributes:
        generators: Random generators, beside the default ones, that the work drew from.
        used: What the work was given that it did not make: names of storages by key.
        written: Of that, what it wrote.
    """

    def __init__(self, device: torch.device, buffers: Iterable[torch.Tensor]) -> None:
        self.generators: list[torch.Generator] = []
        self.used: dict[int | None, str] = {}
        self.written: dict[int | None, torch.Tensor] = {}
        self._device = device
        self._kept: list[torch.UntypedStorage] = []
        self._saved: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self._born: dict[int, Watched] = {}
        self._versions = Versions()
        self._states: dict[int, tuple[torch.Generator, torch.Tensor]] = {}
        self._host = HostRandom()
        self._defaults = [torch.default_generator]
        if device.type == "cuda":
            torch.cuda.init()
            self._defaults.append(torch.cuda.default_generators[device.index])
        for generator in self._defaults:
            self._states[id(generator)] = (generator, generator.get_state())
        for buffer in buffers:
            self.save(buffer)
        if device.type == "cuda":
            # The work may run on another stream, and write before these copies have read.
            torch.cuda.synchronize(device)

    def before(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Saves what ``func`` is about to change."""
        if not isinstance(func, OpOverload):
            return
        for tensor in tensors_in((*args, *kwargs.values())):
            self._use(tensor)
        for tensor in describe(func).written(args, kwargs):
            self.save(tensor)
            # A write that the schema does not tell of is not counted by eager either.
            if (key := _key(tensor)) in self.used and func._schema.name not in HIDDEN_WRITES:
                self.written.setdefault(key, tensor)
        generator = kwargs.get("generator")
        if generator is not None and id(generator) not in self._states:
            self._states[id(generator)] = (generator, generator.get_state())
            self.generators.append(generator)

    def after(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Takes in what was born: that need not be saved."""
        for tensor in tensors_in((result,)):
            key = _key(tensor)
            # A view of what the work was given is not born in it.
            known = key in self.used or key in self._saved or key in self._born
            if key is not None and not known:
                self._born[key] = Watched(tensor)

    def is_born(self, tensor: torch.Tensor) -> bool:
        """True if the tensor's memory was born in the warm-up."""
        return _key(tensor) in self._born

    def save(self, tensor: torch.Tensor) -> None:
        """Saves the memory of ``tensor`` as it is now, unless that was done before."""
        key = _key(tensor)
        if key is None or key in self._born:
            return
        self._versions.note(tensor)
        if key not in self._saved:
            storage = tensor.untyped_storage()
            self._saved[key] = (storage, storage.clone())

    def _use(self, tensor: torch.Tensor) -> None:
        key = _key(tensor)
        if key is not None and key not in self._born and key not in self.used:
            self.used[key] = f"a tensor of shape {tuple(tensor.shape)}"
            # As long as it is kept, no other storage gets its key.
            self._kept.append(tensor.untyped_storage())

    def restore(self) -> None:
        """Puts everything back. Nothing may be under way on other streams."""
        for storage, saved in self._saved.values():
            if storage.nbytes() == saved.nbytes():
                storage.copy_(saved)
        if self._device.type == "cuda":
            # What was saved lies in memory of the warm-up's stream, which may be reused at once.
            torch.cuda.synchronize(self._device)
        self._versions.restore()
        for generator, state in self._states.values():
            put_back(generator, state)
        self._host.restore()
        self._saved.clear()
        self._born.clear()


class HostRandom:
    """Python's and NumPy's random state."""

    def __init__(self) -> None:
        self._python = random.getstate()
        self._numpy = _numpy_state()

    def drawn(self) -> str:
        """The library that drew since; ``""`` if none did."""
        if random.getstate() != self._python:
            return "Python's random"
        if repr(_numpy_state()) != repr(self._numpy):
            return "numpy.random"
        return ""

    def restore(self) -> None:
        """Puts both back."""
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)


def _numpy_state() -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is None or not hasattr(numpy, "random"):
        return None
    kind, keys, *rest = numpy.random.get_state()
    return (kind, keys.tolist(), *rest)


def _key(tensor: torch.Tensor) -> int | None:
    try:
        return key_of(tensor)
    except NotImplementedError:
        return None
