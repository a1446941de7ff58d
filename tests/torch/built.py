"""The compiled parts, for the tests that are of them alone."""

from __future__ import annotations

import pytest

from tensorplay_torch import compiled

BUILT = compiled.parts()

needs_parts = pytest.mark.skipif(
    BUILT is None, reason=f"the compiled parts are not in use: {compiled.summary()}"
)
