from __future__ import annotations

import sys
import warnings
from typing import Any

import pytest
import torch

from tensorplay_torch.cpu.isolation import isolated
from tensorplay_torch.cpu.recorder import Recorder
from tests.determinism import deterministic

from . import cuda_seam
from .built import BUILT
from .twins import Twins


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Each device that graphs run on."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    return request.param


@pytest.fixture
def x(device: str) -> torch.Tensor:
    """Six numbers from -1 to 1, on each device."""
    return torch.linspace(-1, 1, 6, device=device)


@pytest.fixture
def exact():
    """torch's deterministic algorithms: equal work gives equal bits."""
    with deterministic(warn_only=True):
        yield


@pytest.fixture
def clean():
    """The test leaves the GPU usable: eager work and random numbers go on."""
    torch.cuda.synchronize()
    before = torch.cuda.current_stream()
    yield
    assert torch.cuda.current_stream() == before
    assert not torch.cuda.is_current_stream_capturing()
    torch.nn.functional.dropout(torch.ones(8, device="cuda"))
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch):
    """The torch driver on stand-ins for torch's CUDA graphs and for core's CUDA driver."""
    with cuda_seam.played(monkeypatch) as world:
        yield world


@pytest.fixture
def parts():
    """The compiled parts, for tests that need them."""
    assert BUILT is not None
    return BUILT


@pytest.fixture
def twins():
    """Makes a module and its graphed copy that are to do the same for ever."""
    return Twins


class Recorded:
    """What a function did on the CPU, recorded without the façade or a driver.

    Args:
        function: Called once, while it is recorded.
        args: Its arguments.
        options: Of the recorder.
    """

    def __init__(self, function: Any, *args: Any, **options: Any) -> None:
        self.works: list[Any] = []
        self.names: list[str] = []
        self.attributes: list[dict[str, Any]] = []
        self.recorder = Recorder(self, **options)
        with self.recorder:
            self.result = function(*args)
        self.replay = isolated(self._run)

    def submit(self, work: Any, *, name: str, attributes: dict[str, Any], **_: Any) -> None:
        self.works.append(work)
        self.names.append(name)
        self.attributes.append(attributes)

    def _run(self, stream: object) -> None:
        for work in self.works:
            work()


@pytest.fixture(scope="session")
def record() -> type[Recorded]:
    return Recorded


@pytest.fixture(scope="module")
def database():
    """The operators, without warnings and without seeds of their own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.MonkeyPatch.context() as patch:
            # What it imports forbids whoever runs after it to set flags of torch.backends.
            patch.setattr(torch.backends, "disable_global_flags", lambda: None)
            from torch.testing._internal.common_methods_invocations import op_db

        patched = []
        for module in list(sys.modules.values()):
            wrapper = vars(module).get("wrapper_set_seed") if hasattr(module, "__dict__") else None
            if wrapper is not None:
                patched.append((module, wrapper))
                module.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
        threads = torch.get_num_threads()
        yield [op for op in op_db if not op.name.startswith("jiterator")]
        torch.set_num_threads(threads)
        for module, wrapper in patched:
            module.wrapper_set_seed = wrapper
