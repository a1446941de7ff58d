"""The CPU program of a capture: each torch operation becomes one node of a work queue, none runs.

``Recorder(queue, options)`` is a context manager, or ``start()`` and ``stop(error=None)`` in one
thread. In between, operations on views run; writes are recorded and return what they write to;
other operations are recorded and return tensors poisoned with NaN, of the shape, strides and dtype
that they will have. ``queue`` is any ``WorkQueue`` that is recording; its nodes must run in order,
inside ``isolation.isolated(launch)``.

For the driver: ``node_count``; ``operands`` (``.mark()``, ``.writes_to(tensor, since=mark)``,
``.dead()``); ``reader(tensor)``, a callable that reads a predicate at replay; ``body()``, a context
manager around the capture of a conditional's body. ``arena`` is the memory of outputs, to be shared
by captures that share a pool.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, Self

import torch
from torch._ops import OpOverload

from tensorplay_core.errors import GraphStateError, TensorplayError
from tensorplay_core.protocols import CaptureOptions, WorkQueue
from tensorplay_core.unwinding import through
from tensorplay_torch.resources.arena import Arena, Scope
from tensorplay_torch.resources.generators import checked
from tensorplay_torch.resources.versions import Versions
from tensorplay_torch.tracking.annotated import BackwardScopes
from tensorplay_torch.tracking.culprit import compiled, where
from tensorplay_torch.tracking.dispatch import CaptureDispatch
from tensorplay_torch.tracking.operands import Operands
from tensorplay_torch.tracking.operations import Kind, Operation, describe, tensors_in
from tensorplay_torch.tracking.refusals import Reason, refused, swallowed
from tensorplay_torch.tracking.state import Bindings

from .admission import Admission
from .constants import Constants
from .functions import HostReads
from .isolation import alias_of, under_settings, without_grad
from .metadata import NOT_PLAIN, Layout, NoMetaKernel, results_of
from .program import Work, minds_grad_mode, node_kind, work_of
from .random import Randomness
from .switches import settings

__all__ = ["Recorder"]

CPU = torch.device("cpu")


class Recorder:
    """See the module.

    Args:
        queue: Gets the nodes.
        options: Of the capture.
        arena: Where outputs live; None is one of its own.

    Attributes:
        operands: What the recorded work uses.
        node_count: Nodes recorded so far, in bodies too.
        arena: As given.
    """

    def __init__(
        self, queue: WorkQueue, options: CaptureOptions | None = None, arena: Arena | None = None
    ) -> None:
        options = options or CaptureOptions()
        self.arena = arena or Arena()
        self.operands = Operands(options, held=self.arena.aliases.count)
        self.node_count = 0
        self._numbered: Callable[..., Work] | None = None
        self._queue = queue
        self._bindings = Bindings(self.operands.is_born)
        self._constants = Constants(self._submit)
        self._versions = Versions()
        self._random = Randomness(checked(options.generators, CPU))
        self._admission = Admission(self._random)
        scopes = [] if options.timeline is None else [BackwardScopes(options.timeline)]
        self._dispatch = CaptureDispatch(scopes, execute=self._record)
        self._functions = HostReads(self._bindings.leaf)
        self._scopes: list[Scope] = [self.arena.scope]
        self._arenas = [self.arena]
        self._settings = settings()
        self._thread = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop(error)

    def start(self) -> None:
        """Begins to record this thread's operations."""
        self._thread = threading.get_ident()
        self._random.start()
        self._bindings.start()
        self._functions.start()
        self._dispatch.start()

    def stop(self, error: BaseException | None = None) -> None:
        """Ends it, once. Everything but what the user bound is as it was before.

        Args:
            error: What broke the capture, if something did; then bindings are restored too.

        Raises:
            GraphStateError: Another thread began it.
            CaptureError: Modes were not nested with the capture.
            CaptureInvalidated: An operation was refused, and the error swallowed.
            OperationRefused: Optimizer state was born in it, or random state was set by hand.
        """
        if not self._thread:
            return
        if threading.get_ident() != self._thread:
            raise GraphStateError(
                doing="ending",
                subject="a capture on the CPU",
                met="another thread began it, and only that one has its modes on",
                remedy="End it in the thread that began it.",
            )
        try:
            through(self._leave)
            if error is None:
                if self.refusal is not None:
                    raise swallowed(self.refusal) from self.refusal
                self._random.check()
                self._bindings.check()
        except BaseException:
            through(self._bindings.restore)
            raise
        else:
            if error is not None:
                through(self._bindings.restore)
        finally:
            through(self._settle)

    def _settle(self) -> None:
        """Puts back what belongs to the process, and keeps what the graph needs. Idempotent."""
        self._leave()
        self._random.restore()
        self._versions.restore()
        self._bindings.forget()
        self.operands.seal()
        for arena in self._arenas:
            self.operands.disown(arena.addresses)
            arena.settle()
        self._thread = 0

    @contextmanager
    def body(self) -> Iterator[None]:
        """The capture of a conditional's body, while entered."""
        scope = Scope()
        self._scopes.append(scope)
        try:
            yield
        finally:
            self._scopes.remove(scope)
            self._scopes[-1].absorb(scope)

    @contextmanager
    def routed(self, arena: Arena) -> Iterator[None]:
        """Outputs live in ``arena`` while entered."""
        before, outer, scope = self.arena, self._scopes[-1], Scope()
        self.arena, self._scopes[-1] = arena, scope
        if arena not in self._arenas:
            self._arenas.append(arena)
        try:
            yield
        finally:
            self.arena, self._scopes[-1] = before, outer
            arena.scope.absorb(scope)

    def reader(self, tensor: torch.Tensor) -> Callable[[], int | bool]:
        """A callable that reads the one value of ``tensor``, for use inside a launch."""
        return self._alias(tensor).item  # type: ignore[return-value]

    @property
    def refusal(self) -> TensorplayError | None:
        """The first error that an operation or a call met."""
        return self._functions.refusal or self._dispatch.refusal

    @property
    def default_dtype(self) -> torch.dtype:
        """The default dtype of torch when the capture began."""
        found: torch.dtype = self._settings.dtype or torch.get_default_dtype()
        return found

    @property
    def drew(self) -> bool:
        """True if recorded work draws random numbers."""
        return self._random.drew

    def refuse_draws(self, work: object) -> None:
        """Raises OperationRefused if a body is recorded, for ``work`` that draws random numbers."""
        if len(self._scopes) > 1:
            raise refused(work, Reason.RNG_IN_BODY)
        self._random.drew = True

    def _leave(self) -> None:
        with ExitStack() as stack:
            for one in (self._functions, self._dispatch, self._bindings):
                stack.callback(one.stop)

    def _record(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if not isinstance(func, OpOverload):
            raise refused(func, Reason.HIGHER_ORDER)
        operation = describe(func)
        if operation.kind is Kind.UNRECORDED:
            return func(*args, **kwargs)
        if compiled():
            raise refused(func, Reason.COMPILED)
        if operation.composite:
            with self._dispatch:
                return func.decompose(*args, **kwargs)
        if self._admission.elsewhere(operation, args, kwargs):
            return func(*args, **kwargs)
        self._admission.check(operation, args, kwargs, in_body=len(self._scopes) > 1)
        for tensor in (*tensors_in(args), *tensors_in(kwargs.values())):
            if tensor.requires_grad:
                self._bindings.leaf(tensor)
        match operation.kind:
            case Kind.VIEW:
                result = func(*args, **kwargs)
                if operation.name == "aten.lift_fresh":
                    self.operands.own(result)
                    self._constants.note(result, self._scopes[-1])
            case Kind.METADATA:
                self._refuse_moving(operation, args)
                result = func(*args, **kwargs)
            case Kind.QUERY:
                return func(*args, **kwargs)
            case Kind.EMPTY:
                result = self._results(operation, args, kwargs)
            case Kind.WRITE | Kind.EFFECT:
                result = self._written(operation, args, kwargs)
            case _:
                result = self._results(operation, args, kwargs)
                self._node(operation, args, kwargs, result)
        self.operands.see(func, args, kwargs, result)
        return result

    def _refuse_moving(self, operation: Operation, args: Sequence[Any]) -> None:
        if not self.operands.is_born(args[0]):
            raise refused(operation.func, Reason.MOVES_EXTERNAL)

    def _results(self, operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Tensors of the layouts that the operation's results will have."""
        try:
            results = results_of(operation, args, kwargs)
        except NoMetaKernel as error:
            raise refused(operation.func, Reason.NO_META) from error
        made = self._made(operation, results)
        return tuple(made) if len(operation.func._schema.returns) > 1 else made

    def _made(self, operation: Operation, results: Any) -> Any:
        if isinstance(results, Layout):
            return self.arena.allocate(*results, self._scopes[-1])
        if isinstance(results, list):
            return [self._made(operation, one) for one in results]
        if results is NOT_PLAIN:
            raise refused(operation.func, Reason.SPARSE)
        return results

    def _written(self, operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        result = operation.result(args, kwargs)
        try:
            layouts = results_of(operation, args, kwargs)
        except NoMetaKernel:
            layouts = None
        for tensor, layout in zip(tensors_in((result,)), _flat(layouts), strict=False):
            if tuple(tensor.shape) != layout.size:
                self._grow(operation, tensor, layout)
        self._node(operation, args, kwargs, None)
        return result

    def _grow(self, operation: Operation, tensor: torch.Tensor, layout: Layout) -> None:
        """Resizes an ``out=`` as the operation will."""
        if not self.operands.is_born(tensor):
            raise refused(operation.func, Reason.MOVES_EXTERNAL)
        with self.arena.apart():  # It may have memory that other graphs use too.
            tensor.resize_(layout.size)
        if tensor.stride() != layout.stride:
            tensor.as_strided_(layout.size, layout.stride)

    def _node(
        self, operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any], results: Any
    ) -> None:
        for tensor in operation.written(args, kwargs):
            self._constants.wrote(tensor)
            if not self.operands.is_born(tensor):
                self._versions.note(tensor)
        grad = torch.is_grad_enabled()
        ours = [self._held(value, grad) for value in args]
        named = {name: self._held(value, grad) for name, value in kwargs.items()}
        work = work_of(operation, ours, named, held := self._held(results, False, born=True))
        if self._numbered is not None:
            work = self._numbered(operation, work, ours, named, held)
        if not grad and minds_grad_mode(operation):
            work = without_grad(work)
        if (now := settings()) != self._settings:
            work = under_settings(work, now)
        self._submit(work, operation.name, node_kind(operation.name))

    def _submit(self, work: Work, name: str, kind: str = "kernel") -> None:
        self._queue.submit(work, name=name, kind=kind, attributes={"where": where()})
        self.node_count += 1

    def _held(self, value: Any, grad: bool, *, born: bool = False) -> Any:
        """An argument, or a result that is born now, as the program holds it."""
        if isinstance(value, torch.Tensor):
            return self._alias(value, grad, born=born)
        if isinstance(value, list | tuple):
            return type(value)(self._held(one, grad, born=born) for one in value)
        return value

    def _alias(
        self, tensor: torch.Tensor, grad: bool = False, *, born: bool = False
    ) -> torch.Tensor:
        """A tensor of the program's own over the same memory, frozen in shape and free of autograd.

        It shares the version of a tensor from outside, so that replays count as writes to that. It
        requires grad if its source does in grad mode, by which kernels choose how to compute.
        """
        alias = alias_of(tensor, counted=not born and not self.operands.is_born(tensor))
        if grad and tensor.requires_grad:
            alias.requires_grad_()
        for arena in self._arenas:
            arena.aliases.note(alias)
        return alias


def _flat(layouts: Any) -> Iterator[Layout]:
    if isinstance(layouts, Layout):
        yield layouts
    elif isinstance(layouts, list):
        for one in layouts:
            yield from _flat(one)
