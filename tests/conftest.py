from collections.abc import Iterator

import pytest

from tensorplay_core.testing import profiles

from .forking import Forks
from .interrupts import Interrupt

# Before any test module decorates a test with `@given`, which is when settings are read.
profiles.load()

# What lies beside the test modules asserts, too, and pytest is to say what was unequal there.
ASSERTING = ("adapt", "core", "cupy", "equality", "torch")
pytest.register_assert_rewrite(*(f"tests.{name}" for name in ASSERTING))


@pytest.fixture(scope="session")
def interrupt_at() -> type[Interrupt]:
    """Makes an interrupt at the n-th moment that counts."""
    return Interrupt


@pytest.fixture(scope="session")
def forked() -> Iterator[Forks]:
    """Runs a program as `subprocess` would, where torch has been imported already."""
    forks = Forks()
    yield forks
    forks.close()
