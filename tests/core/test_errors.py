"""The error tree: four parts, pickling, and the builtins callers expect."""

from __future__ import annotations

import inspect
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorplay_core import errors

PARTS = {"doing": "replaying", "subject": "graph #1", "met": "it is closed", "remedy": "Capture."}
SPECIAL = {
    errors.UnsupportedByDriver: {
        "driver": "third",
        "hook": "conditional_open",
        "doing": "adding a loop to",
        "remedy": "Choose another.",
    },
    errors.DriverCallFailed: {
        "call": "cuGraphLaunch",
        "code": 1,
        "code_name": "CUDA_ERROR_INVALID_VALUE",
        "meaning": "an argument is out of range",
        "subject": "graph #1",
        "remedy": "Report it.",
    },
    errors.OperationRefused: {
        "operation": "aten.item",
        "met": "it reads a value back",
        "remedy": "Keep it on the device.",
        "where": "train.py:12",
    },
    errors.SignatureMismatch: {
        "differences": ("args[0].shape: captured (2,), got (3,)",),
        "subject": "graph #1",
    },
}
ALL = [
    cls
    for _, cls in inspect.getmembers(errors, inspect.isclass)
    if issubclass(cls, errors.TensorplayError)
]


def make(cls: type[errors.TensorplayError]) -> errors.TensorplayError:
    return cls(**SPECIAL.get(cls, PARTS))


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_every_error_says_four_things(cls: type[errors.TensorplayError]) -> None:
    error = make(cls)
    for part in (error.doing, error.subject, error.met, error.remedy):
        assert part
        assert part in str(error)


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_every_error_survives_pickling_with_its_notes(cls: type[errors.TensorplayError]) -> None:
    error = make(cls)
    error.add_note("seen at step 3")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is cls
    assert str(again) == str(error)
    assert again.__notes__ == ["seen at step 3"]
    assert again.__dict__.keys() == error.__dict__.keys()


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    drawn = errors.__doc__ or ""
    for cls in ALL:
        assert cls.__name__ in drawn
    assert sorted(errors.__all__) == sorted(cls.__name__ for cls in ALL)


@pytest.mark.parametrize(
    ("cls", "builtin"),
    [
        (errors.ArgumentError, ValueError),
        (errors.ArgumentTypeError, TypeError),
        (errors.UnknownDriver, LookupError),
        (errors.UnsupportedByDriver, NotImplementedError),
        (errors.SignatureMismatch, ValueError),
        (errors.PoolExhausted, MemoryError),
        (errors.CaptureError, RuntimeError),
    ],
)
def test_callers_catch_the_builtin_they_expect(
    cls: type[errors.TensorplayError], builtin: type[Exception]
) -> None:
    with pytest.raises(builtin):
        raise make(cls)


@given(st.lists(st.text(min_size=1), min_size=1, max_size=5))
def test_a_mismatch_lists_every_difference(lines: list[str]) -> None:
    error = errors.SignatureMismatch(differences=lines, subject="graph #1")
    assert error.differences == tuple(lines)
    assert all(line in str(error) for line in lines)
