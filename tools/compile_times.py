# SPDX-License-Identifier: Apache-2.0
"""Prints the slowest files of a build folder; fails if one is over its budget.

usage: compile_times.py BUILD_FOLDER... [--budget SECONDS] [--count N]
"""

import argparse
import sys
from pathlib import Path


def read_times(folder: Path) -> dict[str, float]:
    """Seconds per object, from the last entry of each in Ninja's log."""
    times = {}
    for line in (folder / ".ninja_log").read_text().splitlines():
        if line.startswith("#"):
            continue
        begin, end, _, output, _ = line.split("\t")
        if output.endswith(".o"):
            times[output] = (int(end) - int(begin)) / 1000
    return times


def source_of(output: str) -> str:
    """`CMakeFiles/linattn_core.dir/src/core/plan.cpp.o` is `src/core/plan.cpp`."""
    return output.split(".dir/", 1)[-1].removesuffix(".o")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--budget", type=float, default=120)
    parser.add_argument("--count", type=int, default=5)
    options = parser.parse_args()
    times = [
        (seconds, f"{source_of(output)} ({folder.name})")
        for folder in options.folders
        for output, seconds in read_times(folder).items()
    ]
    times.sort(reverse=True)
    print(f"slowest files of {len(times)} (budget {options.budget:g} s each):")
    for seconds, name in times[: options.count]:
        print(f"  {seconds:6.1f} s  {name}")
    over = [name for seconds, name in times if seconds > options.budget]
    for name in over:
        print(f"over budget: {name}", file=sys.stderr)
    return bool(over)


if __name__ == "__main__":
    sys.exit(main())
