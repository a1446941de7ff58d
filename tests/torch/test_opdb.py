"""Torch's own operator database, recorded and replayed: equal bit for bit, or refused by name.

What became of each operator is kept in ``opdb_counts.json``, so that none changes sides unseen.
After a change that is meant, write it anew, with ``TENSORPLAY_OPDB=write`` in the environment.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest
import torch

from .operators import faults, swept

KEPT = Path(__file__).with_name("opdb_counts.json")
VERSION = ".".join(torch.__version__.split(".")[:2])


def test_every_operator_is_equal_or_refused_and_none_changes_sides(record, database):
    found = swept(record, database, torch.float32)
    assert faults(found) == {}
    counts = Counter(outcome for outcomes in found.values() for outcome in outcomes)
    now = {
        "counts": dict(sorted(counts.items())),
        "not all equal": {
            name: sorted(set(outcomes))
            for name, outcomes in sorted(found.items())
            if set(outcomes) != {"equal"}
        },
    }
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    if os.environ.get("TENSORPLAY_OPDB") == "write":
        kept[VERSION] = now
        KEPT.write_text(json.dumps(kept, indent=2, sort_keys=True) + "\n")
    if VERSION in kept:  # Another torch has other operators and samples; faults it may not have.
        assert now == kept[VERSION]
    assert counts["equal"] > 1000


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["channels last", "permuted", "spaced"])
def test_in_any_order_of_memory(record, database, layout):
    assert faults(swept(record, database, torch.float32, layout)) == {}
