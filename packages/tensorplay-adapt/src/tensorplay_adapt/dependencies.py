"""What a captured step depends on beside its batch, and whether it is still what it was.

A graph reads and writes memory where that was. All of it is looked at in each call, by loops that
run in C, compiled ones if they are built: which tensors modules and optimizer hold; where their
memory is and how it is read, by ``forms``; what is Python's own, by ``watching``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from operator import is_, itemgetter
from typing import Any

import torch
from torch import nn

from tensorplay_torch.compiled import parts
from tensorplay_torch.graphing.autocast import Autocast
from tensorplay_torch.tracking.fixed import same
from tensorplay_torch.tracking.ran import Ran

from .attributes import Names
from .forms import Forms
from .recipe import Recipe
from .snapshot import functions_of, named_state, reached_by
from .turning import in_turn
from .watching import Watching

__all__ = ["Dependencies"]

OF_STATE = "optimizer.state["
OF_OPTIMIZERS = ("state", "param_groups")
HELD = ("_parameters", "_buffers", "_modules")
SCALER = ("_growth_factor", "_backoff_factor", "_growth_interval", "_scale", "_growth_tracker")


class Dependencies:
    """See the module.

    Args:
        recipe: The step, as it was just captured.
        ran: Functions of the user's code that ran in the capture.

    Attributes:
        unchanged: Called without arguments it returns True if nothing changed. With compiled parts
            it looks at everything, and the checks are asked in its place.
    """

    def __init__(self, recipe: Recipe, ran: Sequence[Ran] = ()) -> None:
        optimizer = recipe.optimizer
        self._optimizer, self._scaler = optimizer, recipe.features.scaler
        self._names = {one: name for name, one in named_state(recipe).items()}
        reached = functions_of(recipe, ran)
        self._modules = {
            f"{owner}.{path}" if owner and path else owner or path: module
            for owner, outermost in reached_by(recipe, reached).items()
            for path, module in outermost.named_modules()
        }
        self._state, self._groups = optimizer.state, optimizer.param_groups
        self._lists = [group["params"] for group in self._groups]
        self._steered = list(chain.from_iterable(self._lists))
        # By what they are called.
        self._dicts: dict[str, dict[Any, Any]] = {
            f"{path or 'the module'}.{kind}": vars(module)[kind]
            for path, module in self._modules.items()
            for kind in HELD
        }
        self._states = list(self._state.values())
        settings = {
            one: f"param_groups[{place}][{name!r}]"
            for place, group in enumerate(self._groups)
            for name, value in group.items()
            if name != "params"
            for one in (value if isinstance(value, list | tuple) else (value,))
            if isinstance(one, torch.Tensor)
        }
        for parameter, state in self._state.items():
            self._dicts[f"optimizer.state[{self._name(parameter)}]"] = state
        # Views show what the dicts hold at the time.
        self._views = [one.values() for one in self._dicts.values() if one]
        self._empty = [one for one in self._dicts.values() if not one]
        self._keys = list(map(list, self._dicts.values()))
        self._state_keys = list(self._state)
        self._held = list(chain.from_iterable(self._views))
        watched = dict.fromkeys(
            chain(
                (one for one in self._held if isinstance(one, nn.Parameter)),
                self._steered,
                settings,
                self._names,
            )
        )
        self._names = {**settings, **self._names}
        names = {one: self._name(one) for one in watched}
        turning = {one: name for one, name in names.items() if name.startswith(OF_STATE)}
        self._forms = Forms(
            {one: name for one, name in names.items() if one not in turning}, turning
        )
        self._lengths = list(map(len, self._lists))
        self._autocast = Autocast(recipe.device.type)
        self._settings = _scaling(self._scaler)
        self._held_groups = list(self._groups)
        trained = {one: self._name(one) for one in watched if one.requires_grad}
        self.watching = Watching(recipe, self._modules, trained, reached)
        self._device = recipe.device.type
        self._checks: list[Callable[[], object]] = []
        self.unchanged = self._look()

    def note(self) -> None:
        """Takes what does not matter as it is now, so that the next look is short again."""
        self.watching.note()
        self.unchanged = self._look()

    @property
    def written(self) -> list[torch.Tensor]:
        """The parameters that a step changes."""
        return list(dict.fromkeys(chain.from_iterable(self._lists)))

    def state(self) -> dict[str, torch.Tensor]:
        """Every tensor that lasts from one step to the next, by name."""
        return {name: one for one, name in self._names.items()}

    def _look(self) -> Callable[[], bool]:
        """``unchanged``, with everything that it looks at within reach."""
        optimizer, state, groups = self._optimizer, self._state, self._groups
        states, held_groups = list(state.values()), self._held_groups
        lists, lengths, steered = self._lists, self._lengths, self._steered
        views, held = self._views, list(chain.from_iterable(self._views))
        # One value equals another, and the truth of many raises: those are told by being the same.
        single = [n for n, one in enumerate(held) if not _is_array(one)]
        pick: Callable[[list[Any]], Any] = itemgetter(*single, 0, 0) if held else tuple
        picked = pick(held)
        empty, as_they_were = self._empty, self._forms.unchanged
        names = [Names(one) for one in (*self._dicts.values(), state)]
        named = in_turn(names)
        scaler, settings = self._scaler, _scaling(self._scaler)
        autocast, values = self._autocast.difference, state.values()
        watching = self.watching
        number, flat, entries = len(groups), chain.from_iterable, len(states)

        def is_held(found: list[Any]) -> bool:
            # Where objects are the same, to compare lists takes a tenth of asking `is` of each.
            try:
                return found == held and all(map(is_, pick(found), picked))
            except (RuntimeError, ValueError):
                return False

        def holds() -> bool:
            return (
                optimizer.state is state
                and optimizer.param_groups is groups
                and len(groups) == number
                and all(map(is_, groups, held_groups))
                and len(values) >= entries
                and all(map(is_, values, states))
                and not any(empty)
                and is_held(list(flat(views)))
                and all(
                    group.get("params") is one for group, one in zip(groups, lists, strict=True)
                )
                and list(map(len, lists)) == lengths
                and all(map(is_, flat(lists), steered))
            )

        def scaled() -> bool:
            return scaler is None or all(map(is_, _scaling(scaler), settings))

        def usual() -> bool:
            return (
                holds()
                and named()
                and scaled()
                and watching.unchanged()
                and as_they_were()
                and not autocast()
            )

        def closely() -> bool:
            return usual() and not any(one.changed for one in names)

        if (compiled := parts()) is not None:
            whole = [*self._dicts.values(), *self._lists, self._groups, self._state]
            same = compiled.Same(whole, [], [], [], [(optimizer, name) for name in OF_OPTIMIZERS])
            self._checks = [same, as_they_were, compiled.Modes(self._device)]
            if scaler is not None:
                self._checks.append(scaled)
            return closely
        return usual

    @property
    def checks(self) -> list[Callable[[], object]]:
        """With compiled parts: what is all true only if nothing changed, each cheap to ask.

        ``note()`` makes another list.
        """
        return [*self._checks, *self.watching.checks]

    def differences(self) -> Iterator[str]:
        """What changed, one line each."""
        yield from self._rebound()
        yield from self._forms.differences()
        for name, was, now in zip(SCALER, self._settings, _scaling(self._scaler), strict=False):
            if now is not was and not same(was, now):
                yield f"scaler.{name} is not what it was"
        if difference := self._autocast.difference():
            yield difference
        yield from self.watching.differences()

    def _rebound(self) -> Iterator[str]:
        if self._optimizer.state is not self._state:
            yield "optimizer.state was replaced (load_state_dict puts new tensors in)"
        elif len(self._state) < len(self._states):
            yield "entries of optimizer.state were removed"
        elif not all(map(is_, self._state.values(), self._states)):
            yield "an entry of optimizer.state was replaced"
        elif not all(map(is_, self._state, self._state_keys)):
            yield "an entry of optimizer.state belongs to another parameter"
        if self._optimizer.param_groups is not self._groups:
            yield "optimizer.param_groups was replaced (load_state_dict)"
        elif len(self._groups) != len(self._lists):
            yield f"optimizer has {len(self._groups)} parameter groups, had {len(self._lists)}"
        elif not all(map(is_, self._groups, self._held_groups)):
            yield "an entry of optimizer.param_groups was replaced"
        else:
            yield from self._regrouped()
        held = iter(self._held)
        for (name, source), keys in zip(self._dicts.items(), self._keys, strict=True):
            before = [next(held) for _ in keys]
            now = list(source.values())
            if len(now) != len(before):
                yield f"{name} has {len(now)} entries, had {len(before)}"
                continue
            if list(source) != keys:
                yield f"{name} has the entries {list(source)}, had {keys}"
                continue
            for key, was, value in zip(source, before, now, strict=True):
                if value is not was and not same(was, value):
                    yield f"{name}[{key!r}] was replaced"

    def _regrouped(self) -> Iterator[str]:
        steered = iter(self._steered)
        for place, (group, held, size) in enumerate(
            zip(self._groups, self._lists, self._lengths, strict=True)
        ):
            before, now = [next(steered) for _ in range(size)], group.get("params", ())
            if len(now) != size:
                yield f"param_groups[{place}] has {len(now)} parameters, had {size}"
            elif not all(map(is_, now, before)):
                yield f"param_groups[{place}]['params'] has other parameters"
            elif now is not held:
                yield f"param_groups[{place}]['params'] was replaced"

    def _name(self, tensor: Any) -> str:
        return self._names.get(tensor, "a parameter")


def _is_array(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() > 1


def _scaling(scaler: object) -> list[Any]:
    return [getattr(scaler, name) for name in SCALER] if scaler is not None else []
