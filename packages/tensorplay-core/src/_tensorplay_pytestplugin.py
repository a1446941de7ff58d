"""The pytest plugin: its options, the fixtures of the conformance suite, ``needs``.

It is loaded in every pytest run where tensorplay-core is installed, so it stands outside the
package and imports nothing of it until a test uses ``runtime``, or an option names a driver or a
hook.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tensorplay_core.runtime import Runtime
    from tensorplay_core.testing.facade import Facade
    from tensorplay_core.testing.workbench import Workbench

__all__ = ["facade", "frozen_heap", "runtime", "stream", "workbench"]

_NAMES = pytest.StashKey[tuple[str, ...]]()

pytest.register_assert_rewrite("tensorplay_core.testing.suite", "tensorplay_core.testing.oracle")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options."""
    group = parser.getgroup("tensorplay", "graph drivers")
    group.addoption(
        "--tensorplay-driver",
        action="append",
        metavar="NAME",
        help="run tests that use the `runtime` fixture on this driver; repeatable. A driver that "
        "cannot work here is an error. Default: every installed driver that can.",
    )
    group.addoption(
        "--tensorplay-device",
        metavar="DEVICE",
        help="device of the `workbench` fixture, in the driver's own words. Default: the current.",
    )
    group.addoption(
        "--tensorplay-without",
        action="append",
        default=[],
        metavar="HOOK",
        help="act as if the drivers lacked this hook: tests that come to it are skipped; "
        "repeatable. conditional_open is for tools that do not know conditional nodes.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker, and resolves drivers asked for by name at once: late is too late."""
    config.addinivalue_line("markers", "needs(*hooks): needs a driver that implements these hooks")
    if config.getoption("--tensorplay-driver"):
        _names(config)
    if hooks := config.getoption("--tensorplay-without"):
        _leave_out(config, hooks)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Names the drivers asked for, with what they stand on."""
    return _lines(config) if config.getoption("--tensorplay-driver") else []


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """Names the drivers found, once it is known that a test uses them."""
    asked = config.getoption("--tensorplay-driver")
    return _lines(config) if _NAMES in config.stash and not asked else []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs each test that uses ``runtime`` once a driver."""
    if "runtime" in metafunc.fixturenames and _ours(metafunc):
        names = _names(metafunc.config)
        metafunc.parametrize("runtime", names, indirect=True, scope="session")


@pytest.hookimpl(trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a test whose driver lacks a hook that the test needs. By now its fixtures are made."""
    hooks = [hook for mark in item.iter_markers("needs") for hook in mark.args]
    if not hooks:
        return
    from tensorplay_core.runtime import NOUNS, Runtime

    chosen = getattr(item, "funcargs", {}).get("runtime")
    if not isinstance(chosen, Runtime):
        pytest.fail("needs(...) marks tests that use the `runtime` fixture", pytrace=False)
    for hook in hooks:
        if not any(hook in noun for noun in NOUNS.values()):
            pytest.fail(f"needs({hook!r}): there is no hook of that name", pytrace=False)
        if hook in item.config.getoption("--tensorplay-without"):
            pytest.skip(_left_out(hook))
        if not chosen.can(hook):
            pytest.skip(f"driver {chosen.name!r} lacks {hook}")


@pytest.fixture(scope="session")
def runtime(request: pytest.FixtureRequest) -> Runtime:
    """The runtime of one driver: of each asked for by name, else of each that works here."""
    from tensorplay_core.runtime import select

    return select(request.param)


@pytest.fixture(scope="session")
def workbench(runtime: Runtime, pytestconfig: pytest.Config) -> Workbench:
    """The driver's neutral work, on the device asked for."""
    from tensorplay_core.discovery import find_workbench

    device = runtime.resolve_device(pytestconfig.getoption("--tensorplay-device"))
    made: Workbench = find_workbench(runtime.name)(runtime, device)
    return made


@pytest.fixture(scope="session")
def facade(workbench: Workbench) -> Facade:
    """The public graph API bound to the driver and device of the workbench."""
    from tensorplay_core.testing.facade import Facade

    return Facade(workbench)


@pytest.fixture(scope="module")
def _thawing() -> Iterator[None]:
    yield
    gc.unfreeze()


@pytest.fixture
def frozen_heap(_thawing: None) -> None:
    """Lets garbage collections see only what the test makes, in modules that ask for many.

    What a first capture imports is left out of the tests after it, too.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def stream(workbench: Workbench) -> Iterator[Any]:
    """A new stream, made current for the length of the test."""
    made = workbench.stream()
    with workbench.on(made):
        yield made


def _ours(metafunc: pytest.Metafunc) -> bool:
    """False if ``runtime`` is another's fixture of that name: many projects have one."""
    # There is no public way to ask; should this one go, the fixture of that name counts as ours.
    known = getattr(metafunc, "_arg2fixturedefs", {}).get("runtime", ())
    return not known or known[-1].func.__module__ == __name__


def _names(config: pytest.Config) -> tuple[str, ...]:
    if _NAMES not in config.stash:
        config.stash[_NAMES] = _resolve(config.getoption("--tensorplay-driver"))
    return config.stash[_NAMES]


def _resolve(asked: list[str] | None) -> tuple[str, ...]:
    from tensorplay_core import discovery
    from tensorplay_core.errors import DriverError

    if not asked:
        return tuple(one.name for one in discovery.find_drivers() if one.reason is None)
    try:
        return tuple(dict.fromkeys(discovery.choose(name).name for name in asked))
    except DriverError as error:
        raise pytest.UsageError(f"--tensorplay-driver: {error}") from error


def _leave_out(config: pytest.Config, hooks: list[str]) -> None:
    """Has the drivers say that they lack ``hooks``, and skips tests that call them all the same."""
    from tensorplay_core.runtime import NOUNS, select

    for hook in hooks:
        if not any(hook in noun for noun in NOUNS.values()):
            raise pytest.UsageError(f"--tensorplay-without: there is no hook {hook!r}")

    def skipping(hook: str) -> Callable[..., None]:
        def skip(*_: object, **__: object) -> None:
            pytest.skip(_left_out(hook))

        return skip

    for chosen in map(select, _names(config)):
        there = chosen.can
        chosen.__dict__["can"] = lambda hook, there=there: hook not in hooks and there(hook)
        chosen.__dict__.update({hook: skipping(hook) for hook in hooks})


def _left_out(hook: str) -> str:
    return f"{hook} is left out by --tensorplay-without"


def _lines(config: pytest.Config) -> list[str]:
    from tensorplay_core.runtime import select

    lines = []
    for name in _names(config):
        try:
            chosen = select(name)
            facts = chosen.describe() if chosen.can("describe") else {}
            told = ", ".join(f"{key} {fact}" for key, fact in facts.items())
        except Exception as error:  # A report goes on; the tests of that driver say it again.
            told = f"{type(error).__name__}: {error}"
        lines.append(f"tensorplay driver {name}: {told}")
    return lines
