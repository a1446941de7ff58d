"""Checks before and after a capture: ``preflight`` and ``assert_replay_equals_eager``."""
