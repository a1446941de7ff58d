"""One spelling for the 12.x and 13.x bindings, and an explanation for every result."""

from types import SimpleNamespace
from typing import Any

import pytest

from tensorplay_core import errors
from tensorplay_core.drivers.cuda import failures, floors
from tensorplay_core.drivers.cuda.bindings import Calls, CaptureInfo, newest

native = pytest.importorskip("cuda.bindings.driver")


NAMES = {2: "CUDA_ERROR_OUT_OF_MEMORY", 901: "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"}


def result(code: int) -> Any:
    """A result of a driver that knows a few of them."""
    if code == 123456:
        raise ValueError(code)
    return SimpleNamespace(value=code, name=NAMES.get(code, f"CODE_{code}"))


def bindings(**calls: Any) -> Any:
    def name(code: Any) -> tuple[int, bytes | None]:
        known = NAMES.get(code.value)
        return (0, known.encode()) if known else (1, None)

    def text(code: Any) -> tuple[int, bytes]:
        return 0, b"the driver's own words"

    return SimpleNamespace(
        CUresult=result,
        CUgraphEdgeData=object,
        cuGetErrorName=name,
        cuGetErrorString=text,
        **calls,
    )


# names


def twelve() -> Any:
    """The names of the 12.x line: forms without edge data have the plain ones."""
    return bindings(
        cuStreamGetCaptureInfo=lambda stream: (0, 1, 7, "graph", ["n"], 1),
        cuStreamGetCaptureInfo_v3=lambda stream: (0, 1, 7, "graph", ["n"], ["e"], 1),
        cuGraphGetEdges=lambda graph, count=0: (0, ["a"], ["b"], 1),
        cuGraphGetEdges_v2=lambda graph, count=0: (0, ["a"], ["b"], ["e"], 1),
        cuGraphAddNode=lambda graph, nodes, count, params: (0, "old"),
        cuGraphAddNode_v2=lambda graph, nodes, edges, count, params: (0, "node"),
    )


def thirteen() -> Any:
    """The names of the 13.x line."""
    return bindings(
        cuStreamGetCaptureInfo=lambda stream: (0, 1, 7, "graph", ["n"], ["e"], 1),
        cuGraphGetEdges=lambda graph, count=0: (0, ["a"], ["b"], ["e"], 1),
        cuGraphAddNode=lambda graph, nodes, edges, count, params: (0, "node"),
    )


@pytest.mark.parametrize("line", [twelve, thirteen])
def test_the_form_with_edge_data_is_called_whatever_its_name(line: Any) -> None:
    calls = Calls(line())
    assert calls.capture_info("s") == CaptureInfo(1, 7, "graph", ("n",), ("e",))
    assert calls.edges("g") == [("a", "b")]
    assert calls.cuGraphAddNode("g", ["n"], ["e"], 1, "params") == "node"


def test_the_installed_bindings_have_every_call_that_has_two_names() -> None:
    from tensorplay_core.drivers.cuda.bindings import _SUFFIXES

    for name, suffix in _SUFFIXES.items():
        chosen = newest(native, name)
        described = (chosen.__doc__ or "").lower()
        assert "edge" in described or "dependencydata" in described, name
        assert chosen is getattr(native, name + suffix, getattr(native, name))


def test_a_call_that_no_bindings_have_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError):
        newest(native, "cuNoSuchCall")
    assert not Calls(native).has("cuNoSuchCall")


@pytest.mark.parametrize("empty", [None, [], ()])
def test_a_frontier_may_be_empty(empty: Any) -> None:
    calls = Calls(bindings(cuStreamGetCaptureInfo=lambda s: (0, 1, 7, "graph", empty, empty, 0)))
    assert calls.capture_info("s") == CaptureInfo(1, 7, "graph", (), ())


def test_a_stream_that_is_not_capturing_tells_nothing() -> None:
    calls = Calls(bindings(cuStreamGetCaptureInfo=lambda s: (0, 0, None, None, None, None, 0)))
    assert calls.capture_info("s") == CaptureInfo(0)


def test_an_invalidated_capture_tells_its_state_alone() -> None:
    calls = Calls(bindings(cuStreamGetCaptureInfo=lambda s: (0, 2, None, None, None, None, 0)))
    assert calls.capture_info("s").status == 2


def test_plain_edge_data_is_spelled_out() -> None:
    calls = Calls(bindings())
    assert len(calls.edge_data(None, 3)) == 3
    assert calls.edge_data(["a", "b", "c"], 2) == ["a", "b"]
    assert calls.edge_data(None, 0) == []


# results


@pytest.mark.parametrize(("returned", "given"), [((0,), None), ((0, 5), 5), ((0, 5, 6), (5, 6))])
def test_a_call_gives_its_results_alone(returned: tuple[Any, ...], given: object) -> None:
    assert Calls(bindings(cuCall=lambda: returned)).cuCall() == given


