"""The project's tasks. `python -m pip install nox` is all they need; `nox --list` names them."""

from __future__ import annotations

import datetime
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
from typing import Any

import nox
from nox.virtualenv import PassthroughEnv

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_existing_virtualenvs = True
nox.options.sessions = ["tests"]

ROOT = pathlib.Path(__file__).parent
PACKAGES = ("core", "torch", "adapt", "cupy")
NEEDS = {"core": (), "torch": ("core",), "adapt": ("core", "torch"), "cupy": ("core",)}
SOURCES = [ROOT / "packages" / f"tensorplay-{name}" / "src" for name in PACKAGES]
PYPROJECT = nox.project.load_toml(ROOT / "pyproject.toml")
WHEELS = ROOT / ".wheels"
COMPILED = "tensorplay_torch.compiled"
# The tests of what goes another way where the compiled parts are in use.
WITH_COMPILED = {
    "core": "compiled",
    "torch": "callables compiled finalisers graphed interrupts ran signals staging",
    "adapt": "addresses changes episodes forms groups interleaving interrupts "
    "own properties step until watching what",
}
SUITE = ("-c", "pyproject.toml", "--pyargs", "tensorplay_core.testing.suite")


def group(name: str) -> tuple[str, ...]:
    """The requirements of a dependency group, spelled out: not every pip knows `--group`."""
    return nox.project.dependency_groups(PYPROJECT, name)


def install(session: nox.Session, *requirements: str) -> None:
    """One pip command: the packages pin each other exactly, so only together do they resolve."""
    session.install("-c", "constraints.txt", *requirements)


def packages(*names: str, extras: str = "") -> list[str]:
    """Local paths of packages, as pip takes them."""
    return [f"./packages/tensorplay-{name}{extras}" for name in names or PACKAGES]


