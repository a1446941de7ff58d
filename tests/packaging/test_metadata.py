"""What an installer and a plugin finder read of the packages, installed and built."""

import importlib.metadata
import pathlib
import tarfile
import zipfile

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
from packaging.requirements import Requirement

ROOT = pathlib.Path(__file__).parents[2]
NAMES = ["tensorplay-core", "tensorplay-torch", "tensorplay-adapt", "tensorplay-cupy"]
GROUPS = {
    "pytest11",
    "tensorplay_core.drivers",
    "tensorplay_core.observers",
    "tensorplay_core.workbenches",
}
ENTRY_POINTS = [
    pytest.param(point, id=f"{point.group}:{point.name}")
    for name in NAMES
    for point in importlib.metadata.distribution(name).entry_points
]


def required(name: str, extra: str = "") -> set[str]:
    """Names of the distributions that `name[extra]` requires."""
    every = map(Requirement, importlib.metadata.requires(name) or [])
    return {
        item.name for item in every if item.marker is None or item.marker.evaluate({"extra": extra})
    }


@pytest.mark.parametrize("point", ENTRY_POINTS)
def test_an_entry_point_leads_somewhere(point: importlib.metadata.EntryPoint) -> None:
    assert point.group in GROUPS
    assert point.load() is not None


def test_core_registers_its_own_drivers_by_the_common_door() -> None:
    points = importlib.metadata.distribution("tensorplay-core").entry_points
    drivers = {point.name for point in points.select(group="tensorplay_core.drivers")}
    workbenches = {point.name for point in points.select(group="tensorplay_core.workbenches")}
    assert drivers == workbenches == {"host", "cuda"}


def test_core_requires_only_pluggy() -> None:
    assert required("tensorplay-core") == {"pluggy"}


def test_the_base_of_the_cupy_package_requires_no_cupy_wheel() -> None:
    assert required("tensorplay-cupy") == {"tensorplay-core"}


@pytest.mark.parametrize("line", ["12", "13"])
def test_a_cuda_extra_brings_the_wheels_of_its_line(line: str) -> None:
    assert "cuda-bindings" in required("tensorplay-core", f"cuda{line}")
    assert f"cupy-cuda{line}x" in required("tensorplay-cupy", f"cuda{line}")
    for name in ("tensorplay-torch", "tensorplay-adapt"):
        chosen = map(Requirement, importlib.metadata.requires(name) or [])
        assert any(f"cuda{line}" in item.extras for item in chosen)


@pytest.mark.parametrize("name", NAMES)
def test_a_wheel_carries_its_licence_and_says_it_is_typed(
    name: str, tmp_path: pathlib.Path
) -> None:
    builder = WheelBuilder(str(ROOT / "packages" / name))
    (path,) = builder.build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(path) as wheel:
        members = wheel.namelist()
        (metadata,) = (item for item in members if item.endswith(".dist-info/METADATA"))
        about = wheel.read(metadata).decode()
    assert any(item.endswith(".dist-info/licenses/LICENSE") for item in members)
    assert f"{name.replace('-', '_')}/py.typed" in members
    assert "License-Expression: Apache-2.0\n" in about
    assert "Requires-Python: >=3.11\n" in about


@pytest.mark.parametrize("name", NAMES)
def test_a_source_distribution_carries_its_licence_and_sources(
    name: str, tmp_path: pathlib.Path
) -> None:
    builder = SdistBuilder(str(ROOT / "packages" / name))
    (path,) = builder.build(directory=str(tmp_path), versions=["standard"])
    module = name.replace("-", "_")
    with tarfile.open(path) as archive:
        members = {item.partition("/")[2] for item in archive.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", f"src/{module}/py.typed"} <= members


def test_every_package_ships_the_licence_of_the_project() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    for name in NAMES:
        assert (ROOT / "packages" / name / "LICENSE").read_text(encoding="utf-8") == text
