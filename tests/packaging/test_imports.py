"""Importing a package imports nothing heavy; a driver pays for itself when it is asked for."""

import pathlib
import subprocess
import sys

import pytest

CHECK = pathlib.Path(__file__).parent / "imports.py"


def check(package: str, *path: pathlib.Path) -> subprocess.CompletedProcess[str]:
    code = f"""
import runpy, sys
sys.path[:0] = {[str(item) for item in path]}
sys.argv = ["imports.py", {package!r}]
runpy.run_path({str(CHECK)!r}, run_name="__main__")
"""
    command = [sys.executable, "-I", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "package",
    [
        "tensorplay_core",
        "tensorplay_core.drivers.host",
        "tensorplay_torch",
        "tensorplay_adapt",
        "tensorplay_cupy",
        "_tensorplay_pytestplugin",  # in every pytest run where core is installed
    ],
)
def test_importing_a_package_imports_nothing_heavy(package: str) -> None:
    done = check(package)
    assert done.returncode == 0, done.stderr


def test_the_check_sees_a_foreign_import(tmp_path: pathlib.Path) -> None:
    (tmp_path / "numpy.py").touch()
    (tmp_path / "tensorplay_core.py").write_text("import numpy\n", encoding="utf-8")
    done = check("tensorplay_core", tmp_path)
    assert done.returncode != 0
    assert "must not import numpy" in done.stderr
