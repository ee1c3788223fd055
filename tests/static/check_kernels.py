# SPDX-License-Identifier: Apache-2.0
"""The static kernel gate: what can be proved of every kernel without a GPU.

Reads what ptxas said of each object that the build makes (OBJECT.ptxas, kept by tools/keep_ptxas_log.sh; a file left
from a source that is gone counts for nothing, a missing one is a fault) and the machine code, and fails on
spills, on serialised wgmma (C7510-C7512), on registers, shared memory, stack or tensor-core instructions other than
recorded in kernels.json, on more kernel instances than its cap, and on a library that does not load without a driver.

usage: check_kernels.py build/cuda [--update]
"""

import argparse
import ctypes
import json
import re
import subprocess
import sys
import sysconfig
from collections import Counter
from pathlib import Path

RECORD = Path(__file__).with_name("kernels.json")
# The instruction that a folder exists for: at least one of its kernels must have it.
REQUIRED = {"portable": "HMMA", "sm90": "HGMMA"}

ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")
SERIALISED = re.compile(r"C751[0-2]")
MNEMONIC = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9]*)")
TENSOR_CORE = re.compile(r"^(HGMMA|HMMA|QGMMA|IGMMA|UTC\w*MMA)$")


def parse_log(text: str) -> tuple[dict[tuple[str, str], dict[str, int]], list[str]]:
    """Resources per (mangled kernel, architecture), and the lines that report serialised wgmma."""
    kernels: dict[tuple[str, str], dict[str, int]] = {}
    current: dict[str, int] = {}
    for line in text.splitlines():
        if entry := ENTRY.search(line):
            current = kernels.setdefault((entry[1], entry[2]), {"shared": 0})
        elif (frame := FRAME.search(line)) and "stack" not in current:
            current["stack"], current["spills"] = int(frame[1]), int(frame[2]) + int(frame[3])
        elif used := USED.search(line):
            current["registers"] = int(used[1])
            if shared := SHARED.search(line):
                current["shared"] = int(shared[1])
    return kernels, [line for line in text.splitlines() if SERIALISED.search(line)]


def parse_sass(text: str) -> dict[tuple[str, str], Counter]:
    """Tensor-core instructions per (mangled kernel, architecture), from cuobjdump -sass."""
    kernels: dict[tuple[str, str], Counter] = {}
    arch, current = "", Counter()
    for line in text.splitlines():
        if found := re.match(r"\s*arch = (\w+)", line):
            arch = found[1]
        elif found := re.match(r"\s*Function : (\S+)", line):
            current = kernels.setdefault((found[1], arch), Counter())
        elif (found := MNEMONIC.match(line)) and TENSOR_CORE.match(found[1]):
            current[found[1]] += 1
    return kernels


def demangle(names: list[str]) -> list[str]:
    text = subprocess.run(
        ["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True
    ).stdout
    return [name.replace("(anonymous namespace)::", "") for name in text.splitlines()]


def disassemble(thing: Path) -> str:
    tools = Path(sysconfig.get_path("purelib")) / "nvidia/cu13/bin"
    command = [tools / "cuobjdump", "-sass", thing]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def objects_with_logs(build: Path) -> tuple[dict[Path, Path], list[str]]:
    """The log of ptxas per CUDA object that this build makes, and what is missing."""
    commands = json.loads((build / "compile_commands.json").read_text())
    objects = [build / entry["output"] for entry in commands if entry["file"].endswith(".cu")]
    logs = {thing: thing.with_name(thing.name + ".ptxas") for thing in sorted(objects)}
    missing = [path for pair in logs.items() for path in pair if not path.exists()]
    return logs, [f"{path} is missing: remove its object and build again" for path in missing]


def collect(build: Path, debts: list[dict]) -> tuple[dict[str, dict], list[str]]:
    """All kernels of a build as {"folder/file.cu sm_XX name": resources}, and what is wrong with them.

    debts: kernels that may spill a little for now, [{"kernels": regex, "spills": bytes, "why": ...}].
    """
    logs, faults = objects_with_logs(build)
    found, owed = {}, []
    for thing, log in logs.items():
        if not (thing.exists() and log.exists()):
            continue
        file = str(thing).split("/src/cuda/")[-1].removesuffix(".o")
        resources, serialised = parse_log(log.read_text())
        faults += [f"{file}: {line.strip()}" for line in serialised]
        instructions = parse_sass(disassemble(thing))
        for key, name in zip(resources, demangle([mangled for mangled, _ in resources])):
            resource = resources[key]
            if spills := resource.pop("spills"):
                debt = next((d for d in debts if re.search(d["kernels"], f"{file} {name}")), None)
                if debt is None or spills > debt["spills"]:
                    faults.append(f"{file}: {name} for {key[1]} spills {spills} bytes")
                else:
                    owed.append(f"{file} {key[1]}: {spills} bytes of spills, a known debt")
            resource["tensor"] = sorted(instructions.get(key, {}))
            found[f"{file} {key[1]} {name}"] = resource
    print(*owed, sep="\n", end="\n" if owed else "")
    for folder, mnemonic in REQUIRED.items():
        if not any(
            name.startswith(folder + "/") and mnemonic in value["tensor"]
            for name, value in found.items()
        ):
            faults.append(f"no kernel of {folder} has the instruction {mnemonic}")
    return found, faults


def compare(found: dict[str, dict], recorded: dict[str, dict]) -> list[str]:
    faults = [
        f"not in {RECORD.name}: {name} {found[name]}" for name in found.keys() - recorded.keys()
    ]
    faults += [f"recorded and gone: {name}" for name in recorded.keys() - found.keys()]
    for name in sorted(found.keys() & recorded.keys()):
        if found[name] != recorded[name]:
            faults.append(
                f"changed: {name}\n    recorded {recorded[name]}\n    now      {found[name]}"
            )
    return sorted(faults)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=Path)
    parser.add_argument("--update", action="store_true", help="record what was found")
    options = parser.parse_args()
    record = json.loads(RECORD.read_text())
    found, faults = collect(options.build, record["debts"])

    if options.update:
        record["kernels"] = dict(sorted(found.items()))
        lines = ",\n".join(
            f"    {json.dumps(name)}: {json.dumps(value)}"
            for name, value in record["kernels"].items()
        )
        debts = ",\n".join(f"    {json.dumps(debt)}" for debt in record["debts"])
        RECORD.write_text(
            f'{{\n  "max_instances": {record["max_instances"]},\n  "debts": [\n{debts}\n  ],\n'
            f'  "kernels": {{\n{lines}\n  }}\n}}\n'
        )
    elif changes := compare(found, record["kernels"]):
        faults += changes + [
            "if this is meant: tests/static/check_kernels.py BUILD --update, and say why in the commit"
        ]

    per_folder = Counter(name.split("/")[0] for name in found)
    print(f"kernel instances: {len(found)} of at most {record['max_instances']}", dict(per_folder))
    if len(found) > record["max_instances"]:
        faults.append(
            f"{len(found)} kernel instances; {RECORD.name} allows {record['max_instances']}"
        )

    library = ctypes.CDLL(str(options.build / "liblinattn.so.0"))
    library.linattn_version.restype = ctypes.c_char_p
    print(f"liblinattn.so.0 loads, version {library.linattn_version().decode()}")

    for fault in faults:
        print(fault, file=sys.stderr)
    print("static kernel gate:", "failed" if faults else "passed")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
