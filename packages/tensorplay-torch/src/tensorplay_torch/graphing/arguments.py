"""How a callable was called when it was captured, and what another call must have in common."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import torch

from tensorplay_core.errors import ArgumentError, SignatureMismatch
from tensorplay_core.signature import a_type
from tensorplay_torch.resources.signatures import compare
from tensorplay_torch.structure import structure_of
from tensorplay_torch.tracking.fixed import is_constant, same

__all__ = ["Arguments"]


class Arguments:
    """The form of one call. Tensors are inputs, everything else in it is fixed.

    Args:
        args: Positional arguments of the call.
        kwargs: Its keyword arguments.
        function: What is called, to match arguments given by position with those given by name.
        subject: What errors call it.

    Attributes:
        tensors: The inputs, each once; once the graph has buffers of its own for them, those.
        requires: Which of them require grad.
        paths: What errors call each input: ``"args[1]['mask']"``.
        plain: The inputs are the positional arguments, and there is nothing else.

    Raises:
        ArgumentError: A value that is neither tensor nor constant: it might change unnoticed.
    """

    def __init__(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        function: Callable[..., Any],
        subject: str,
    ) -> None:
        self._subject = subject
        self._signature = _signature(function)
        leaves: list[Any] = []
        self._args = structure_of(tuple(args), leaves)
        self._kwargs = structure_of(dict(kwargs), leaves)
        self._count, self._names = len(args), tuple(kwargs)
        paths = [*self._args.paths("args"), *self._kwargs.paths("kwargs")]
        # One tensor in several places stays one: code may ask (``query is key``), and then does
        # other work.
        self._places: list[int] = []
        self._repeats: list[tuple[int, int]] = []
        first: dict[int, int] = {}
        for n, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor):
                if first.setdefault(id(leaf), n) == n:
                    self._places.append(n)
                else:
                    self._repeats.append((n, first[id(leaf)]))
        self._constants = [
            (n, leaf) for n, leaf in enumerate(leaves) if not isinstance(leaf, torch.Tensor)
        ]
        self.tensors: list[torch.Tensor] = [leaves[n] for n in self._places]
        self.requires = [tensor.requires_grad for tensor in self.tensors]
        self.paths = [paths[n] for n in self._places]
        self._all_paths = paths
        self._pick: Callable[[list[Any]], tuple[Any, ...]] = _picker(self._places)
        self.plain = (
            not kwargs and not self._repeats and all(isinstance(one, torch.Tensor) for one in args)
        )
        self._refuse_changeable()

    def take(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[torch.Tensor, ...]:
        """The inputs of a call.

        Raises:
            SignatureMismatch: It is built otherwise, or a constant differs.
        """
        if self.plain and not kwargs and len(args) == self._count:
            return args
        leaves: list[Any] = []
        if not (self._args.take(args, leaves) and self._kwargs.take(kwargs, leaves)):
            leaves = self._matched(args, kwargs)
        for place, constant in self._constants:
            given = leaves[place]
            if given is not constant and not same(constant, given):
                raise self.mismatch(args, kwargs)
        for place, first in self._repeats:
            if leaves[place] is not leaves[first]:
                raise self.mismatch(args, kwargs)
        return self._pick(leaves)

    def call_with(self, inputs: Sequence[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments of the same form around other inputs."""
        leaves: list[Any] = [None] * len(self._all_paths)
        for place, constant in self._constants:
            leaves[place] = constant
        for place, tensor in zip(self._places, inputs, strict=True):
            leaves[place] = tensor
        for place, first in self._repeats:
            leaves[place] = leaves[first]
        rest = iter(leaves)
        return self._args.build(rest), self._kwargs.build(rest)

    def changed(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: Sequence[torch.Tensor]
    ) -> list[str]:
        """What a callable did to the containers that ``call_with(inputs)`` made, by path."""
        wanted: dict[int, Any] = dict(self._constants)
        wanted.update(zip(self._places, inputs, strict=True))
        wanted.update((place, wanted[first]) for place, first in self._repeats)
        found = [*self._args.differences(args, "args"), *self._kwargs.differences(kwargs, "kwargs")]
        leaves: list[Any] = []
        if not found and self._args.take(args, leaves) and self._kwargs.take(kwargs, leaves):
            paths = self._all_paths
            found = [paths[n] for n, leaf in enumerate(leaves) if leaf is not wanted[n]]
        return [line.partition(":")[0] for line in found]

    def mismatch(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, also: Sequence[str] = ()
    ) -> SignatureMismatch:
        """The error that lists every difference of a call.

        Args:
            args: Of that call.
            kwargs: The same.
            also: Differences that are known already.
        """
        found = [*also, *self._args.differences(args, "args")]
        found += self._kwargs.differences(kwargs, "kwargs")
        leaves: list[Any] = []
        paths = list(structure_of(tuple(args), leaves).paths("args"))
        paths += structure_of(dict(kwargs), leaves).paths("kwargs")
        given = dict(zip(paths, leaves, strict=True))
        # Where grad mode is off nothing is recorded, whatever requires grad.
        requires = self.requires if torch.is_grad_enabled() else ()
        wanted = dict(zip(self.paths, requires, strict=False))
        buffers = dict(zip(self.paths, self.tensors, strict=True))
        constants = {self._all_paths[place]: constant for place, constant in self._constants}
        same_as = {self._all_paths[place]: self._all_paths[first] for place, first in self._repeats}
        for path in self._all_paths:
            if path not in given:
                continue
            value = given[path]
            if path in same_as:
                first = same_as[path]
                unlike = compare(buffers[first], value, path)
                if not unlike and value is not given.get(first):
                    unlike = [f"{path}: captured as the same tensor as {first}, got another"]
                found += unlike
                continue
            if path in constants:
                if not same(constants[path], value):
                    found.append(f"{path}: captured {constants[path]!r}, got {_said(value)}")
                continue
            found += compare(buffers[path], value, path)
            if path in wanted and isinstance(value, torch.Tensor):
                was, now = wanted[path], value.requires_grad
                if was != now:
                    found.append(f"{path}.requires_grad: captured {was}, got {now}")
        return SignatureMismatch(differences=found, subject=self._subject)

    def _matched(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The leaves, once what was given by name is put where it was given by position."""
        leaves: list[Any] = []
        rebound = self._rebound(args, kwargs)
        if rebound is not None:
            args, kwargs = rebound
            if self._args.take(args, leaves) and self._kwargs.take(kwargs, leaves):
                return leaves
        raise self.mismatch(args, kwargs)

    def _rebound(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        signature = self._signature
        if signature is None:
            return None
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:
            return None
        names = [one.name for one in signature.parameters.values() if one.kind in BY_NAME_TOO]
        wanted = (*names[: self._count], *self._names)
        if set(wanted) != set(given) or len(wanted) != len(given):
            return None
        return (
            tuple(given[name] for name in names[: self._count]),
            {name: given[name] for name in self._names},
        )

    def _refuse_changeable(self) -> None:
        for place, value in self._constants:
            if not is_constant(value):
                raise ArgumentError(
                    doing="capturing",
                    subject=self._subject,
                    met=f"{self._all_paths[place]} is {a_type(value)}, which may change "
                    "without a graph noticing",
                    remedy="Pass what the callable uses of it: tensors, numbers, strings, or "
                    "tuples, lists, dicts and dataclasses of those. A module belongs to the "
                    "callable itself, as an attribute or in its closure.",
                )


BY_NAME_TOO = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def _picker(places: Sequence[int]) -> Callable[[list[Any]], tuple[Any, ...]]:
    if len(places) > 1:
        return itemgetter(*places)
    if places:
        place = places[0]
        return lambda leaves: (leaves[place],)
    return lambda leaves: ()


def _said(value: object) -> str:
    return repr(value) if is_constant(value) else a_type(value)
