"""CuPy's current stream, without a GPU: where the function in C is that tells it."""

from __future__ import annotations

import pytest

pytest.importorskip("cupy")

from tensorplay_cupy import streams


def test_cupy_s_own_function_is_found_by_its_signature():
    """A CuPy that offers another one is asked through Python: see ``current_of``."""
    assert streams._address("get_stream_ptr", "intptr_t (int)")
    assert streams._address("get_stream_ptr", "intptr_t (void)") is None
    assert streams._address("get_stream_of_old", "intptr_t (int)") is None


def test_without_it_the_stream_is_an_object(monkeypatch):
    with_it = streams.current_of(3)
    assert with_it.function == (streams._address("get_stream_ptr", "intptr_t (int)"), 3)
    monkeypatch.setattr(streams, "_address", lambda *_: None)
    assert callable(streams.current_of(3).function)
