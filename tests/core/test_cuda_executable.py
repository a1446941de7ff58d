"""Executables of the CUDA driver over calls that are only noted. No GPU is needed."""

from __future__ import annotations

import sys
import threading
from typing import Any

from tensorplay_core.drivers.cuda.conditional import Conditionals

from .noted_driver import Driver


def test_staged_launches_of_several_threads_are_all_known() -> None:
    plugin = Conditionals(Driver(13000))
    made = plugin.make_executable(plugin.template_of(None, 7, object(), 0), 8, object(), lambda: 0)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(300):
            staged: list[Any] = [Thing() for _ in range(4)]
            threads = [threading.Thread(target=made.depend, args=(one,)) for one in staged]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert {id(one) for one in made.staged()} == set(map(id, staged))
            staged.clear()
            assert made.staged() == []
    finally:
        sys.setswitchinterval(interval)


class Thing:
    """Stands for a staged launch."""

    def close(self) -> None:
        pass


def test_an_order_leaves_launches_where_their_owner_diverted_them() -> None:
    """torch advances its generators in launches of its own: no other way may take their place."""
    driver = Driver(13000)
    plugin, told = Conditionals(driver), []
    made = plugin.make_executable(plugin.template_of(None, 7, object(), 0), 8, object(), lambda: 5)
    driver.answers["cuStreamIsCapturing"] = lambda stream: 0

    def owners(native_executable: Any, target: Any) -> tuple[int]:
        told.append(int(target))
        return (0,)

    made.divert(owners)
    for _ in range(2):
        driver.made.clear()
        made.follow(6, "copying")
        asked = [name for name, _ in driver.made]
        # Each time anew: of what the owner launched meanwhile nobody was told.
        assert "cuEventRecord" in asked
        assert "cuStreamWaitEvent" in asked
        made.launch()
    assert told == [5, 5]
    assert "cuGraphLaunch" not in [name for name, _ in driver.made]
    made.divert(None)
    made.launch()
    assert told == [5, 5]
    assert "cuGraphLaunch" in [name for name, _ in driver.made]
