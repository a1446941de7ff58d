"""How fresh inputs reach a graph's static buffers, and its results leave, in one crossing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import is_
from typing import Any

from .errors import ArgumentTypeError, ReplayError, SignatureMismatch
from .protocols import Device, Executable, StagePlan
from .runtime import Runtime
from .signature import ArrayFacts, a_type, differences, facts, shape_differences

__all__ = ["ConvertingStage", "sequence"]


class ConvertingStage:
    """The staging behind ``stage_and_launch``: a strict plan, and full copies ahead of it.

    What a copy of a buffer's own form cannot stand for (a buffer whose strides leave gaps) is
    copied to by hand, one input after the other.

    Args:
        runtime: The runtime of the graph.
        executable: What is launched.
        static_inputs: The graph's buffers.
        device: The graph's device.
        subject: What errors call the graph.
    """

    def __init__(
        self,
        runtime: Runtime,
        executable: Executable,
        static_inputs: Sequence[Any],
        *,
        device: Device,
        subject: str,
    ) -> None:
        self._runtime, self._executable, self._subject = runtime, executable, subject
        self._device = device
        self._static = sequence(static_inputs, "static_inputs")
        self._captured: tuple[ArrayFacts, ...] = tuple(
            _facts(array, f"static_inputs[{place}]") for place, array in enumerate(self._static)
        )
        self._plan: StagePlan = runtime.stage(executable, self._static, ())
        self._by_hand = threading.RLock()

    def serves(self, static_inputs: Sequence[Any]) -> bool:
        """True if it was made for these very buffers."""
        static = self._static
        try:
            return len(static_inputs) == len(static) and all(map(is_, static_inputs, static))
        except TypeError:
            return False

    def __call__(self, inputs: Sequence[Any], stream: object) -> None:
        """Copies ``inputs`` into the buffers and launches, on ``stream``.

        Raises:
            SignatureMismatch: Their count or a shape differs; nothing was changed.
            ArgumentTypeError: They are no arrays in an order.
            ReplayError: This is inside another such call.
        """
        try:
            self._plan(inputs) if stream is None else self._plan(inputs, stream=stream)
        except SignatureMismatch:
            self._convert(inputs, stream)

    def _convert(self, inputs: Sequence[Any], stream: object) -> None:
        inputs = sequence(inputs, "inputs")
        found = shape_differences(self._captured, inputs)
        if found:
            raise SignatureMismatch(
                differences=found,
                subject=self._subject,
                doing="staging inputs for",
                remedy="Pass one input a static buffer, of its shape; dtype, strides and device "
                "are converted.",
            ) from None
        if stream is None:
            self._launch(inputs)
        else:
            with self._runtime.using_stream(stream, self._device):
                self._launch(inputs)

    def _launch(self, inputs: Sequence[Any]) -> None:
        # The plan copies and launches in one turn of the driver's, which nothing comes between.
        try:
            self._plan([*map(self._alike, self._captured, self._static, inputs)])
        except SignatureMismatch:
            self._copy_and_launch(inputs)

    def _alike(self, captured: ArrayFacts, static: Any, source: Any) -> Any:
        """``source``, or a copy of it of the buffer's form."""
        if not differences((captured,), (source,)):
            return source
        copy = self._runtime.array_like(static)
        self._runtime.array_copy(copy, source)
        return copy

    def _copy_and_launch(self, inputs: Sequence[Any]) -> None:
        taken: Any = getattr(self._executable, "taken", self._alone)
        with taken(None, "staging inputs for") as launch:
            for static, source in zip(self._static, self._apart(inputs), strict=True):
                if source is not static:
                    self._runtime.array_copy(static, source)
            launch()

    @contextmanager
    def _alone(self, _: object, doing: str) -> Iterator[Callable[[], None]]:
        """The turn of such calls alone, for a driver that has none for all."""
        if self._by_hand._is_owned():  # type: ignore[attr-defined]
            raise ReplayError(
                doing=doing,
                subject=self._subject,
                met="this thread is in the midst of such a call, and a finaliser or a signal "
                "handler makes another: the inputs of both would be mixed",
                remedy="Let such code note what is to be done and do it later.",
            )
        with self._by_hand:
            yield self._executable.launch

    def _apart(self, inputs: Sequence[Any]) -> list[Any]:
        """The inputs, with copies of those that an earlier copy of this call would overwrite."""
        runtime = self._runtime
        apart = []
        for place, source in enumerate(inputs):
            overwritten = self._static[: place + 1]
            if source is not self._static[place] and any(
                runtime.array_overlap(source, static) for static in overwritten
            ):
                # Of the buffer's form, which the source's shape equals: a source of another
                # library is brought over on the way.
                copy = runtime.array_like(self._static[place])
                runtime.array_copy(copy, source)
                source = copy
            apart.append(source)
        return apart


def sequence(given: Any, role: str) -> tuple[Any, ...]:
    """``given`` as a tuple, read once.

    Raises:
        ArgumentTypeError: It is one array by itself, or nothing that holds arrays in an order.
    """
    if (
        hasattr(given, "shape")
        or not isinstance(given, Iterable)
        or isinstance(given, Mapping | str | bytes)
    ):
        raise _no_array(role, given, "Pass a list or tuple of arrays.")
    return tuple(given)


def _facts(array: Any, role: str) -> ArrayFacts:
    try:
        return facts(array)
    except AttributeError as error:
        raise _no_array(role, array, "Pass the arrays that the graph reads.") from error


def _no_array(role: str, given: object, remedy: str) -> ArgumentTypeError:
    return ArgumentTypeError(
        doing="staging inputs with",
        subject=role,
        met=f"it is {a_type(given)}",
        remedy=remedy,
    )
