"""The end of a capture of torch's warns of nothing, and leaves the filters of warnings alone."""

from __future__ import annotations

import warnings

import pytest

from tensorplay_torch.cuda.unwind import end_quietly


class Graph:
    """Ends as torch's graph does, and does something meanwhile."""

    def __init__(self, meanwhile=lambda: None):
        self.meanwhile = meanwhile

    def capture_end(self):
        warnings.warn("the CUDA graph is empty", stacklevel=1)
        self.meanwhile()


@pytest.fixture(autouse=True)
def filters():
    with warnings.catch_warnings():
        yield


def test_the_warning_of_an_empty_graph_is_not_shown():
    warnings.simplefilter("error")
    before = list(warnings.filters)
    end_quietly(Graph())
    assert warnings.filters == before
    with pytest.raises(UserWarning):
        warnings.warn("another", stacklevel=1)


@pytest.mark.parametrize("how", [warnings.resetwarnings, lambda: warnings.simplefilter("ignore")])
def test_filters_that_another_thread_sets_meanwhile_stay(how):
    end_quietly(Graph(how))
    after = list(warnings.filters)
    with warnings.catch_warnings():
        how()
        assert len(after) <= len(warnings.filters)
        assert ("ignore", None, Warning, None, 0) in after or how is warnings.resetwarnings


def test_an_error_of_the_end_comes_out():
    def broken():
        raise RuntimeError("broken")

    before = list(warnings.filters)
    with pytest.raises(RuntimeError):
        end_quietly(Graph(broken))
    assert warnings.filters == before
