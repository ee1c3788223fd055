# SPDX-License-Identifier: Apache-2.0
"""Holds the documents to the code: the README's table and snippets, docs/faults.md, every link between pages.

usage: docs_check.py [--fix] [TABLE]    TABLE: the program examples/support_table.cpp; without it
                                        the table is not looked at. A build without CUDA prints
                                        some of the lines, and each must stand in the README.
                                        --fix rewrites the README, for which it takes all of them,
                                        and docs/faults.md.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

import faults_matrix

ROOT = Path(__file__).resolve().parent.parent
TABLE = re.compile(r"(<!-- table: [^\n]*-->\n)(.*?)(<!-- end of table -->)", re.DOTALL)
SNIPPET = re.compile(r"(<!-- snippet: (\S+) -->\n)(.*?)(<!-- end of snippet -->)", re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def marked(path: Path) -> str:
    """What stands between the two lines of a file that say [readme]."""
    parts = re.split(r"^.*\[readme\].*\n", path.read_text(), flags=re.MULTILINE)
    if len(parts) != 3:
        raise SystemExit(f"{path}: two lines with [readme] are expected, {len(parts) - 1} found")
    return parts[1]


def fence(name: str) -> str:
    language = "python" if name.endswith(".py") else "cpp"
    return f"```{language}\n{marked(ROOT / name)}```\n"


def broken_links() -> list[str]:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return [
        f"{page.relative_to(ROOT)}: {target} does not exist"
        for page in pages
        for target in LINK.findall(page.read_text())
        if not (page.parent / target).exists()
    ]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fix", action="store_true")
    parser.add_argument("table", nargs="?", type=Path)
    options = parser.parse_args()

    readme = ROOT / "README.md"
    text = readme.read_text()
    faults = broken_links()
    new = SNIPPET.sub(lambda match: match[1] + fence(match[2]) + match[4], text)
    if new != text and not options.fix:
        faults.append("README.md: a snippet differs from its file; run tools/docs_check.py --fix")
    if options.table:
        command = [str(options.table)]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        if options.fix:
            new = TABLE.sub(lambda match: match[1] + lines + match[3], new)
        known = set(TABLE.search(new)[2].splitlines())
        faults += [
            f"README.md: the table lacks '{line}'; run tools/docs_check.py --fix with a CUDA build"
            for line in lines.splitlines()
            if line not in known
        ]
    if options.fix:
        readme.write_text(new)
    faults += faults_matrix.check(options.fix)
    print("\n".join(faults) if faults else "documents agree with the code")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
