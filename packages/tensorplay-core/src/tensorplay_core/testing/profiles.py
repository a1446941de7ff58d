"""Hypothesis profiles of property tests: ``dev``, ``ci`` and ``thorough``.

``HYPOTHESIS_PROFILE`` chooses; else hypothesis itself does when it sees CI; else it is ``dev``. It
is loaded before the first ``@given`` that is to use it, because that is when settings are read.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings
from hypothesis.errors import InvalidArgument

__all__ = ["load"]


def load() -> str:
    """Registers the profiles that are not there, loads the one chosen and returns its name.

    A profile that was loaded by other means (``--hypothesis-profile``, a ``conftest.py``) stays.
    ``ci`` is hypothesis' own: 100 examples, the same each time, with a blob to reproduce a failure.
    """
    # Devices are slow to start and vary, so no deadline; programs are drawn in many small steps.
    patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    for name, examples in (("dev", 50), ("thorough", 2000)):
        try:
            settings.get_profile(name)
        except InvalidArgument:
            settings.register_profile(name, patient, max_examples=examples)
    current = settings.get_current_profile_name()
    chosen = os.environ.get("HYPOTHESIS_PROFILE") or ("dev" if current == "default" else current)
    if chosen != current:
        settings.load_profile(chosen)
    return chosen
