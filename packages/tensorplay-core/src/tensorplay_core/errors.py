"""Everything tensorplay raises, one tree.

TensorplayError
├── ArgumentError (ValueError)                  a value no driver could accept
│   └── ArgumentTypeError (TypeError)           a value of the wrong type
├── DriverError (RuntimeError)
│   ├── UnknownDriver (LookupError)             no such name; lists those installed
│   ├── DriverUnavailable                       known, cannot work here; says why
│   ├── UnsupportedByDriver (NotImplementedError)   the driver lacks the hook
│   └── DriverCallFailed                        a native call failed: .call .code .meaning
├── GraphStateError (RuntimeError)              begin while capturing, replay when empty
├── CaptureError (RuntimeError)                 the capture cannot be what was asked
│   ├── OperationRefused                        one operation cannot be recorded: .operation .where
│   ├── CaptureInvalidated                      an illegal call broke the capture
│   ├── UnjoinedWork                            a forked stream was not joined
│   └── EmptyCapture                            nothing was recorded
├── ReplayError (RuntimeError)                  the graph cannot run now
│   ├── SignatureMismatch (ValueError)          inputs differ from what was captured: .differences
│   ├── StaleGraph                              what the graph reads has moved or died
│   └── LoopLimitExceeded                       a while body ran more often than the driver's cap
├── PoolError (RuntimeError)
│   ├── PoolMismatch (ValueError)               a pool of another driver or device
│   └── PoolExhausted (MemoryError)             the memory is not there
└── ConditionalError (RuntimeError)             bodies opened, entered or closed out of order
    └── PredicateError (ValueError)             not one Bool (or one index) on the capturing device

Every error says four things: what was being done, to what, what was met, what to do instead.
They are the keyword arguments of each class and stay readable as attributes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "CaptureError",
    "CaptureInvalidated",
    "ConditionalError",
    "DriverCallFailed",
    "DriverError",
    "DriverUnavailable",
    "EmptyCapture",
    "GraphStateError",
    "LoopLimitExceeded",
    "OperationRefused",
    "PoolError",
    "PoolExhausted",
    "PoolMismatch",
    "PredicateError",
    "ReplayError",
    "SignatureMismatch",
    "StaleGraph",
    "TensorplayError",
    "UnjoinedWork",
    "UnknownDriver",
    "UnsupportedByDriver",
]


def _restore(cls: type[TensorplayError], facts: Mapping[str, Any]) -> TensorplayError:
    return cls(**facts)


class TensorplayError(Exception):
    """Root of every error tensorplay raises.

    Args:
        doing: What was being done, as a gerund phrase: ``"replaying"``.
        subject: The named thing it was done to: ``"CUDAGraph #3 on cuda:0"``.
        met: What was met, a clause: ``"it has not been captured yet"``.
        remedy: What to do, a sentence: ``"Capture it first: with graph(g): ..."``.
    """

    def __init__(self, *, doing: str, subject: str, met: str, remedy: str, **facts: Any) -> None:
        self.doing, self.subject, self.met, self.remedy = doing, subject, met, remedy
        self._facts = {"doing": doing, "subject": subject, "met": met, "remedy": remedy, **facts}
        super().__init__(f"{doing} {subject}: {met}.\n{remedy}")

    def __reduce__(self) -> tuple[Any, ...]:
        # Keyword-only constructors do not survive Exception's own pickling.
        return (_restore, (type(self), self._facts), {"__notes__": getattr(self, "__notes__", [])})


class ArgumentError(TensorplayError, ValueError):
    """A value that no driver could accept, such as an unknown capture mode."""


class ArgumentTypeError(ArgumentError, TypeError):
    """A value of the wrong type."""


class DriverError(TensorplayError, RuntimeError):
    """A driver is missing, cannot work here, or failed."""


class UnknownDriver(DriverError, LookupError):
    """No driver of that name is installed."""


class DriverUnavailable(DriverError):
    """The driver is installed and cannot work on this machine."""


class UnsupportedByDriver(DriverError, NotImplementedError):
    """The driver does not implement what was asked of it.

    Attributes:
        driver: Name of the driver.
        hook: Name of the missing hook, without the ``tensorplay_`` prefix.
    """

    def __init__(self, *, driver: str, hook: str, doing: str, remedy: str) -> None:
        self.driver, self.hook = driver, hook
        super().__init__(
            doing=doing,
            subject=f"driver {driver!r}",
            met=f"driver {driver!r} lacks {hook}",
            remedy=remedy,
        )
        self._facts = {"driver": driver, "hook": hook, "doing": doing, "remedy": remedy}


class DriverCallFailed(DriverError):
    """A native driver call returned an error.

    Attributes:
        call: Name of the call, ``"cuGraphLaunch"``.
        code: Its numeric result.
        code_name: The driver's name of that result, ``"CUDA_ERROR_INVALID_VALUE"``.
        meaning: What the result means, in a sentence.
    """

    def __init__(
        self,
        *,
        call: str,
        code: int,
        code_name: str,
        meaning: str,
        subject: str,
        remedy: str,
        doing: str = "calling the driver for",
    ) -> None:
        self.call, self.code, self.code_name, self.meaning = call, code, code_name, meaning
        super().__init__(
            doing=doing,
            subject=subject,
            met=f"{call} returned {code_name} ({code}): {meaning.rstrip('.')}",
            remedy=remedy,
        )
        self._facts = {
            "call": call,
            "code": code,
            "code_name": code_name,
            "meaning": meaning,
            "subject": subject,
            "remedy": remedy,
            "doing": doing,
        }


class GraphStateError(TensorplayError, RuntimeError):
    """The graph is not in the state that the call needs."""


class CaptureError(TensorplayError, RuntimeError):
    """The capture cannot be what was asked."""


class OperationRefused(CaptureError):
    """One operation cannot be recorded.

    Attributes:
        operation: Its name, ``"aten._local_scalar_dense"``.
        where: ``"file:line"`` of the user's code, or ``""`` when it is not known.
    """

    def __init__(
        self,
        *,
        operation: str,
        met: str,
        remedy: str,
        where: str = "",
        doing: str = "capturing",
        subject: str | None = None,
    ) -> None:
        self.operation, self.where = operation, where
        place = f" at {where}" if where else ""
        super().__init__(
            doing=doing, subject=subject or f"{operation}{place}", met=met, remedy=remedy
        )
        self._facts = {
            "operation": operation,
            "met": met,
            "remedy": remedy,
            "where": where,
            "doing": doing,
            "subject": subject,
        }


class CaptureInvalidated(CaptureError):
    """An illegal call, of this thread or of another, broke the capture."""


class UnjoinedWork(CaptureError):
    """A stream that was forked into the capture was not joined back before its end."""


class EmptyCapture(CaptureError):
    """The capture recorded nothing."""


class ReplayError(TensorplayError, RuntimeError):
    """The graph cannot run now."""


class SignatureMismatch(ReplayError, ValueError):
    """Inputs differ from what was captured.

    Attributes:
        differences: One line each: ``"args[1].shape: captured (8, 16), got (8, 12)"``.
    """

    def __init__(
        self,
        *,
        differences: Iterable[str],
        subject: str,
        doing: str = "calling",
        remedy: str = "Pass inputs like those captured, or capture again for these.",
    ) -> None:
        self.differences = tuple(differences)
        count = len(self.differences)
        listed = "".join(f"\n  {line}" for line in self.differences)
        super().__init__(
            doing=doing,
            subject=subject,
            met=f"{count} difference{'s' if count != 1 else ''} from what was captured:{listed}",
            remedy=remedy,
        )
        self._facts = {
            "differences": self.differences,
            "subject": subject,
            "doing": doing,
            "remedy": remedy,
        }


class StaleGraph(ReplayError):
    """Memory that the graph reads has moved or died since the capture."""


class LoopLimitExceeded(ReplayError):
    """A while body ran more often than the driver allows."""


class PoolError(TensorplayError, RuntimeError):
    """A memory pool cannot serve."""


class PoolMismatch(PoolError, ValueError):
    """A pool of another driver, another device, or no pool at all."""


class PoolExhausted(PoolError, MemoryError):
    """The device has no memory left for the pool."""


class ConditionalError(TensorplayError, RuntimeError):
    """Conditional bodies were opened, entered or closed out of order."""


class PredicateError(ConditionalError, ValueError):
    """A predicate that is not one Bool (a switch: one integer) on the capturing device."""
