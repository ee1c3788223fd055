# SPDX-License-Identifier: Apache-2.0
"""The rules of CONTRIBUTING.md that no other tool knows; prints each breach and fails."""

import re
import subprocess
import sys
from pathlib import Path

MAX_LINES = 600
# Longer files, each with its reason.
LONG_FILES: dict[str, str] = {}

SOURCE = {".h", ".cpp", ".cu", ".cuh", ".py", ".sh", ".cmake"}
CPP = {".h", ".cpp", ".cu", ".cuh"}
C_HEADERS = {"stddef.h", "stdint.h"}  # all that c.h may include
# A path of one person's machine; this file must name them to find them.
ABSOLUTE = re.compile(r"(?<![\w.$}*])/(?:work|tmp|root|home|opt|mnt|Users)/")
NEVER_IN_A_NAME = re.compile(
    r"(^|_)(fast|new|v2|opt|final|tmp|util|utils|helper|helpers|misc)(_|$)"
)


def project_files() -> list[Path]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [path for name in names if (path := Path(name)).is_file()]


def include_faults(path: Path, lines: list[str]) -> list[str]:
    """A public header includes the standard library and its neighbours only."""
    faults = []
    for number, line in enumerate(lines, 1):
        if not (found := re.match(r"\s*#\s*include\s+(\S+)", line)):
            continue
        name = found[1]
        neighbour = re.fullmatch(r'"linattn/\w+\.h"', name)
        standard = re.fullmatch(r"<[a-z_]+>", name) or name.strip("<>") in C_HEADERS
        if not (neighbour or standard):
            faults.append(
                f"{path}:{number}: a public header includes {name}; the standard library only"
            )
    return faults


def check(path: Path) -> list[str]:
    try:
        lines = path.read_text().splitlines()
    except UnicodeDecodeError:
        return []
    faults = []
    if path.name != "rules.py":
        faults += [
            f"{path}:{number}: names a path of one machine"
            for number, line in enumerate(lines, 1)
            if ABSOLUTE.search(line)
        ]
    if path.suffix in SOURCE:
        if len(lines) > MAX_LINES and str(path) not in LONG_FILES:
            faults.append(
                f"{path}: {len(lines)} lines; split it, or give tools/rules.py the reason not to"
            )
        if lines and not any("SPDX-License-Identifier: Apache-2.0" in line for line in lines[:3]):
            faults.append(f"{path}: no SPDX-License-Identifier line at the top")
        if NEVER_IN_A_NAME.search(path.stem):
            faults.append(f"{path}: a name that says nothing (CONTRIBUTING.md)")
    if path.suffix == ".h" and path.parts[0] == "include":
        faults += include_faults(path, lines)
    if (
        path.suffix == ".h"
        and path.name != "c.h"
        and not any(line == "#pragma once" for line in lines)
    ):
        faults.append(f"{path}: no #pragma once")
    return faults


def main() -> int:
    faults = [fault for path in project_files() for fault in check(path)]
    print("\n".join(faults), end="\n" if faults else "")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
