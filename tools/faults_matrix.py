# SPDX-License-Identifier: Apache-2.0
"""Makes docs/faults.md, kinds of fault by implementations, of tests/faults.txt and of the tests' names.

usage: faults_matrix.py [--fix]    without --fix: fails if the page is stale, a cell is blank or a test does not exist

Columns are the lines of the README's support table, which tools/docs_check.py holds to the registry: a new
implementation has blank cells until tests/faults.txt speaks for it.
"""

import argparse
import re
import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tests/faults.txt"
PAGE = ROOT / "docs/faults.md"
FOLDERS = {"": "ops", "device": "device", "unit": "unit", "python": "python", "static": "static"}

HEAD = """\
# Faults and what would show them

<!-- made by tools/faults_matrix.py of tests/faults.txt and the tests' names; do not edit -->

Kinds of fault that were seen in libraries that do this job, by the implementations of this one. A cell holds the tests
that would show the fault there (numbers) or why it cannot occur there (letters), both in the row's last column. A test
of the two C++ programs that run implementations fails if it did not run those for which it stands here; tests of the
Python package and of argument checks hold for all implementations at once, since they share that layer. The programs
run on a GPU by `make device-test`, and the suites `Instances` and `Garbage` under compute-sanitizer by
`make device-sanitize`.

"""


@dataclass(frozen=True)
class Column:
    name: str
    kind: str  # of pass

    def selected_by(self, selector: str) -> bool:
        device = "cpu" if self.name.startswith("cpu.") else "cuda"
        return all(word in ("all", self.kind, device, self.name) for word in selector.split("+"))


@dataclass
class Fault:
    id: str
    what: str
    lines: list[tuple[list[str], list[str]]] = field(default_factory=list)  # selectors, entries

    def cell(self, column: Column) -> list[str]:
        """Tests, or one reason that begins with "- "."""
        found: list[str] = []
        for selectors, entries in self.lines:
            if any(column.selected_by(selector) for selector in selectors):
                found = entries
        return found


def columns() -> list[Column]:
    table = (ROOT / "README.md").read_text().split("<!-- table:")[1].split("<!-- end of table")[0]
    return [Column(*row) for row in re.findall(r"^\| `(\S+)` \| (\w+) \|", table, re.MULTILINE)]


def read() -> list[str | Fault]:
    """Section titles and faults, in order."""
    parts: list[str | Fault] = []
    for number, line in enumerate(LIST.read_text().splitlines(), 1):
        if title := re.fullmatch(r"# \d+\. (.+)", line):
            parts.append(title[1])
        elif not line or line.startswith("#"):
            continue
        elif fault := re.fullmatch(r"([A-Z]-\d\d) (\S.*)", line):
            parts.append(Fault(fault[1], fault[2]))
        elif rule := re.fullmatch(r"  (\S[^:]*): (\S.*)", line):
            entries = [rule[2]] if rule[2].startswith("- ") else rule[2].split()
            parts[-1].lines.append((rule[1].split(), entries))
        else:
            raise SystemExit(
                f"{LIST.relative_to(ROOT)}:{number}: neither a fault nor a line of one"
            )
    return parts


@cache
def sources(program: str) -> dict[Path, str]:
    suffix = "*.py" if program in ("python", "static") else "*.cpp"
    return {
        path: path.read_text() for path in sorted((ROOT / "tests" / FOLDERS[program]).glob(suffix))
    }


def where(test: str) -> Path | None:
    """The file that defines a test."""
    program, _, name = test.rpartition(":") if "::" not in test else test.partition(":")
    if "::" in test:
        file, _, function = name.partition("::")
        path = ROOT / "tests" / FOLDERS[program] / file
        text = sources(program).get(path, "")
        return path if re.search(rf"^def {function}\(", text, re.MULTILINE) else None
    suite, _, case = name.partition(".")
    suite, case = suite.split("/")[-1], case.split("/")[0]
    for path, text in sources(program).items():
        if re.search(rf"^TEST(_F|_P)?\({suite}, {case}\)", text, re.MULTILINE):
            return path
    return None


def short(test: str) -> str:
    """A link that reads as the test's name without what only tells its program."""
    path = where(test)
    if "::" in test:
        name = test.split("::")[1]
    else:
        name = test.split(":")[-1]
        suite, _, case = name.rpartition(".") if "/" not in name else name.partition(".")
        case, _, parameter = case.partition("/")
        suite = suite.split("/")[-1]
        name = case if suite.startswith("Faults") else f"{suite}.{case}"
        name += f" {parameter}" if parameter else ""
    return f"[{name}](../{path.relative_to(ROOT)})" if path else name


def row(fault: Fault, every: list[Column]) -> str:
    tests: list[str] = []
    reasons: list[str] = []
    cells = []
    for column in every:
        marks = []
        for entry in fault.cell(column):
            known, mark = (reasons, "a") if entry.startswith("- ") else (tests, "1")
            if entry not in known:
                known.append(entry)
            marks.append(chr(ord(mark) + known.index(entry)))
        cells.append(" ".join(marks))
    legend = [f"**{i + 1}** {short(test)}" for i, test in enumerate(tests)]
    legend += [f"**{chr(ord('a') + i)}** {reason[2:]}" for i, reason in enumerate(reasons)]
    return f"| **{fault.id}** {fault.what} | {' | '.join(cells)} | {'<br>'.join(legend)} |"


def page(parts: list[str | Fault], every: list[Column]) -> str:
    heads = [f"{column.kind} `{column.name}`" for column in every]
    text = HEAD
    for part in parts:
        if isinstance(part, Fault):
            text += row(part, every) + "\n"
        else:
            text += f"{'' if text is HEAD else chr(10)}## {part}\n\n"
            text += f"| fault | {' | '.join(heads)} | tests, and reasons |\n"
            text += "|---" * (len(heads) + 2) + "|\n"
    return text


def faults_of(parts: list[str | Fault], every: list[Column]) -> list[str]:
    """What is wrong with the list."""
    found = []
    for fault in parts:
        if not isinstance(fault, Fault):
            continue
        found += [
            f"tests/faults.txt: {fault.id} says nothing of {column.name}, {column.kind}"
            for column in every
            if not fault.cell(column)
        ]
        found += [
            f"tests/faults.txt: {fault.id}: no implementation is selected by '{selector}'"
            for selectors, _ in fault.lines
            for selector in selectors
            if not any(column.selected_by(selector) for column in every)
        ]
        found += [
            f"tests/faults.txt: {fault.id} names no test: {entry}"
            for _, entries in fault.lines
            for entry in entries
            if not entry.startswith("- ") and where(entry) is None
        ]
    return found


def check(fix: bool = False) -> list[str]:
    parts, every = read(), columns()
    found = faults_of(parts, every)
    text = page(parts, every)
    if fix:
        PAGE.write_text(text)
    elif not PAGE.exists() or PAGE.read_text() != text:
        found.append("docs/faults.md is stale; run tools/faults_matrix.py --fix")
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fix", action="store_true", help="write the page")
    found = check(parser.parse_args().fix)
    print(
        "\n".join(found) if found else "docs/faults.md agrees with tests/faults.txt and the tests"
    )
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
