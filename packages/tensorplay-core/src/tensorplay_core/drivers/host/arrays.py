"""Buffers of the host and the work that only moves them: made, filled, copied."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from tensorplay_core.errors import ArgumentError, ArgumentTypeError
from tensorplay_core.signature import a_type

from .buffers import DTYPES, Buffer, cast_to, copier, filler, memory_of, poison
from .ledger import Plain, Storage
from .queue import Queue

if TYPE_CHECKING:
    from .memory import Pool

__all__ = ["Arrays"]


class Arrays(Queue):
    """Memory, in a capture that of its pool. Until work has written it, it holds NaN or 0xCD."""

    @property
    def limit_bytes(self) -> int | None:
        """The most memory that buffers and pools may take in all; None is no limit."""
        return self._ledger.limit_bytes

    @limit_bytes.setter
    def limit_bytes(self, limit: int | None) -> None:
        self._ledger.limit_bytes = limit

    @property
    def held_bytes(self) -> int:
        """Memory that buffers and pools hold now. Memory that was only wrapped does not count."""
        return self._ledger.held()

    def buffer(self, data: Any, typecode: str | None = None) -> Buffer:
        """A buffer of a length, of values, or over memory that is there already.

        Args:
            data: A number of elements, whose contents are undefined; a sequence of numbers, which
                is copied (inside a capture: at each replay anew); or anything with the buffer
                protocol, which is wrapped: the buffer is that memory and keeps it alive.
            typecode: Element type as in ``array`` and ``struct``, ``"?"`` for Bool. None is
                ``"f"``, or for wrapped memory its own type. Wrapped bytes can be given any type.

        Raises:
            ArgumentTypeError: No such element type, or no numbers.
            ArgumentError: It would be empty, or the memory is not contiguous.
            PoolExhausted: ``limit_bytes`` does not allow it.
        """
        if isinstance(data, int):
            return self._allocate(_known(typecode or "f"), (data,))
        if isinstance(data, list | tuple | range):
            values = _values(_known(typecode or "f"), data)
            made = self._allocate(values.format, (len(data),))
            work = copier(made.memory, values)
            self.submit(work, name="copy from host", kind="memcpy", writes=(made,))
            return made
        memory = memory_of(data, "wrapping")
        if typecode is not None and typecode != memory.format:
            memory = _retyped(memory, _known(typecode))
        storage = data.storage if isinstance(data, Buffer) else Storage()
        return Buffer(self._capturing, memory, storage)

    def _allocate(self, typecode: str, shape: tuple[int, ...]) -> Buffer:
        count = math.prod(shape)
        if count < 1:
            raise _empty(shape)
        nbytes = count * struct.calcsize(typecode)
        lane = self.current.lane
        capture = lane.capture if lane is not None else None
        born = capture.serial if capture is not None else 0
        if capture is None or capture.pool is None:
            memory = cast_to(memoryview(bytearray(nbytes)), typecode, shape)
            poison(memory)
            return Buffer(self._capturing, memory, Plain(self._ledger, nbytes, born))
        with self.apart(capture.pool):
            block = capture.pool.allocate(nbytes, born, capture.loops)
            memory = cast_to(block.view(nbytes), typecode, shape)
            poison(memory)
            return Buffer(self._capturing, memory, block)

    def apart(self, pool: Pool) -> AbstractContextManager[None]:
        """Nobody runs in the pool's memory while entered: for who reuses and poisons some of it.

        Raises:
            ReplayError: This thread runs in it, or waiting would be for ever.
        """
        return pool.turn.held(self._capturing.threads.state, "allocating from", repr(pool))

    def _copied(self, memory: memoryview) -> Buffer:
        """A copy outside any pool, made now."""
        fresh = cast_to(memoryview(bytearray(memory)), memory.format, memory.shape or ())
        return Buffer(self._capturing, fresh, Plain(self._ledger, memory.nbytes))

    def copy(self, destination: object, source: object) -> None:
        """Copies ``source`` into ``destination``, of equal shape; elements are converted as C does.

        Args:
            destination: A buffer, or anything with the buffer protocol that can be written.
            source: The same, or read-only.

        Raises:
            ArgumentError: The shapes differ, or the destination is read-only.
            ArgumentTypeError: One is no array.
        """
        into, out_of = self._writable(destination, "copying into"), memory_of(source, "copying")
        if into.shape != out_of.shape:
            raise ArgumentError(
                doing="copying",
                subject=f"{source!r} into {destination!r}",
                met=f"the shapes are {out_of.shape} and {into.shape}",
                remedy="Pass arrays of equal shape: nothing is broadcast.",
            )
        self._held(source)
        self.submit(
            copier(into, out_of),
            name="memcpy",
            kind="memcpy",
            attributes={"bytes": into.nbytes},
            writes=(destination,),
        )

    def memset(self, buffer: object, value: float) -> None:
        """Sets every element of ``buffer`` to ``value``, a constant of the capture.

        Raises:
            ArgumentError: The buffer is read-only.
            ArgumentTypeError: It is no array, or ``value`` no number.
        """
        memory = self._writable(buffer, "setting")
        self.submit(
            filler(memory, value),
            name="memset",
            kind="memset",
            attributes={"bytes": memory.nbytes, "value": value},
            writes=(buffer,),
        )

    def _writable(self, array: object, doing: str) -> memoryview:
        memory = memory_of(array, doing)
        if memory.readonly:
            raise ArgumentError(
                doing=doing,
                subject=f"memory of {a_type(array)}",
                met="it is read-only",
                remedy="Pass memory that can be written.",
            )
        return memory


def _known(typecode: str) -> str:
    if typecode not in DTYPES:
        raise ArgumentTypeError(
            doing="choosing",
            subject=f"typecode {typecode!r}",
            met="there is no such element type",
            remedy=f"Pass one of {' '.join(DTYPES)}.",
        )
    return typecode


def _values(typecode: str, data: Sequence[Any]) -> memoryview:
    """Numbers as memory, so that none is wrong once there is a buffer for them."""
    if not data:
        raise _empty((0,))
    values = cast_to(memoryview(bytearray(len(data) * struct.calcsize(typecode))), typecode)
    try:
        for index, value in enumerate(data):
            values[index] = value
    except (TypeError, ValueError) as error:
        raise ArgumentTypeError(
            doing="making",
            subject=f"a buffer of {len(data)} values",
            met=f"one of them is no {DTYPES[typecode]}: {error}",
            remedy="Pass numbers of that type.",
        ) from error
    return values


def _empty(shape: tuple[int, ...]) -> ArgumentError:
    return ArgumentError(
        doing="allocating",
        subject=f"a buffer of shape {shape}",
        met="it would be empty",
        remedy="Ask for one element at least.",
    )


def _retyped(memory: memoryview, typecode: str) -> memoryview:
    if memory.format not in "bB" or memory.nbytes % struct.calcsize(typecode):
        raise ArgumentError(
            doing="wrapping",
            subject=f"memory of {memory.nbytes} bytes as {DTYPES[typecode]}",
            met=f"its elements are {DTYPES[memory.format]}",
            remedy="Give it its own type, or wrap bytes of a whole number of elements.",
        )
    return cast_to(memory, typecode)
