"""How one graph takes over what another captured, or is left as it was.

Other threads may launch, reset, close or update either graph meanwhile, and an interrupt may come
at any moment. So nothing is taken over before all that can fail is done; what was read at the
beginning is compared once more at the end; and where the two disagree, the executable that may have
been refreshed already is let go of: the graph makes another, of what it has, when it is wanted.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from typing import NamedTuple

from . import reclaim, unwinding
from .errors import ArgumentTypeError, GraphStateError
from .inspection import InspectionMethods
from .pool import SharedPool
from .protocols import Executable, Template, Update
from .timeline import Timeline

__all__ = ["Parts", "UpdateMethods", "let_go"]

# Reentrant: a signal handler that updates other graphs may run in the midst of a claim.
_claims = threading.RLock()


class Parts(NamedTuple):
    """What a graph holds of a capture, as it was at one moment."""

    executable: Executable | None
    template: Template | None
    pool: SharedPool | None
    timeline: Timeline | None
    retained: tuple[object, ...]

    def without(self) -> Parts:
        """The same without an executable."""
        return self._replace(executable=None)


class UpdateMethods(InspectionMethods):
    """The updating part of a graph.

    Attributes:
        _updater: The number of the thread that updates it, or takes what it has for another; a
            tuple of its own for each update.
        _revision: Counts its updates.
    """

    _lock: threading.RLock
    _updater: tuple[int] | None
    _revision: int

    def update(self, other: UpdateMethods) -> Update:
        """Makes this graph run what ``other`` captured, keeping the executable where it can.

        ``other`` is consumed: it is empty afterwards. Static inputs are from here on those of
        ``other``, and plans made before are refused. If it raises, both are as they were.

        Returns:
            Whether the executable was refreshed in place, and if not, why a new one was made.

        Raises:
            ArgumentTypeError: ``other`` is no graph, this one, or of another driver.
            GraphStateError: Either graph was not captured, is being updated, or was reset, closed
                or captured anew meanwhile.
            DriverCallFailed: The driver could not.
        """
        if (
            not isinstance(other, UpdateMethods)
            or other is self
            or other._runtime is not self._runtime
        ):
            raise ArgumentTypeError(
                doing="updating",
                subject=repr(self),
                met=f"the other graph is {other!r}",
                remedy="Pass another captured graph of the same driver.",
            )
        claim = (threading.get_ident(),)
        try:
            self._claim(other, claim)
            return self._update(other)
        finally:
            for one in (self, other):
                if one._updater is claim:
                    one._updater = None

    def _claim(self, other: UpdateMethods, claim: tuple[int]) -> None:
        """Nobody else updates either graph, or from it, from here on."""
        with _claims:
            for one in (self, other):
                if one._updater is not None:
                    whose = "this thread" if one._updater == claim else "another thread"
                    raise GraphStateError(
                        doing="updating",
                        subject=repr(self),
                        met=f"{whose} is in the midst of an update of or from {one!r}",
                        remedy="Update a graph from one place at a time.",
                    )
            self._updater = other._updater = claim

    def _update(self, other: UpdateMethods) -> Update:
        executable = self._ready("updating")
        template = other._captured("updating from")
        before, others = self._parts(), other._parts()
        if before.executable is not executable or others.template is not template:
            raise self._meanwhile()
        result, made = None, executable
        try:
            for kept in before.retained:
                template.retain(kept)
            result = self._runtime.graph_update(executable, template)
            if not result.in_place:
                # Of some graphs there is one executable at a time.
                other._stop_running(others.executable)
                made = self._runtime.graph_instantiate(template)
            unwinding.through(self._take_over, other, made, before, others)
            unwinding.through(_tidy, before, others, made)
        except BaseException as error:
            certain = isinstance(error, Exception)
            unwinding.through(self._back_out, before, others, result, made, certain=certain)
            raise
        return result

    def _take_over(
        self, other: UpdateMethods, executable: Executable, before: Parts, others: Parts
    ) -> None:
        """Holds what ``other`` held. Idempotent."""
        with self._lock, other._lock:
            if self._template is not others.template:
                gone = others if other._executable is others.executable else others.without()
                if not (self._holds(before) and other._holds(gone)):
                    raise self._meanwhile()
                self._template = others.template
            # What the other kept goes with its work, at the latest with the next update.
            self._retained = list(before.retained)
            self._shared_pool, self._timeline = others.pool, others.timeline
            self._staged = None
            self._revision += 1
            if self._executable is not executable:
                self._run(executable)
            if other._template is others.template:
                other._forget()

    def _back_out(
        self,
        before: Parts,
        others: Parts,
        result: Update | None,
        made: Executable | None,
        *,
        certain: bool,
    ) -> None:
        """Undoes an update that did not come to its end. Idempotent.

        Args:
            before: What this graph held.
            others: What the other held.
            result: What the driver said, None if it did not get there.
            made: What this graph was to run.
            certain: No interrupt broke in: the driver changed nothing without saying so.
        """
        if self._template is others.template:  # It was done, but for the tidying.
            _tidy(before, others, made)
            return
        if made is not None and made is not before.executable:
            reclaim.dispose(made.close)
        if not certain or (result is not None and result.in_place):
            self._stop_running(before.executable)

    def _stop_running(self, executable: Executable | None) -> None:
        """Lets go of the executable, if it has it still; the next use makes another."""
        with self._lock:
            if executable is not None and self._executable is executable:
                self.__dict__.pop("replay", None)
                self._executable = self._staged = None
        if executable is not None:
            reclaim.dispose(executable.close)

    def _holds(self, parts: Parts) -> bool:
        """True if these are its parts; what is retained does not count."""
        return (
            self._executable is parts.executable
            and self._template is parts.template
            and self._shared_pool is parts.pool
            and self._timeline is parts.timeline
        )

    def _parts(self) -> Parts:
        return Parts(
            self._executable,
            self._template,
            self._shared_pool,
            self._timeline,
            tuple(self._retained),
        )

    def _meanwhile(self) -> GraphStateError:
        return GraphStateError(
            doing="updating",
            subject=repr(self),
            met="one of the two graphs was reset, closed or captured anew meanwhile",
            remedy="Update a graph while no other thread ends it or the other.",
        )

    @abstractmethod
    def _ready(self, doing: str) -> Executable:
        """The executable, made if need be."""

    @abstractmethod
    def _run(self, executable: Executable) -> None:
        """Launches ``executable`` from now on."""


def let_go(parts: Parts) -> None:
    """Ends the parts of a graph, now or once no capture is live. Idempotent."""
    for part in (parts.executable, parts.template):
        if part is not None:
            reclaim.dispose(part.close)
    if parts.pool is not None:
        parts.pool.release()


def _tidy(before: Parts, others: Parts, executable: Executable | None) -> None:
    """Lets go of what neither graph needs once ``executable`` runs for the one. Idempotent."""
    for part in (others.executable, before.executable, before.template):
        if part is not None and part is not executable:
            reclaim.dispose(part.close)
    if before.pool is not None:
        before.pool.release()
