"""What a capture's frontier is without the marks that allocators leave at its end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tensorplay_core.drivers.cuda.unwinding import without_marks


def world(kinds: dict[int, str], *edges: tuple[int, int]) -> Any:
    calls = SimpleNamespace(
        edges=lambda graph: list(edges),
        cuGraphNodeGetType=lambda node: SimpleNamespace(
            name=f"CU_GRAPH_NODE_TYPE_{kinds[int(node)]}"
        ),
    )
    return SimpleNamespace(cu=calls)


@pytest.mark.parametrize(
    ("frontier", "expected"),
    [((1,), {1}), ((2,), {1}), ((3,), {1}), ((4,), {4}), ((2, 4), {1, 4}), ((), set())],
)
def test_empty_nodes_stand_for_what_they_follow(
    frontier: tuple[int, ...], expected: set[int]
) -> None:
    kinds = {1: "CONDITIONAL", 2: "EMPTY", 3: "EMPTY", 4: "KERNEL"}
    assert without_marks(world(kinds, (1, 2), (2, 3), (3, 4)), "graph", frontier) == expected
