# SPDX-License-Identifier: Apache-2.0
"""cpu.chunked against FLA's naive_chunk_kda in PyTorch: same inputs, same cores, turn by turn in one run.

usage: bench_cpu.py [--tokens 4096] [--heads 32] [--repeats 5] [--naive-repeats 2] [--out bench/results]

Needs what `make test` installs and `make bench` builds. Prints a table and writes DATE-cpu.json. Besides the time on
the clock it counts the CPU time of all threads, which other processes on the machine disturb less.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import time
from pathlib import Path

import linattn
import torch
from fla.ops.kda.naive import naive_chunk_kda

ROOT = Path(__file__).resolve().parent.parent
K = V = 128
CHUNK = 32


def work(tokens: int, heads: int) -> float:
    """Multiply-adds of the chunked form at C = 32, each triangle counted once (docs/kernels/cpu-chunked.md)."""
    return tokens * heads * (3 * K * V + CHUNK / 2 * (3 * K + V) + CHUNK * CHUNK / 6)


def fma_per_second() -> float:
    probe = ROOT / "build/native/linattn-bench"
    if not probe.exists():
        raise SystemExit(f"{probe.relative_to(ROOT)} is not built: run `make bench` first")
    return float(
        subprocess.run([probe, "--fma"], capture_output=True, text=True, check=True).stdout
    )


def inputs(tokens: int, heads: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    shape = (1, tokens, heads, K)

    def unit() -> torch.Tensor:
        return torch.nn.functional.normalize(torch.randn(shape), dim=-1).to(dtype)

    return {
        "q": unit(),
        "k": unit(),
        "v": torch.randn(1, tokens, heads, V).to(dtype),
        "g": torch.nn.functional.logsigmoid(torch.randn(shape)),
        "beta": torch.rand(1, tokens, heads),
    }


def timed(run, repeats: int) -> tuple[object, float, float]:
    """The result, and the least time on the clock and of all threads."""
    result, wall, cpu = None, float("inf"), float("inf")
    for _ in range(repeats):
        begin_wall, begin_cpu = time.perf_counter(), time.process_time()
        result = run()
        cpu = min(cpu, time.process_time() - begin_cpu)
        wall = min(wall, time.perf_counter() - begin_wall)
    return result, wall, cpu


def rms_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    got, expected = got.double(), expected.double()
    return float((got - expected).norm() / expected.norm())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--naive-repeats", type=int, default=2)
    parser.add_argument("--out", type=Path, default=ROOT / "bench/results")
    args = parser.parse_args()

    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(cores)
    rate = fma_per_second() * cores
    rows = []
    for dtype in (torch.bfloat16, torch.float32):
        x = inputs(args.tokens, args.heads, dtype)
        with torch.no_grad():
            linattn.chunk_kda(**x, output_final_state=True)
            ours, wall, cpu = timed(
                lambda x=x: linattn.chunk_kda(**x, output_final_state=True), args.repeats
            )
            naive, naive_wall, naive_cpu = timed(
                lambda x=x: naive_chunk_kda(**x, output_final_state=True), args.naive_repeats
            )
        rows.append(
            {
                "dtype": str(dtype).removeprefix("torch."),
                "seconds": wall,
                "cpu_seconds": cpu,
                "naive_seconds": naive_wall,
                "naive_cpu_seconds": naive_cpu,
                "ratio": naive_wall / wall,
                "cpu_ratio": naive_cpu / cpu,
                "tokens_per_second": args.tokens / wall,
                "share_of_fma": work(args.tokens, args.heads) / wall / rate,
                "share_of_fma_cpu_time": work(args.tokens, args.heads) / cpu / (rate / cores),
                "difference": rms_error(ours[0], naive[0]),
                "state_difference": rms_error(ours[1], naive[1]),
            }
        )
    record = {
        "date": datetime.date.today().isoformat(),
        "machine": platform.machine(),
        "cores": cores,
        "load_before": os.getloadavg(),
        "torch": torch.__version__,
        "tokens": args.tokens,
        "heads": args.heads,
        "fma_per_second_of_one_core": rate / cores,
        "rows": rows,
    }
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / f"{record['date']}-cpu.json"
    path.write_text(json.dumps(record, indent=2) + "\n")

    print(f"KDA forward, T = {args.tokens}, H = {args.heads}, K = V = 128, {cores} cores")
    print(f"one core does {rate / cores / 1e9:.1f} G multiply-adds/s in fp32")
    print(
        f"{'dtype':10} {'ours':>9} {'naive':>9} {'ratio':>7} {'(CPU time)':>11} {'of FMA':>7} {'(CPU time)':>11}"
    )
    for row in rows:
        print(
            f"{row['dtype']:10} {row['seconds'] * 1e3:7.0f}ms {row['naive_seconds'] * 1e3:7.0f}ms {row['ratio']:6.1f}x"
            f" {row['cpu_ratio']:10.1f}x {row['share_of_fma']:7.0%} {row['share_of_fma_cpu_time']:11.0%}"
        )
    try:
        print(f"written to {path.relative_to(ROOT)}")
    except ValueError:
        print(f"written to {path}")


if __name__ == "__main__":
    main()
