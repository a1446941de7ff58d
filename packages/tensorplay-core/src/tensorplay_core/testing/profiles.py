"""Hypothesis profiles of property tests: ``dev``, ``ci`` and ``thorough``.

``HYPOTHESIS_PROFILE`` chooses; else hypothesis' own detection of CI does. Imported before the first
``@given`` that is to use them, because that is when hypothesis reads its settings.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

__all__ = ["load"]


def load() -> str:
    """Registers the profiles, loads the one chosen and returns its name.

    A profile that the user loaded by other means (``--hypothesis-profile``) stays.
    """
    # Devices are slow to start and vary, so no deadline; programs are drawn in many small steps.
    patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("dev", patient, max_examples=50)
    settings.register_profile(
        "ci", settings.get_profile("ci"), max_examples=100, print_blob=True, derandomize=True
    )
    settings.register_profile("thorough", patient, max_examples=2000)
    current = settings.get_current_profile_name()
    chosen = os.environ.get("HYPOTHESIS_PROFILE") or {"default": "dev"}.get(current, current)
    if chosen != current:
        settings.load_profile(chosen)
    return chosen
