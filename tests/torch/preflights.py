"""What preflight finds in a function, for the tests of it."""

from __future__ import annotations

import tensorplay_torch as tp
from tensorplay_torch.checking.findings import Finding


def problems(function, *args, **kwargs):
    return tp.preflight(function, *args, **kwargs).problems


def only(function, *args, **kwargs) -> Finding:
    report = tp.preflight(function, *args, **kwargs)
    assert len(report.problems) == 1, str(report)
    assert not report.ok
    return report.problems[0]
