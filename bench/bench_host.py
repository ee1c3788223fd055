# SPDX-License-Identifier: Apache-2.0
"""Microseconds of the host per warm call from Python: every door, the native doors, and the parts of a call.

usage: bench_host.py [--device cuda|cpu] [--json FILE]

With bench/host/plan_call.cpp built (`make bench`), also nanoseconds of the C++ API.

Outputs come from PyTorch's allocator as in use; nothing synchronizes inside a batch, and a batch is so short that the
queue of launches never fills. On the CPU the kernels' time is included: one token, one head, K = V = 8.
"""

import argparse
import json
import statistics
import subprocess
import time
from pathlib import Path

import linattn
import torch

BATCH, ROUNDS = 50, 200
PLAN_CALL = Path(__file__).resolve().parent.parent / "build/native/plan-call"


def microseconds(call, synchronize):
    """Per call: the median and the least over the batches."""
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter_ns()
        for _ in range(BATCH):
            call()
        times.append((time.perf_counter_ns() - begin) / BATCH / 1000)
        synchronize()
    return statistics.median(times), min(times)


def inputs(device, T, H, D, dtype):
    def random(*shape):
        return torch.rand(shape, device=device)

    x = {name: random(1, T, H, D).to(dtype) for name in "qkv"}
    return x, -random(1, T, H, D), random(1, T, H), random(1, H, D, D)


def doors(device):
    """Name: a call without arguments."""
    cuda = device == "cuda"
    H, D, dtype = (8, 128, torch.bfloat16) if cuda else (1, 8, torch.float32)
    calls = {}
    for T, prefix in ((64 if cuda else 1, "chunk"), (1, "fused_recurrent")):
        x, g, beta, h = inputs(device, T, H, D, dtype)
        head = g[..., 0].contiguous()
        state = {"initial_state": h, "output_final_state": True}
        gated = {**x, "g": g, "beta": beta, "A_log": h[0, :, 0, 0].contiguous()}
        of = {
            "kda": {**x, "g": g, "beta": beta},
            "kda (gate, norm and sigmoid in the kernel)": {
                **gated,
                "use_gate_in_kernel": True,
                "use_qk_l2norm_in_kernel": True,
                "use_beta_sigmoid_in_kernel": True,
            },
            "gated_delta_rule": {**x, "g": head, "beta": beta},
            "gla": {**x, "g" if prefix == "chunk" else "gk": g},
            "simple_gla": {**x, "g": head},
            "gdn2": {**x, "g": g, "b": x["k"], "w": x["v"]},
            "linear_attn": {**x, "normalize": False},
            "lightning_attn": {**x, "layer_idx": 1, "num_layers": 4},
        }
        if dtype != torch.float32 or prefix != "chunk":  # FLA's assertion
            of["delta_rule"] = {**x, "beta": beta}
        for name, arguments in of.items():
            door = getattr(linattn, f"{prefix}_{name.split()[0]}")
            calls[f"{prefix}_{name}"] = lambda door=door, a=arguments: door(**a)
            if name == "kda":
                with_state = {**arguments, **state}
                calls[f"{prefix}_kda, states"] = lambda door=door, a=with_state: door(**a)

    words = {"op": "kda", "gate_input": "log_decay", "beta_input": "value"}
    x = {**x, "g": g, "beta": beta}
    calls["forward"] = lambda: linattn.forward(**words, **x)
    words |= {"state_layout": "value_key", "pool": h}
    slots = {"read_slots": torch.zeros(1, dtype=torch.int32, device=device)}
    slots["write_slots"] = slots["read_slots"]
    calls["step, pool"] = lambda: linattn.step(**words, **x)
    calls["step, pool and slots"] = lambda: linattn.step(**words, **x, **slots)
    out = torch.empty_like(x["v"])
    calls["step, pool and out"] = lambda: linattn.step(**words, **x, out=out)
    return calls


def parts(device):
    """What a call is made of; several of these make one."""
    import tvm_ffi

    nothing = tvm_ffi.get_global_func("testing.nop")
    x = torch.zeros(1, 1, 8, 128, device=device)
    calls = {
        "part: a tvm-ffi call": nothing,
        "part: the same with 8 tensors": lambda: nothing(x, x, x, x, x, x, x, x),
        "part: torch.empty_like": lambda: torch.empty_like(x),
    }
    if device == "cuda":
        calls["part: an empty launch"] = lambda: torch.cuda._sleep(0)
    return calls


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    synchronize = torch.cuda.synchronize if options.device == "cuda" else lambda: None
    results = {}
    with torch.no_grad():
        for name, call in (doors(options.device) | parts(options.device)).items():
            for _ in range(BATCH):
                call()
            synchronize()
            results[name] = microseconds(call, synchronize)
            print(
                f"{name:64} {results[name][0]:8.2f} us   least {results[name][1]:6.2f}", flush=True
            )
    if PLAN_CALL.exists():
        print(subprocess.run([PLAN_CALL], capture_output=True, text=True, check=True).stdout)
    if options.json:
        name = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
        options.json.write_text(json.dumps({"device": name, "microseconds": results}, indent=1))


if __name__ == "__main__":
    main()
