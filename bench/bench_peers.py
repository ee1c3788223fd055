# SPDX-License-Identifier: Apache-2.0
"""linattn beside other libraries on one NVIDIA GPU: same inputs, same run, errors beside times.

usage: bench_peers.py [--list] [--filter REGEX] [--peers NAME,NAME] [--implementation NAME] [--repeats 20]
                      [--bench build/native/linattn-bench] [--out bench/results] [--plot FILE.svg]

The cases are linattn-bench's (make bench builds it). Libraries that cannot be imported are listed with the reason.
docs/benchmarks.md explains the columns and the rules. Writes DATE-DEVICE-peers.json.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from peers import Call, Case, Declines, Linattn, Peer, all_peers, make_inputs

ROOT = Path(__file__).resolve().parent.parent
FLOOR_BANDWIDTH = 4.3e12
GRAPH_BYTES = 64e6  # less traffic than this is timed in a CUDA graph of several calls
LEAST_GRAPH_CALLS = 16
WARM_UPS = 3
LEAST_REPEATS, SECONDS_PER_TIMING = 3, 2.0
ORACLE_HEADS, ORACLE_TOKENS = 2, 16384  # what the oracle, token by token on the CPU, can afford


def read_cases(program: Path, pattern: str) -> list[Case]:
    if not program.exists():
        raise SystemExit(f"{program} is not built: run `make bench` first, or name it by --bench")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cases.json"
        command = [program, "--list", "--json", path]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        cases = [Case.read(row) for row in json.loads(path.read_text())["rows"]]
    found = [c for c in cases if c.device == "cuda" and re.search(pattern, c.case)]
    if not found:
        raise SystemExit(f"no case has '{pattern}' in its name")
    return found


# ---- time ---------------------------------------------------------------------------------------------------------


def size_in_bytes(*tensors: Any) -> int:
    return sum(t.numel() * t.element_size() for t in tensors if t is not None)


def between_events(run: Callable[[int], Any], repeats: int) -> float:
    """Milliseconds of one run, the median; of fewer runs where they take long. Nothing waits between them."""
    import torch

    def measure(count: int) -> list[float]:
        pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
        for i, (begin, end) in enumerate(pairs):
            begin.record()
            run(i)
            end.record()
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) for begin, end in pairs]

    fit = int(SECONDS_PER_TIMING * 1e3 / max(measure(1)[0], 1e-3))
    return statistics.median(measure(min(repeats, max(LEAST_REPEATS, fit))))


def graph_milliseconds(calls: list[Call], turns: int, repeats: int) -> float:
    """Milliseconds of one call inside a CUDA graph of turns x len(calls) calls."""
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(turns):
            for call in calls:
                call()
    graph.replay()
    torch.cuda.synchronize()
    return between_events(lambda _: graph.replay(), repeats) / (turns * len(calls))


def timed(calls: list[Call], small: bool, repeats: int) -> dict[str, Any]:
    """The time of plain calls and of calls in a CUDA graph, where the library can be captured."""
    import torch

    for _ in range(WARM_UPS):
        for call in calls:
            call()
    torch.cuda.synchronize()
    times: dict[str, Any] = {"ms": between_events(lambda i: calls[i % len(calls)](), repeats)}
    turns = math.ceil(LEAST_GRAPH_CALLS / len(calls)) if small else 1
    try:
        times["graph_ms"] = graph_milliseconds(calls, turns, repeats)
    except Exception as error:  # some libraries wait or allocate in a way that no graph takes
        torch.cuda.synchronize()
        times["graph_refusal"] = f"{type(error).__name__}: {error}".splitlines()[0]
    return times


def host_microseconds(call: Call) -> float:
    """Host time of one warm call; batches short enough that the queue of the GPU never fills."""
    import torch

    batches = []
    for _ in range(12):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(50):
            call()
        batches.append((time.perf_counter() - begin) / 50)
    torch.cuda.synchronize()
    return statistics.median(batches[2:]) * 1e6


# ---- error --------------------------------------------------------------------------------------------------------


def oracle(case: Case, x: dict[str, Any]) -> tuple[Any, Any, tuple[slice, ...]]:
    """Output and final state of the first heads in double, on the CPU, and the slice of the output that they are.

    The state is None when only the first tokens are affordable.
    """
    heads = min(case.heads, ORACLE_HEADS)
    value_heads = heads * case.value_heads // case.heads
    tokens = min(x["q"].shape[1], ORACLE_TOKENS)
    whole = tokens == x["q"].shape[1]
    few: dict[str, Any] = {"cu_seqlens_int32": x["cu_seqlens_int32"] if whole else None}
    for name, t in x.items():
        if name in ("q", "k"):
            few[name] = t[:, :tokens, :heads]
        elif name in ("v", "beta") or (name == "g" and case.op != "lightning"):
            few[name] = None if t is None else t[:, :tokens, :value_heads]
        elif name == "state":
            few[name] = t[:, :value_heads]
        elif name in ("A_log", "dt_bias", "g"):
            few[name] = None if t is None else t[:value_heads]
    host = {
        name: t if t is None or not t.is_floating_point() else t.float().cpu().contiguous()
        for name, t in few.items()
    }
    if host["cu_seqlens_int32"] is not None:
        host["cu_seqlens_int32"] = host["cu_seqlens_int32"].cpu()
    out, state = Linattn("cpu.recurrent").prepare(case, host)()
    return out, state if whole else None, (slice(None), slice(tokens), slice(value_heads))


def relative_rms(x: Any, reference: Any) -> float:
    x, reference = x.double().cpu(), reference.double()
    return float((x - reference).norm() / reference.norm())


# ---- the run ------------------------------------------------------------------------------------------------------


def run_case(case: Case, peers: list[Peer], repeats: int) -> list[dict[str, Any]]:
    import torch

    if not case.plain:  # no inputs and no oracle for what no library is asked
        reason = "only linattn-bench times slots, drafts, fused steps and [K, V]"
        floor = case.floor_bytes / FLOOR_BANDWIDTH * 1e3
        told = {"case": case.case, "floor_ms": floor, "sets": 0, "declines": reason}
        rows = [told | {"peer": peer.name} for peer in peers]
        for row in rows:
            print(line(row, rows[0]), flush=True)
        return rows
    first = make_inputs(case, 1, "cuda")
    reference, reference_state, part = oracle(case, first)
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    inputs = size_in_bytes(*first.values())
    sets = [first]
    if inputs <= cache:
        count = min(64, 2 * cache // inputs + 1)
        sets += [make_inputs(case, seed, "cuda") for seed in range(2, count + 1)]
    small = inputs + size_in_bytes(first["v"], first["state"]) < GRAPH_BYTES  # out is as v
    rows = []
    for peer in peers:
        row: dict[str, Any] = {"case": case.case, "peer": peer.name}
        row |= {"floor_ms": case.floor_bytes / FLOOR_BANDWIDTH * 1e3, "sets": len(sets)}
        calls: list[Call] = []
        try:
            calls = [peer.prepare(case, x) for x in sets]
            out, state = calls[0]()  # a step in place: before any other call
            row["out_error"] = relative_rms(out[part], reference)
            if reference_state is not None:
                row["state_error"] = relative_rms(state[:, part[2]], reference_state)
            del out, state
            row |= timed(calls, small, repeats)
        except Declines as reason:
            row["declines"] = str(reason)
        except Exception as error:  # a peer that fails must not end the run
            row["fails"] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
            torch.cuda.synchronize()
        rows.append(row)
        print(line(row, rows[0]), flush=True)
        del calls
        torch.cuda.empty_cache()
    return rows


def ratio(row: dict[str, Any], ours: dict[str, Any], field: str) -> float | None:
    return row[field] / ours[field] if field in row and field in ours else None


def line(row: dict[str, Any], ours: dict[str, Any]) -> str:
    head = f"{row['case']:32} {row['peer']:9}"
    for reason in ("declines", "fails"):
        if reason in row:
            return f"{head} {reason}: {row[reason]}"

    def cell(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    best = min(row[field] for field in ("ms", "graph_ms") if field in row)
    cells = [
        f"{row['ms']:9.4f}",
        f"{cell(row.get('graph_ms'), '.4f'):>9}",
        f"{cell(ratio(row, ours, 'ms'), '.2f'):>7}",
        f"{cell(ratio(row, ours, 'graph_ms'), '.2f'):>7}",
        f"{row['floor_ms'] / best:8.1%}",
        f"{row['out_error']:9.1e}",
        f"{cell(row.get('state_error'), '.1e'):>9}",
    ]
    return " ".join([head, *cells])


HEAD = " ".join(
    [f"{'case':32} {'library':9}", f"{'ms':>9} {'graph ms':>9} {'/ ours':>7} {'/ ours':>7}"]
    + [f"{'of floor':>8} {'out err':>9} {'state err':>9}"]
)


def host_times(peers: list[Peer]) -> dict[str, dict[str, float | str]]:
    """Microseconds of host time per warm call on problems so small that only the host counts."""
    tiny = {
        "kda forward 1x64 h1": {"kind": "forward", "lengths": (64,)},
        "kda step 1x1 h1": {"kind": "step", "lengths": (1,)},
    }
    times: dict[str, dict[str, float | str]] = {}
    for name, shape in tiny.items():
        case = Case(
            **shape,
            case=name,
            op="kda",
            gates="forget",
            device="cuda",
            heads=1,
            value_heads=1,
            key_dim=128,
            value_dim=128,
            layout="value_key",
            drafts="none",
            scattered=0,
            fused=0,
            dtype="bf16",
            state_dtype="fp32",
            floor_bytes=0,
        )
        x = make_inputs(case, 1, "cuda")
        times[name] = {}
        for peer in peers:
            try:
                call = peer.prepare(case, x)
                for _ in range(WARM_UPS):
                    call()
                times[name][peer.name] = host_microseconds(call)
            except Declines:
                continue
            except Exception as error:
                times[name][peer.name] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    return times


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    try:
        import matplotlib
    except ImportError:
        print("matplotlib is not installed: no plot")
        return
    matplotlib.use("svg")
    from matplotlib import pyplot

    cases = list(dict.fromkeys(row["case"] for row in rows))
    names = list(dict.fromkeys(row["peer"] for row in rows if "ms" in row))
    figure, axes = pyplot.subplots(figsize=(9, 1 + 0.18 * len(cases) * (len(names) + 1)))
    for i, name in enumerate(names):
        own = [row for row in rows if row["peer"] == name and "ms" in row]
        y = [
            cases.index(row["case"]) + (i - (len(names) - 1) / 2) / (len(names) + 1) for row in own
        ]
        ms = [min(row["ms"], row.get("graph_ms", math.inf)) for row in own]
        axes.barh(y, ms, height=1 / (len(names) + 1), label=name)
    floors = {row["case"]: row["floor_ms"] for row in rows}
    axes.plot([floors[c] for c in cases], range(len(cases)), "k|", markersize=12, label="floor")
    axes.set_yticks(range(len(cases)), cases)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("milliseconds, less is better")
    axes.legend()
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    print(f"plotted to {path}")


def record(peers: dict[str, str], arguments: argparse.Namespace) -> dict[str, Any]:
    import torch
    import triton

    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(command, capture_output=True, text=True).stdout.split()
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": torch.cuda.get_device_name(0),
        "driver": driver[0] if driver else "unknown",
        "torch": torch.__version__,
        "triton": triton.__version__,
        "implementation": arguments.implementation or "the library's choice",
        "floor_bytes_per_second": FLOOR_BANDWIDTH,
        "peers": peers,
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="print cases and libraries, and stop")
    parser.add_argument("--filter", default="", help="only cases whose name this regex finds")
    parser.add_argument("--peers", help="only these, by name; linattn is always there")
    parser.add_argument("--implementation", help="pin a row of linattn")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--bench", type=Path, default=ROOT / "build/native/linattn-bench")
    parser.add_argument("--out", type=Path, default=ROOT / "bench/results")
    parser.add_argument("--plot", type=Path, help="an SVG of the times")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    cases = read_cases(arguments.bench, arguments.filter)
    wanted = None if arguments.peers is None else arguments.peers.lower().split(",")
    peers, states = [], {}
    for peer in all_peers(arguments.implementation):
        if wanted is not None and peer.name.lower() not in wanted and peer.name != "linattn":
            continue
        reason = peer.absent()
        states[peer.name] = peer.version() if reason is None else f"absent: {reason}"
        if reason is None:
            peers.append(peer)
    for name, state in states.items():
        print(f"{name:9} {state}")
    if arguments.list:
        print("\n".join(case.case for case in cases))
        return
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("torch sees no CUDA GPU here: --list is all that works")
    torch.set_grad_enabled(False)
    result = record(states, arguments)
    print(HEAD)
    result["rows"] = [row for case in cases for row in run_case(case, peers, arguments.repeats)]
    result["host_us"] = host_times(peers)
    print("host microseconds per warm call:", json.dumps(result["host_us"], indent=2))
    device = re.sub(r"[^a-z0-9]+", "-", result["machine"].lower()).removeprefix("nvidia-")
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / f"{result['date'][:10]}-{device}-peers.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(f"written to {path}")
    if arguments.plot:
        plot(result["rows"], arguments.plot)


if __name__ == "__main__":
    main()