def test_a_failed_call_raises_with_its_subject() -> None:
    calls = Calls(bindings(cuGraphLaunch=lambda *_: (1,)))
    with pytest.raises(errors.DriverCallFailed) as caught:
        calls.cuGraphLaunch("graph", "stream", about="executable 5")
    error = caught.value
    assert (error.call, error.code, error.subject) == ("cuGraphLaunch", 1, "executable 5")
    assert "cuGraphLaunch returned CODE_1 (1)" in str(error)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (1, errors.DriverCallFailed),
        (2, errors.PoolExhausted),
        (201, errors.DriverCallFailed),
        (700, errors.DriverCallFailed),
        (900, errors.CaptureInvalidated),
        (901, errors.CaptureInvalidated),
        (902, errors.CaptureInvalidated),
        (903, errors.CaptureError),
        (904, errors.UnjoinedWork),
        (905, errors.CaptureInvalidated),
        (906, errors.CaptureInvalidated),
        (907, errors.CaptureError),
        (908, errors.CaptureError),
        (910, errors.DriverCallFailed),
        (999, errors.DriverCallFailed),
        (123456, errors.DriverCallFailed),
    ],
)
def test_each_result_becomes_its_error(code: int, kind: type[errors.TensorplayError]) -> None:
    error = failures.failure(bindings(), "cuCall", code, about="the thing")
    assert type(error) is kind
    for part in (error.doing, error.subject, error.met, error.remedy):
        assert part.strip()
        assert part in str(error)
    assert "the thing" in error.subject
    assert f"({code})" in error.met
    assert "cuCall" in error.met
    assert len(str(error).splitlines()[0]) < 240


def test_what_is_not_explained_here_is_said_in_the_drivers_words() -> None:
    error = failures.failure(bindings(), "cuCall", 321, about="the thing")
    assert "the driver's own words" in str(error)


def test_a_capture_broken_by_the_legacy_stream_is_explained() -> None:
    error = failures.failure(bindings(), "cuMemcpyDtoH", 906, about="the capture")
    assert "legacy default stream" in error.met
    assert "non-blocking stream" in error.remedy


def test_a_capture_broken_by_another_thread_names_the_mode_that_helps() -> None:
    for code in (900, 901):
        error = failures.failure(bindings(), "cuMemAlloc", code, about="the capture")
        assert 'capture_error_mode="thread_local"' in error.remedy


def test_explained_codes_are_those_of_the_driver() -> None:
    expected = {
        1: "INVALID_VALUE",
        2: "OUT_OF_MEMORY",
        3: "NOT_INITIALIZED",
        4: "DEINITIALIZED",
        100: "NO_DEVICE",
        101: "INVALID_DEVICE",
        201: "INVALID_CONTEXT",
        209: "NO_BINARY_FOR_GPU",
        218: "INVALID_PTX",
        222: "UNSUPPORTED_PTX_VERSION",
        302: "SHARED_OBJECT_SYMBOL_NOT_FOUND",
        400: "INVALID_HANDLE",
        500: "NOT_FOUND",
        600: "NOT_READY",
        700: "ILLEGAL_ADDRESS",
        701: "LAUNCH_OUT_OF_RESOURCES",
        710: "ASSERT",
        715: "ILLEGAL_INSTRUCTION",
        716: "MISALIGNED_ADDRESS",
        719: "LAUNCH_FAILED",
        801: "NOT_SUPPORTED",
        900: "STREAM_CAPTURE_UNSUPPORTED",
        901: "STREAM_CAPTURE_INVALIDATED",
        902: "STREAM_CAPTURE_MERGE",
        903: "STREAM_CAPTURE_UNMATCHED",
        904: "STREAM_CAPTURE_UNJOINED",
        905: "STREAM_CAPTURE_ISOLATION",
        906: "STREAM_CAPTURE_IMPLICIT",
        907: "CAPTURED_EVENT",
        908: "STREAM_CAPTURE_WRONG_THREAD",
        910: "GRAPH_EXEC_UPDATE_FAILURE",
    }
    assert set(failures._MEANINGS) == set(expected)
    for code, name in expected.items():
        assert native.CUresult(code).name == f"CUDA_ERROR_{name}"


# floors


@pytest.mark.parametrize(
    ("version", "spelled"), [(12040, "12.4"), (12080, "12.8"), (13000, "13.0"), (13010, "13.1")]
)
def test_versions_are_spelled_as_people_say_them(version: int, spelled: str) -> None:
    assert floors.spelled(version) == spelled


def test_a_floor_names_what_lacks_and_both_versions() -> None:
    floors.require(12080, floors.SWITCH, "switch nodes", doing="opening a switch")
    with pytest.raises(errors.UnsupportedByDriver) as caught:
        floors.require(12040, floors.SWITCH, "switch nodes", doing="opening a switch")
    told = str(caught.value)
    assert "switch nodes" in told
    assert "12.8" in told
    assert "12.4" in told
    assert caught.value.driver == "cuda"