def gpus() -> list[str]:
    """The NVIDIA devices here and their driver, asked of the driver itself."""
    if not (tool := shutil.which("nvidia-smi")):
        return []
    query = [tool, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


def compiled(session: nox.Session, **options: Any) -> bool:
    """Builds the compiled parts of tensorplay-torch; False where there is no compiler."""
    if shutil.which("c++") is None or shutil.which("cc") is None:
        session.warn("there is no C or no C++ compiler: the compiled parts are left out")
        return False
    session.run("python", "-m", COMPILED, **options)
    return True


def install_for_torch(session: nox.Session, name: str, *more: str) -> None:
    """The packages for PyTorch and a dependency group, with what a GPU needs where there is one."""
    if not isinstance(session.virtualenv, PassthroughEnv):
        local = packages("core", *more, extras="[cuda13]") if gpus() else packages("core")
        install(session, *local, *packages("torch", "adapt"), *group(name))


@nox.session
def demo(session: nox.Session) -> None:
    """Train a classifier from one graph, on the GPU if there is one; options after `--`."""
    install_for_torch(session, "demo")
    session.run("python", "examples/digits.py", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests that need no GPU, on all cores; pytest's own arguments after `--`."""
    install(session, *packages(), *group("test"))
    if session.posargs:
        session.run("python", "-m", "pytest", "-m", "not gpu", *session.posargs)
        return
    # A file stays with one worker, and each worker computes in one thread.
    pytest = ("python", "-m", "pytest", "-m", "not gpu", "--numprocesses=auto", "--dist=loadfile")
    alone = {"OMP_NUM_THREADS": "1", "TENSORPLAY_CACHE": str(ROOT / ".nox" / "compiled")}
    session.run(*pytest, env={**alone, "TENSORPLAY_COMPILED": "0"})
    if compiled(session, env=alone):
        patterns = (
            f"tests/{place}/test_{name}*.py"
            for place, names in WITH_COMPILED.items()
            for name in names.split()
        )
        files = (path for pattern in patterns for path in sorted(ROOT.glob(pattern)))
        session.run(*pytest, *map(str, files), env=alone)


@nox.session
def coverage(session: nox.Session) -> None:
    """Run the same tests under coverage and say what they leave out."""
    install(session, *packages(), *group("test"))
    session.run("coverage", "run", "-m", "pytest", "-m", "not gpu", *session.posargs)
    session.run("coverage", "report")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and format."""
    install(session, *group("lint"))
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")


@nox.session
def types(session: nox.Session) -> None:
    """Check types, strictly."""
    install(session, *group("types"))
    session.run("mypy")


@nox.session
def layers(session: nox.Session) -> None:
    """Check that imports point down. Reads the sources; none of the packages is installed."""
    install(session, *group("layers"))
    session.run("lint-imports", env={"PYTHONPATH": os.pathsep.join(map(str, SOURCES))})


@nox.session
def wheels(session: nox.Session) -> None:
    """Build the four wheels into .wheels."""
    install(session, *group("build"))
    shutil.rmtree(WHEELS, ignore_errors=True)
    for path in packages():
        build = ("python", "-m", "build", "--no-isolation", "--wheel", "--outdir", str(WHEELS))
        session.run(*build, path, silent=True)


@nox.session(reuse_venv=False, requires=["wheels"])
@nox.parametrize("package", PACKAGES, ids=PACKAGES)
def alone(session: nox.Session, package: str) -> None:
    """Install a wheel with plain pip in a clean environment: it must import, and little else."""
    built = [str(next(WHEELS.glob(f"tensorplay_{name}-*"))) for name in (*NEEDS[package], package)]
    install(session, *built)
    if package in ("core", "cupy"):
        listed = session.run("python", "-m", "pip", "list", "--format=json", silent=True)
        found = {row["name"] for row in json.loads(str(listed).splitlines()[0])}
        ours = {f"tensorplay-{name}" for name in (*NEEDS[package], package)}
        if extra := found - ours - {"pip", "pluggy", "setuptools", "wheel"}:
            session.error(f"tensorplay-{package} must bring only pluggy; it also brought {extra}")
    check = str(ROOT / "tests" / "packaging" / "imports.py")
    session.chdir(session.create_tmp())
    session.run("python", "-I", check, f"tensorplay_{package}")
    if package == "core":
        session.run("python", "-I", check, "tensorplay_core.drivers.host")
        session.run("python", "-m", "tensorplay_core")


@nox.session
def bench(session: nox.Session) -> None:
    """Run the benchmarks that this machine can: arguments of benchmarks/run.py after `--`.

    `nox --no-venv -s bench` takes the environment as it is.
    """
    install_for_torch(session, "bench", "cupy")
    compiled(session)
    session.run("python", "benchmarks/run.py", *session.posargs)


@nox.session
def soak(session: nox.Session) -> None:
    """Repeat captures and staged launches by the thousand: nothing grows, nothing slips."""
    install_for_torch(session, "bench")
    compiled(session)
    session.run("python", "benchmarks/soak.py", *session.posargs)


@nox.session
def gpu(session: nox.Session) -> None:
    """Run what needs an NVIDIA GPU, and keep a summary in benchmarks/results.

    `nox --no-venv -s gpu` takes the environment as it is: on a machine that reaches no package
    index, install the packages there first.
    """
    runs = {
        "tests": ("-m", "gpu", "tests"),
        "conformance": (
            *SUITE,
            *(f"--tensorplay-driver={name}" for name in ("cuda", "torch", "cupy")),
        ),
    }
    if not gpus():
        for arguments in runs.values():
            print("python -m pytest", *arguments)
        session.error("there is no NVIDIA GPU here; the commands above are for a machine with one")
    if not isinstance(session.virtualenv, PassthroughEnv):
        local = packages("torch", "adapt") + packages("core", extras="[cuda13]")
        local += packages("cupy", extras="[cuda13,linalg]")
        install(session, *local, *group("test"))
    compiled(session)
    reports = pathlib.Path(session.create_tmp()).resolve()
    failed = []
    for name, arguments in runs.items():
        report = reports / f"{name}.xml"
        report.unlink(missing_ok=True)
        options = (*session.posargs, f"--junitxml={report}")
        try:
            session.run("python", "-m", "pytest", *arguments, *options)
        except nox.command.CommandFailed:
            failed.append(name)
    written = [str(reports / f"{name}.xml") for name in runs]
    session.run("python", "benchmarks/gpu_tests.py", *written, success_codes=[0, 1])
    if failed:
        session.error(f"failed: {', '.join(failed)}; see benchmarks/results/gpu-tests-<date>.json")


@nox.session(venv_backend="none")
def bump(session: nox.Session) -> None:
    """Set the version everywhere: `nox -s bump -- 0.2.0`."""
    if len(session.posargs) != 1 or not re.fullmatch(r"\d+\.\d+\.\d+(\w*)", session.posargs[0]):
        session.error("say one version: nox -s bump -- 0.2.0")
    new = session.posargs[0]
    for path in sorted(ROOT.glob("packages/*/pyproject.toml")):
        rewrite(path, r'^(version = ")[^"]+', new)
        rewrite(path, r"(tensorplay-\w+(?:\[\w+\])?==)[^\"]+", new)
    for path in sorted(ROOT.glob("packages/*/src/*/__init__.py")):
        rewrite(path, r'^(__version__ = ")[^"]+', new)
    today = datetime.datetime.now(datetime.UTC).date()
    rewrite(ROOT / "CHANGELOG.md", r"(^## \[Unreleased\]\n)", f"\n## [{new}] - {today}\n")


def rewrite(path: pathlib.Path, pattern: str, new: str) -> None:
    """Put `new` after each match's first group, in place of the rest of the match."""
    text = path.read_text(encoding="utf-8")
    changed = re.sub(pattern, lambda match: match[1] + new, text, flags=re.MULTILINE)
    path.write_text(changed, encoding="utf-8")


@nox.session(venv_backend="none")
def dev(session: nox.Session) -> None:
    """Make .venv with the packages editable and every tool."""
    session.run(sys.executable, "-m", "venv", ".venv", external=True)
    scripts = "Scripts" if os.name == "nt" else "bin"
    editable = [word for path in packages() for word in ("-e", path)]
    tools = {item for name in ("test", "demo", "lint", "types", "layers") for item in group(name)}
    python = str(ROOT / ".venv" / scripts / "python")
    pip = (python, "-m", "pip", "install", "-c", "constraints.txt")
    session.run(*pip, *editable, *sorted(tools), "nox", external=True)
