"""Observers that core ships; ``TENSORPLAY_OBSERVERS=log,statistics`` turns them on."""

from __future__ import annotations
