"""Functions that ``torch.compile`` is to leave alone, with all that they call.

To trace them would be to record a launch as if it were Python. ``torch.compiler.disable`` wraps a
function, which costs a microsecond a call; this marks its code once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tensorplay_torch._private import PRIVATE

__all__ = ["untraced"]

F = TypeVar("F", bound=Callable[..., Any])


def untraced(function: F) -> F:
    """``function``, which compiled code calls as it is."""
    # A caller that is being traced looks at this attribute; a frame that is entered, at its code.
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    mark = PRIVATE["skip_code"].value
    if mark is not None:
        mark(function.__code__)
    return function
