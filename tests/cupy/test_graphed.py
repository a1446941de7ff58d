"""``graphed``, as far as it asks nothing of a GPU: what it refuses before anything runs."""

from __future__ import annotations

import numpy
import pytest

from tensorplay_core.errors import ArgumentTypeError
from tensorplay_cupy import GraphedFunction, graphed
from tensorplay_cupy.graphed import _arguments, _path


def double(x, *, factor=2):
    """Twice."""
    return x * factor


def test_it_wraps_the_function():
    made = graphed(double)
    assert isinstance(made, GraphedFunction)
    assert made.__name__ == "double"
    assert made.__doc__ == "Twice."
    assert made.__wrapped__ is double
    assert "double" in repr(made)
    assert "not captured yet" in repr(made)
    assert made.cuda_graph is None
    assert made.original is double
    made.release()


def test_it_takes_options():
    made = graphed(pool=None, capture_error_mode="relaxed")(double)
    assert isinstance(made, GraphedFunction)
    assert made.__wrapped__ is double


class Tensor:
    """An array of another library."""

    def __dlpack__(self):
        raise AssertionError


@pytest.mark.parametrize("place", ["positional", "nested", "keyword"])
@pytest.mark.parametrize("other", [numpy.zeros(3, "f"), Tensor()], ids=["host", "foreign"])
def test_arrays_of_others_are_refused_with_their_path(place, other):
    args, kwargs, path = {
        "positional": ((1, other), {}, "args[1]"),
        "nested": (({"m": [other]},), {}, "args[0]['m'][0]"),
        "keyword": ((), {"factor": other}, "kwargs['factor']"),
    }[place]
    with pytest.raises(ArgumentTypeError) as caught:
        graphed(double)(*args, **kwargs)
    assert path in caught.value.met
    assert "cupy.from_dlpack" in caught.value.remedy


def test_arrays_are_told_from_constants(fake):
    x, y = fake((3,)), fake((2,))
    arrays, tree = _arguments((x, 1.5, [y]), {"name": "k"})
    assert [id(one) for one in arrays] == [id(x), id(y)]  # Equality would ask the GPU.
    assert [_path(path) for path in tree.paths] == ["args[0]", "args[2][0]"]


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("[0][1]['a']", "args[1]['a']"),
        ("[1]['x'][0]: captured", "kwargs['x'][0]: captured"),
        ("len([0]): captured 1", "len(args): captured 1"),
        ("len([0][2]): captured 1", "len(args[2]): captured 1"),
    ],
)
def test_paths_are_those_of_the_call(path, named):
    assert _path(path) == named


class Model:
    """With a method that is a graph of each instance."""

    def __init__(self, factor):
        self.factor = factor

    @graphed
    def scale(self, x):
        return x * self.factor


def test_a_method_is_a_graph_of_each_instance():
    one, two = Model(1), Model(2)
    assert isinstance(Model.scale, GraphedFunction)
    assert one.scale is one.scale
    assert one.scale is not two.scale
    assert one.scale.original.__self__ is one
    assert one.scale.original(3) == 3
