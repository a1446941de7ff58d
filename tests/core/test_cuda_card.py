"""Whether the CUDA driver works here at all, as its card says. No GPU is needed."""

from typing import Any

import pytest

from tensorplay_core.discovery import load_card
from tensorplay_core.drivers.cuda import floors

native = pytest.importorskip("cuda.bindings.driver")


class Installed:
    """What the card asks the bindings."""

    def __init__(self, *, initialised: Any = 0, version: int = 13000, count: int = 1) -> None:
        self.initialised, self.version, self.count = initialised, version, count

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def initialise(_: int) -> tuple[Any]:
            if isinstance(self.initialised, Exception):
                raise self.initialised
            return (self.initialised,)

        monkeypatch.setattr(native, "cuInit", initialise)
        monkeypatch.setattr(native, "cuDriverGetVersion", lambda: (0, self.version))
        monkeypatch.setattr(native, "cuDeviceGetCount", lambda: (0, self.count))


@pytest.mark.parametrize(
    ("installed", "reason"),
    [
        (Installed(), None),
        (Installed(initialised=RuntimeError("no libcuda")), "no NVIDIA driver: no libcuda"),
        (Installed(initialised=native.CUresult(100)), "CUDA_ERROR_NO_DEVICE"),
        (Installed(version=12030), "12.4 or newer"),
        (Installed(version=floors.BASE), None),
        (Installed(count=0), "no GPU is visible"),
    ],
    ids=["works", "no driver", "no device", "too old", "just new enough", "none visible"],
)
def test_the_card_says_what_is_missing(
    installed: Installed, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed.patch(monkeypatch)
    told = load_card("cuda").viability()
    assert (told is None) == (reason is None)
    assert reason is None or reason in str(told)


def test_the_card_is_above_the_host() -> None:
    card = load_card("cuda")
    assert (card.name, card.priority) == ("cuda", 10)
