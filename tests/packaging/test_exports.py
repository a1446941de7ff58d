"""The public door of each package: `__all__` is what it exposes, no more and no less."""

import importlib
import types

import pytest

PACKAGES = ["tensorplay_core", "tensorplay_torch", "tensorplay_adapt", "tensorplay_cupy"]
# Names that a module gets by saying how it is written, not what it offers.
GRAMMAR = {"TYPE_CHECKING", "annotations"}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_exported_name_is_there(package: str) -> None:
    module = importlib.import_module(package)
    missing = [name for name in module.__all__ if not hasattr(module, name)]
    assert not missing


@pytest.mark.parametrize("package", PACKAGES)
def test_no_name_is_exported_twice(package: str) -> None:
    names = importlib.import_module(package).__all__
    assert len(names) == len(set(names))


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_exported(package: str) -> None:
    module = importlib.import_module(package)
    public = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert public - GRAMMAR <= set(module.__all__)


@pytest.mark.parametrize("package", PACKAGES)
def test_dir_lists_what_is_exported(package: str) -> None:
    module = importlib.import_module(package)
    assert set(module.__all__) <= set(dir(module))


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_says_what_it_is(package: str) -> None:
    assert importlib.import_module(package).__doc__
