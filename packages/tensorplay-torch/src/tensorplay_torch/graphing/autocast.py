"""Autocast as it was at a capture, compared at each call."""

from __future__ import annotations

import torch

__all__ = ["Autocast"]


class Autocast:
    """Autocast of this thread on one kind of device, as it was when this was made.

    Args:
        kind: ``"cuda"`` or ``"cpu"``.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._enabled = torch.is_autocast_enabled(kind)
        self._dtype = torch.get_autocast_dtype(kind)

    def difference(self) -> str:
        """How it is set otherwise now; ``""`` if it is not."""
        kind = self._kind
        enabled = torch.is_autocast_enabled(kind)
        if enabled is self._enabled and (
            not enabled or torch.get_autocast_dtype(kind) is self._dtype
        ):
            return ""
        was = self._dtype if self._enabled else "off"
        now = torch.get_autocast_dtype(kind) if enabled else "off"
        return f"autocast on {kind}: captured {was}, got {now}"
