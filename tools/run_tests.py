# SPDX-License-Identifier: Apache-2.0
"""Runs the C++ tests through ctest and the Python tests through pytest; ends with one line that adds them.

usage: run_tests.py [--build build/cpu] [--no-python] [--filter REGEX]
"""

import argparse
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = ROOT / ".venv/bin"


def count(report: Path) -> Counter:
    """Passed, failed and skipped tests of a JUnit file, which both runners write."""
    counts = Counter()
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            counts["failed"] += 1
        elif case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
            counts["skipped"] += 1
        else:
            counts["passed"] += 1
    return counts


def run(name: str, command: list[str], report: Path) -> Counter:
    print(f"== {name}", flush=True)
    report.unlink(missing_ok=True)
    status = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL).returncode
    counts = count(report) if report.exists() else Counter()
    if status and not counts["failed"]:
        print(f"{name} ended with status {status} and named no failing test", file=sys.stderr)
        counts["failed"] += 1
    return counts


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=Path, default=Path("build/cpu"))
    parser.add_argument("--no-python", action="store_true")
    parser.add_argument("--filter", default="", help="for ctest -R and pytest -k")
    options = parser.parse_args()
    build = ROOT / options.build

    report = build / "ctest.xml"
    command = [BIN / "ctest", "--test-dir", build, "--output-on-failure", "--progress"]
    command += ["--no-tests=error", "--parallel", str(os.cpu_count()), "--output-junit", report]
    command += ["-R", options.filter] if options.filter else []
    total = run(f"C++ tests ({options.build})", list(map(str, command)), report)

    folders = [
        name for name in ("tests/python", "tests/static") if any((ROOT / name).glob("test_*.py"))
    ]
    if not options.no_python and folders:
        report = build / "pytest.xml"
        command = [BIN / "python", "-m", "pytest", "-q", *folders, f"--junit-xml={report}"]
        command += ["-k", options.filter] if options.filter else []
        total += run("Python tests", list(map(str, command)), report)

    print(
        f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped",
        flush=True,
    )
    return int(total["failed"] > 0 or total["passed"] == 0)


if __name__ == "__main__":
    sys.exit(main())
