# SPDX-License-Identifier: Apache-2.0
"""Tests the tests: seeds one fault at a time and requires that linattn_ops_tests fails, and passes without any.

usage: mutants.py [NAME...]
"""

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MUTANTS = {
    "GATE_ROW": "a gate read one row off in the tail",
    "BETA_BF16": "beta rounded to bf16",
    "DECAY_BF16": "the decay rounded to bf16",
}
TIMEOUT = 1800


FOLDER = "build/mutants"  # one for all: a mutant recompiles src/cpu only


def build(mutant: str) -> None:
    commands = [
        [
            ".venv/bin/cmake",
            "--preset",
            "cpu",
            "-B",
            FOLDER,
            f"-DLINATTN_MUTANT={mutant}",
            "-DLINATTN_FFI=OFF",
        ],
        [
            ".venv/bin/cmake",
            "--build",
            FOLDER,
            "--parallel",
            str(os.cpu_count()),
            "--target",
            "linattn_ops_tests",
        ],
    ]
    for command in commands:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(command)}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")


def first_failure(stop: bool) -> tuple[str, float]:
    """The name of the first test that fails, empty if none does; and the seconds it took."""
    begin = time.monotonic()
    shards = os.cpu_count() or 1
    command = ["./linattn_ops_tests", "--gtest_brief=1"] + (["--gtest_fail_fast"] if stop else [])
    running = []
    for shard in range(shards):
        environment = os.environ | {
            "GTEST_TOTAL_SHARDS": str(shards),
            "GTEST_SHARD_INDEX": str(shard),
        }
        running.append(
            subprocess.Popen(
                command,
                cwd=ROOT / FOLDER,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        )
    failed = ""
    for process in running:
        output, _ = process.communicate(timeout=TIMEOUT)
        if process.returncode not in (0, 1):
            sys.exit(f"{FOLDER}/linattn_ops_tests crashed with status {process.returncode}")
        names = [
            line.split()[3].rstrip(",")
            for line in output.splitlines()
            if line.startswith("[  FAILED  ]")
        ]
        failed = failed or (names[0] if process.returncode and names else "")
    return failed, time.monotonic() - begin


def main() -> int:
    wrong = 0
    for mutant in sys.argv[1:] or ["", *MUTANTS]:
        build(mutant)
        failed, seconds = first_failure(stop=bool(mutant))
        good = bool(failed) == bool(mutant)
        wrong += not good
        verdict = f"noticed by {failed}" if failed else "no test fails"
        what = f"{mutant} ({MUTANTS[mutant]})" if mutant else "no mutant"
        print(f"{'ok   ' if good else 'WRONG'} {what}: {verdict}, {seconds:.0f} s", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
