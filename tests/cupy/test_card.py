"""The CuPy driver's card: it says why CuPy cannot be driven here, and what would help."""

from __future__ import annotations

import importlib.metadata
import sys
import types

import pytest

from tensorplay_core import __main__ as report
from tensorplay_core import discovery
from tensorplay_core.errors import DriverUnavailable
from tensorplay_cupy import CUDAGraph, driver


class Wheel:
    """An installed distribution, as far as the card looks."""

    def __init__(self, name, version="14.2.0"):
        self.metadata = {"Name": name}
        self.version = version


def installed(monkeypatch, *names):
    monkeypatch.setattr(driver, "distributions", lambda: [Wheel(name) for name in names])


def cupy_of(monkeypatch, *, version="14.2.0", hip=False, devices=1):
    def count():
        if isinstance(devices, Exception):
            raise devices
        return devices

    runtime = types.SimpleNamespace(
        is_hip=hip, getDeviceCount=count, CUDARuntimeError=ZeroDivisionError
    )
    module = types.SimpleNamespace(__version__=version, cuda=types.SimpleNamespace(runtime=runtime))
    monkeypatch.setitem(sys.modules, "cupy", module)


def beneath(monkeypatch, reason):
    card = types.SimpleNamespace(viability=lambda: reason)
    monkeypatch.setattr(driver.discovery, "load_card", lambda name: card)


@pytest.mark.parametrize(
    "names", [("cupy-cuda12x", "cupy-cuda13x"), ("cupy", "CuPy_CUDA12x"), ("cupy-rocm-5-0", "cupy")]
)
def test_duplicate_wheels_are_named(monkeypatch, names):
    installed(monkeypatch, *names, "cupyx-extras", "numpy")
    reason = driver.viability()
    for name in names:
        assert name.lower().replace("_", "-") in reason
    assert "cupyx-extras" not in reason
    assert "uninstall" in reason


def test_a_missing_cupy_is_said_with_what_installs_it(monkeypatch):
    installed(monkeypatch)
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert "pip install 'tensorplay-cupy[cuda13]'" in driver.viability()


@pytest.mark.parametrize("version", ["13.6.0", "9.0", "unknown"])
def test_an_old_cupy_is_refused_with_the_floor(monkeypatch, version):
    installed(monkeypatch, "cupy-cuda13x")
    cupy_of(monkeypatch, version=version)
    assert version in driver.viability()
    assert "14.0" in driver.viability()


def test_a_rocm_build_is_refused_by_name(monkeypatch):
    installed(monkeypatch, "cupy")
    cupy_of(monkeypatch, hip=True)
    assert "ROCm" in driver.viability()


def test_it_cannot_work_where_the_driver_beneath_cannot(monkeypatch):
    installed(monkeypatch, "cupy-cuda13x")
    cupy_of(monkeypatch)
    beneath(monkeypatch, "no GPU is visible")
    assert "'cuda'" in driver.viability()
    assert "no GPU is visible" in driver.viability()


def test_it_cannot_work_where_cupy_itself_cannot(monkeypatch):
    installed(monkeypatch, "cupy-cuda13x")
    cupy_of(monkeypatch, devices=ZeroDivisionError("the driver is too old"))
    beneath(monkeypatch, None)
    assert "the driver is too old" in driver.viability()


def test_it_works_where_everything_is_there(monkeypatch):
    installed(monkeypatch, "cupy-cuda13x")
    cupy_of(monkeypatch, version="14.2.0rc1")
    beneath(monkeypatch, None)
    assert driver.viability() is None


def test_the_report_gives_the_reason():
    found = {one.name: one for one in discovery.find_drivers()}["cupy"]
    section = report.report().partition("  cupy (priority 15)")[2]
    assert (found.reason is None) == section.lstrip().startswith("viable")
    assert found.reason is None or found.reason in section


def test_a_graph_without_a_gpu_is_refused_with_the_reason(monkeypatch):
    card = discovery.load_card("cupy")
    monkeypatch.setattr(card, "viability", lambda: "no GPU is visible")
    monkeypatch.setattr("tensorplay_core.runtime._selected", {})
    with pytest.raises(DriverUnavailable) as caught:
        CUDAGraph()
    for part in (caught.value.doing, caught.value.subject, caught.value.met, caught.value.remedy):
        assert part
    assert "no GPU is visible" in str(caught.value)


def test_the_driver_has_every_hook_and_loading_it_touches_no_gpu():
    from tensorplay_core.runtime import NOUNS, Runtime

    has = Runtime(driver.load(), name="cupy").nouns()
    assert has == NOUNS


def test_the_extras_name_wheels_no_older_than_the_floor():
    asked = importlib.metadata.requires("tensorplay-cupy") or []
    wheels = [one for one in asked if one.startswith("cupy-cuda")]
    assert len(wheels) == 2
    assert all(f">={driver.FLOOR[0]}" in one for one in wheels)
