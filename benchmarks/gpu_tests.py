"""Sums up what pytest's XML reports say of the tests on a GPU, for benchmarks/results.

    python -m pytest -m gpu tests --junitxml=tests.xml
    python benchmarks/gpu_tests.py tests.xml conformance.xml

A suite is called as its report is. Skips are counted by their reasons.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import json
import pathlib
import sys
import xml.etree.ElementTree as ET
from typing import Any

from record import gpus, versions

TODAY = datetime.datetime.now(datetime.UTC).date()
OUT = pathlib.Path(__file__).parent / "results" / f"gpu-tests-{TODAY}.json"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("reports", nargs="+", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, default=OUT)
    options = parser.parse_args()
    suites = {path.stem: summary(path) for path in options.reports}
    whole = {
        "devices": gpus(),
        "versions": versions(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "suites": suites,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for name, suite in suites.items():
        print(f"{name}: {suite.get('error') or counts(suite)}")
    print(f"written to {options.out}")
    return 1 if any(suite.get("error") or suite["failed"] for suite in suites.values()) else 0


def counts(suite: dict[str, Any]) -> str:
    skipped = sum(suite["skipped"].values())
    return f"{suite['passed']} passed, {len(suite['failed'])} failed, {skipped} skipped"


def summary(report: pathlib.Path) -> dict[str, Any]:
    """Tests passed, failed and skipped of one report; an error where there is none."""
    if not report.exists():
        return {"error": f"pytest left no report {report}"}
    passed, failed = 0, []
    skipped: collections.Counter[str] = collections.Counter()
    seconds = 0.0
    for case in ET.parse(report).getroot().iter("testcase"):
        seconds += float(case.get("time", 0))
        skip = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(f"{case.get('classname')}::{case.get('name')}")
        elif skip is not None:
            skipped[skip.get("message", "no reason given")] += 1
        else:
            passed += 1
    if not passed and not failed:
        return {"error": "no test ran", "skipped": dict(skipped)}
    return {
        "passed": passed,
        "failed": failed,
        "skipped": dict(skipped.most_common()),
        "seconds": round(seconds, 1),
    }


if __name__ == "__main__":
    sys.exit(main())
