"""Staged launches: fresh inputs into static buffers, launch, results out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tensorplay_core.errors import ArgumentError, GraphStateError, SignatureMismatch
from tensorplay_core.signature import a_type

from .buffers import DTYPES, Buffer, memory_of, overlap

if TYPE_CHECKING:
    from .arrays import Arrays
    from .executable import Executable
    from .streams import Stream

__all__ = ["Stage", "form_check"]


def form_check(static: Sequence[memoryview]) -> Callable[[Sequence[Any]], bool]:
    """A check of arrays against memory: count, type and shape of each."""

    def check(arrays: Sequence[Any]) -> bool:
        return not _differences(static, arrays)

    return check


def _differences(static: Sequence[memoryview], arrays: Sequence[Any]) -> list[str]:
    if not hasattr(arrays, "__len__"):
        return [f"inputs: captured {len(static)} arrays, got {a_type(arrays)}"]
    if len(arrays) != len(static):
        return [f"len(inputs): captured {len(static)}, got {len(arrays)}"]
    found = []
    for place, (memory, array) in enumerate(zip(static, arrays, strict=True)):
        try:
            given = array.memory if type(array) is Buffer else memory_of(array)
        except ArgumentError as error:
            found.append(f"inputs[{place}]: captured an array, got {a_type(array)} ({error.met})")
            continue
        if memory.shape != given.shape:
            found.append(f"inputs[{place}].shape: captured {memory.shape}, got {given.shape}")
        if memory.format != given.format:
            was, got = DTYPES[memory.format], DTYPES[given.format]
            found.append(f"inputs[{place}].dtype: captured {was}, got {got}")
    return found


class Stage:
    """A prepared staged launch.

    Args:
        work: The driver.
        resolve: Turns what a user calls a stream into one.
        executable: What is launched.
        static_inputs: Arrays the graph reads.
        results: Arrays the graph writes.
    """

    def __init__(
        self,
        work: Arrays,
        resolve: Callable[[object], Stream],
        executable: Executable,
        static_inputs: Sequence[Any],
        results: Sequence[Any],
    ) -> None:
        self._work, self._resolve, self._executable = work, resolve, executable
        self._program = executable.program
        # The arrays themselves too: a buffer of a pool is in use as long as it is referred to.
        self._arrays = (tuple(static_inputs), tuple(results))
        self._static = [work._writable(array, "staging into") for array in static_inputs]
        self._exporters = {id(memory.obj) for memory in self._static}
        self._plain = all(type(memory.obj) is bytearray for memory in self._static)
        self._results = [memory_of(array, "staging out of") for array in results]

    def __call__(self, inputs: Sequence[Any], *, stream: object | None = None) -> tuple[Any, ...]:
        """Checks, copies, launches; returns buffers with copies of the results.

        Args:
            inputs: As many arrays as static inputs, of their types and shapes.
            stream: Where to copy and launch; None is the current stream.

        Raises:
            SignatureMismatch: They differ; it lists every difference, and nothing was changed.
            GraphStateError: The graph was closed, or updated since the plan was made.
            StaleGraph: A watched input died; nothing was changed.
            ReplayError: This is inside a replay, or a staged call, of the graph.
        """
        self._refuse_stale()
        found = _differences(self._static, inputs)
        if found:
            raise SignatureMismatch(
                differences=found, doing="staging inputs for", subject=repr(self._executable)
            )
        target = self._work.current if stream is None else self._resolve(stream)
        if target.lane is not None and not self._work.running:
            with self._work.using(target):
                return self._record(inputs)
        self._work._capturing.refuse_legacy(target, "staging inputs")
        # One turn for all of it: no other launch may come between copy and launch.
        with self._executable.turn_for(self._program, "staging inputs for"):
            self._refuse_stale()
            self._program.refuse_stale()
            for into, source in zip(self._static, self._apart(inputs), strict=True):
                if source is not into:
                    into.cast("B")[:] = source.cast("B")
            self._program.run()
            return tuple(map(self._work._copied, self._results))

    def _refuse_stale(self) -> None:
        """Raises GraphStateError before anything is written that the graph would not read."""
        now = self._executable.program
        if now is self._program:
            return
        raise GraphStateError(
            doing="staging inputs for",
            subject=repr(self._executable),
            met="the graph is closed, or nobody held it any more"
            if now.recording is None
            else "the graph was updated since this plan was made, and may read other buffers now",
            remedy="Capture again after reset() or close(), and make the plan anew: g.stage(...).",
        )

    def _record(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """The same as captured work, which cannot tell in advance what its inputs overlap."""
        work = self._work
        fresh = [work._allocate(memory.format, memory.shape or ()) for memory in self._static]
        for place, source in zip(fresh, inputs, strict=True):
            work.copy(place, source)
        for array, source in zip(self._arrays[0], fresh, strict=True):
            work.copy(array, source)
        self._executable.launch()
        results = []
        for array, memory in zip(self._arrays[1], self._results, strict=True):
            result = work._allocate(memory.format, memory.shape or ())
            work.copy(result, array)
            results.append(result)
        return tuple(results)

    def _apart(self, inputs: Sequence[Any]) -> list[memoryview]:
        """Memory of the inputs, copied where an earlier copy of this call would overwrite it."""
        sources = []
        for place, array in enumerate(inputs):
            source = memory_of(array)
            if not self._apart_for_sure(source.obj) and any(
                overlap(source, earlier) for earlier in self._static[:place]
            ):
                source = memoryview(source.tobytes())
            sources.append(source)
        return sources

    def _apart_for_sure(self, exporter: object) -> bool:
        # Two bytearrays are two pieces of memory; only other exporters can be views of each other.
        return self._plain and type(exporter) is bytearray and id(exporter) not in self._exporters
