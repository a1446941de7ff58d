"""Autocast and the default dtype as they were at a capture, compared at each call."""

from __future__ import annotations

import torch

__all__ = ["Autocast"]


class Autocast:
    """Autocast of this thread on one kind of device, and torch's default dtype, as they were.

    Args:
        kind: ``"cuda"`` or ``"cpu"``.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._enabled = torch.is_autocast_enabled(kind)
        self._dtype = torch.get_autocast_dtype(kind)
        # Code that makes tensors may follow it.
        self._default = torch.get_default_dtype()

    def difference(self) -> str:
        """How they are set otherwise now; ``""`` if they are not."""
        if torch.get_default_dtype() is not self._default:
            return (
                f"torch's default dtype: captured {self._default}, got {torch.get_default_dtype()}"
            )
        kind = self._kind
        enabled = torch.is_autocast_enabled(kind)
        if enabled is self._enabled and (
            not enabled or torch.get_autocast_dtype(kind) is self._dtype
        ):
            return ""
        was = self._dtype if self._enabled else "off"
        now = torch.get_autocast_dtype(kind) if enabled else "off"
        return f"autocast on {kind}: captured {was}, got {now}"
