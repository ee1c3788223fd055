# SPDX-License-Identifier: Apache-2.0
"""The tools that judge the tree, and the names that the shared libraries export."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def test_compile_times_are_read_from_ninjas_log(tmp_path):
    lines = [
        "# ninja log v7",
        "10\t2510\t0\tCMakeFiles/a.dir/src/a.cpp.o\tff",
        "0\t9000\t0\tliba.so\tff",
    ]
    (tmp_path / ".ninja_log").write_text("\n".join(lines))
    times = load("compile_times")
    assert {times.source_of(k): v for k, v in times.read_times(tmp_path).items()} == {
        "src/a.cpp": 2.5
    }


@pytest.mark.parametrize(
    "name, text, fault",
    [
        ("include/linattn/a.h", "#include <cuda.h>", "standard library only"),
        ("include/linattn/a.h", "#include <torch/extension.h>", "standard library only"),
        ("include/linattn/a.h", "int x;", "no #pragma once"),
        ("src/a.cpp", "int x;\n" * 601, "601 lines"),
        ("src/a.cpp", "int x;", "no SPDX"),
        ("src/fast_chunk.cpp", "", "a name that says nothing"),
        ("docs/a.md", "see /" + "home/someone/x", "path of one machine"),
    ],
)
def test_rules_notice(tmp_path, monkeypatch, name, text, fault):
    monkeypatch.chdir(tmp_path)
    path = Path(name)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert any(fault in found for found in load("rules").check(path))


def test_rules_accept_a_public_header(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Path("include/linattn/a.h")
    path.parent.mkdir(parents=True)
    path.write_text(
        '// SPDX-License-Identifier: Apache-2.0\n#pragma once\n#include <vector>\n#include "linattn/c.h"\n'
    )
    assert load("rules").check(path) == []


def test_the_faults_matrix_notices_blanks_and_strangers():
    matrix = load("faults_matrix")
    every = matrix.columns()
    assert {column.kind for column in every} == {"forward", "backward", "step"}
    lines = [(["forward", "cpu+step"], ["- no"]), (["backward"], ["Faults.NoSuchTest"])]
    found = matrix.faults_of([matrix.Fault("X-01", "a fault", lines)], every)
    assert found == [
        "tests/faults.txt: X-01 says nothing of cuda.recurrent, step",
        "tests/faults.txt: X-01 names no test: Faults.NoSuchTest",
    ]
    lines.append((["cuda.recurent"], ["- a name misspelt"]))
    found = matrix.faults_of([matrix.Fault("X-01", "a fault", lines)], every)
    assert "tests/faults.txt: X-01: no implementation is selected by 'cuda.recurent'" in found


def test_the_library_exports_the_c_abi_only():
    library = ROOT / "python/linattn/_lib/liblinattn.so.0"
    command = ["nm", "-D", "--defined-only", "--format=posix", library]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = [line.split()[0].split("@")[0] for line in text.splitlines()]
    assert "linattn_version" in names
    assert [name for name in names if not name.startswith("linattn_") and name != "LINATTN_0"] == []


def test_the_c_header_and_the_library_have_the_same_functions():
    header = (ROOT / "include/linattn/c.h").read_text()
    library = ROOT / "python/linattn/_lib/liblinattn.so.0"
    text = subprocess.run(
        ["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True
    ).stdout
    exported = {line.split()[-1].split("@")[0] for line in text.splitlines()} - {"LINATTN_0"}
    declared = set(re.findall(r"^LINATTN_API [^(]*?\b(linattn_\w+)\(", header, re.MULTILINE))
    assert declared == exported
