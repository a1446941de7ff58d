"""The pytest plugin and the suite from outside: pytest run on drivers whose faults are known."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import textwrap

import pytest

import tensorplay_core.testing.suite

DRIVERS = pathlib.Path(__file__).with_name("drivers")


def _pytest(
    where: pathlib.Path, *arguments: str, test: str | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs pytest in `where`, on the source of one test module or on what the arguments name."""
    if test is not None:
        (where / "test_it.py").write_text(textwrap.dedent(test), encoding="utf-8")
        arguments = (*arguments, "test_it.py")
    paths = os.pathsep.join(filter(None, (str(DRIVERS), os.environ.get("PYTHONPATH"))))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HYPOTHESIS")}
    # Asserts are looked at for whether they hold alone: to rewrite all modules of hypothesis, which
    # is a plugin of pytest's, takes longer than most of these runs.
    options = ("--assert=plain", "-q", "-rs", "-p", "no:cacheprovider")
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *arguments],
        cwd=where,
        env={**kept, "PYTHONPATH": paths, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_those_who_do_not_use_it_do_not_import_tensorplay(tmp_path: pathlib.Path) -> None:
    done = _pytest(
        tmp_path,
        test="""
        import sys

        def test_it(pytestconfig):
            assert pytestconfig.pluginmanager.has_plugin("tensorplay")
            assert not [name for name in sys.modules if name.startswith("tensorplay_core")]
            assert "hypothesis" not in sys.modules
        """,
    )
    assert done.returncode == 0, done.stdout


def test_another_projects_fixture_of_the_same_name_is_left_alone(tmp_path: pathlib.Path) -> None:
    done = _pytest(
        tmp_path,
        test="""
        import sys
        import pytest

        @pytest.fixture
        def runtime():
            return "theirs"

        def test_it(runtime):
            assert runtime == "theirs"
            assert not [name for name in sys.modules if name.startswith("tensorplay_core")]
        """,
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


@pytest.mark.parametrize("name", ["tiny", "unviable"])
def test_a_driver_is_found_and_named_in_the_header_or_is_an_error_with_its_reason(
    tmp_path: pathlib.Path, name: str
) -> None:
    done = _pytest(
        tmp_path,
        f"--tensorplay-driver={name}",
        "-v",
        test="""
        def test_it(runtime, workbench):
            assert workbench.runtime is runtime
            assert workbench.device == "tiny:0"
        """,
    )
    if name == "tiny":
        assert done.returncode == 0, done.stdout
        assert "tinylib 7.5" in done.stdout
        return
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "pip install unobtainium" in done.stderr
    assert "skipped" not in done.stdout


def test_an_unknown_driver_is_an_error_that_lists_those_there_are(tmp_path: pathlib.Path) -> None:
    done = _pytest(tmp_path, "--tensorplay-driver=tinny", test="def test_it(runtime): pass")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "tiny" in done.stderr.replace("tinny", "")


def test_a_test_runs_once_a_driver_on_the_device_asked_for(tmp_path: pathlib.Path) -> None:
    done = _pytest(
        tmp_path,
        "--tensorplay-driver=tiny",
        "--tensorplay-driver=host",
        "--tensorplay-driver=tiny",
        "-vv",
        test="def test_it(runtime): pass",
    )
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
    assert "test_it[tiny]" in done.stdout
    assert "test_it[host]" in done.stdout
    done = _pytest(
        tmp_path,
        "--tensorplay-driver=tiny",
        "--tensorplay-device=tiny:9",
        test="def test_it(workbench): assert workbench.device == 'tiny:9'",
    )
    assert done.returncode == 0, done.stdout


def test_without_a_name_every_driver_that_works_is_used(tmp_path: pathlib.Path) -> None:
    done = _pytest(tmp_path, "-vv", test="def test_it(runtime): assert runtime.name != 'unviable'")
    assert done.returncode == 0, done.stdout
    for name in ("tiny", "host"):
        assert f"test_it[{name}]" in done.stdout


def test_a_driver_without_a_workbench_is_an_error(tmp_path: pathlib.Path) -> None:
    done = _pytest(
        tmp_path,
        "--tensorplay-driver=tiny",
        test="""
        import pytest
        from tensorplay_core.discovery import find_workbench
        from tensorplay_core.errors import UnknownDriver

        def test_it(runtime):
            with pytest.raises(UnknownDriver):
                find_workbench("unviable")
        """,
    )
    assert done.returncode == 0, done.stdout


def test_needs_skips_only_what_the_driver_lacks(tmp_path: pathlib.Path) -> None:
    done = _pytest(
        tmp_path,
        "--tensorplay-driver=tiny",
        test="""
        import pytest

        @pytest.mark.needs("describe")
        def test_has(runtime): pass

        @pytest.mark.needs("describe", "conditional_open")
        def test_lacks(runtime): raise AssertionError("it ran")

        @pytest.mark.needs("conditional_opne")
        def test_misspelt(runtime): pass
        """,
    )
    assert done.returncode == 1, done.stdout
    assert "driver 'tiny' lacks conditional_open" in done.stdout
    assert "conditional_opne" in done.stdout
    assert "1 passed, 1 skipped, 1 error" in done.stdout


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"HYPOTHESIS_PROFILE": "thorough"}, "thorough 2000"),
        ({"CI": "true"}, "ci 100"),
        ({}, "dev 50"),
    ],
    ids=["thorough", "ci", "dev"],
)
def test_the_profile_of_property_tests_is_chosen_by_the_environment(
    tmp_path: pathlib.Path, environment: dict[str, str], expected: str
) -> None:
    # Outside pytest, because hypothesis takes no notice of CI in tests of itself.
    code = (
        "from hypothesis import settings\n"
        "import tensorplay_core.testing.strategies\n"
        "print(settings.get_current_profile_name(), settings().max_examples)"
    )
    kept = {
        k: v for k, v in os.environ.items() if k not in ("CI", "HYPOTHESIS_PROFILE", "TF_BUILD")
    }
    marks = ("CI", "HYPOTHESIS", "TF_BUILD", "GITHUB_", "PYTEST_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(marks)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**kept, **environment},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == expected


# The suite itself: it passes a whole driver, and sees each law that another one breaks.

LAWS = {
    "broken1": (
        "test_graph.py::test_every_replay_sees_fresh_inputs",
        "test_properties.py::test_replay_equals_eager",
    ),
    "broken2": (
        "test_graph.py::test_a_capture_executes_nothing_and_a_replay_everything",
        "test_properties.py::test_a_capture_changes_nothing",
    ),
    "broken3": (
        "test_graph_ends.py::test_a_graph_owns_what_it_reads",
        "test_properties.py::test_a_graph_owns_what_it_reads",
    ),
    "broken5": (
        "test_errors.py::test_an_exception_on_a_forked_stream_leaves_no_trace",
        "test_properties.py::test_a_failure_leaves_no_trace",
    ),
    "broken8": (
        "test_pool.py::test_memory_is_back_when_the_last_graph_and_the_last_tensor_are_gone",
        "test_lifetimes.py::test_graphs_pools_and_tensors_end_in_any_order",
    ),
}


def _judge(where: pathlib.Path, driver: str, tests: tuple[str, ...]) -> str:
    # A failing property is shrunk at length; whether it fails is all that is asked here.
    (where / "quick.py").write_text(
        "from hypothesis import Phase, settings\n"
        "settings.register_profile('quick', phases=(Phase.generate,), deadline=None)\n",
        encoding="utf-8",
    )
    suite = pathlib.Path(tensorplay_core.testing.suite.__file__).parent
    named = (f"{suite / name}" for name in tests)
    options = ("-p", "quick", f"--tensorplay-driver={driver}", "--tb=no", "-rfE")
    return _pytest(where, *options, *named, HYPOTHESIS_PROFILE="quick").stdout


def test_the_suite_passes_a_whole_driver(tmp_path: pathlib.Path) -> None:
    every = tuple(name for names in LAWS.values() for name in names)
    told = _judge(tmp_path, "whole", every)
    assert f"{len(every)} passed" in told, told


@pytest.mark.parametrize("driver", LAWS)
def test_the_suite_sees_a_broken_law(tmp_path: pathlib.Path, driver: str) -> None:
    told = _judge(tmp_path, driver, LAWS[driver])
    for name in LAWS[driver]:
        assert any(
            line.startswith("FAILED") and f"{name}[{driver}]" in line for line in told.splitlines()
        ), told


def test_a_hook_may_be_left_out(tmp_path: pathlib.Path) -> None:
    done = _pytest(
        tmp_path,
        "--tensorplay-driver=host",
        "--tensorplay-without=conditional_open",
        test="""
        import pytest

        def test_asking(runtime):
            assert not runtime.can("conditional_open")
            assert runtime.can("graph_begin")

        @pytest.mark.needs("conditional_open")
        def test_needing(runtime):
            assert False

        def test_coming_to_it(facade, workbench):
            made = facade.new()
            with facade.capture(made), made.if_then(workbench.flag(True)):
                assert False
        """,
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed, 2 skipped" in done.stdout
    assert done.stdout.count("conditional_open is left out by --tensorplay-without") == 2


def test_a_hook_that_is_none_is_not_left_out(tmp_path: pathlib.Path) -> None:
    done = _pytest(tmp_path, "--tensorplay-without=conditionals", test="def test_it(): pass")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "there is no hook 'conditionals'" in done.stderr
