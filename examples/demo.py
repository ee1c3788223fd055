# SPDX-License-Identifier: Apache-2.0
"""One Kimi Linear layer on this machine: a KDA prefill of 4096 tokens, then 64 decoded tokens from its state.

32 heads, K = V = 128, gates and norms in the kernel, states [V, K] as servers keep them. Everything is checked against
"cpu.recurrent", the oracle: the recurrence token by token in double. NumPy only; float16, since NumPy has no bfloat16.

usage: demo.py [--tokens 4096] [--heads 32]
"""

import argparse
import sys
import time

import linattn
import numpy as np
from linattn.testing import error_ratio, tolerance

ORACLE = "cpu.recurrent"
DECODED = 64
PIECE = 256  # tokens of the oracle between two lines of progress


def layer(tokens: int, heads: int, dim: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """What the projections of a layer hand over: activations, raw gates and logits."""

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32).astype(np.float16)

    rows = (1, tokens, heads)
    return {
        "q": normal(*rows, dim),
        "k": normal(*rows, dim),
        "v": normal(*rows, dim),
        "g": normal(*rows, dim),
        "beta": normal(*rows),
    }


def rows(x: dict[str, np.ndarray], begin: int, end: int) -> dict[str, np.ndarray]:
    return {name: a[:, begin:end] for name, a in x.items()}


def chosen(problem: linattn.Problem, which: str) -> str:
    """The first implementation of a pass that takes the problem."""
    lines = linattn.explain(problem, "cpu", which).splitlines()
    return next(line.split(":")[0].strip() for line in lines if line.endswith(": takes it"))


def progress(done: int, total: int, begin: float) -> None:
    print(
        f"\r  oracle: {done} of {total} tokens, {time.perf_counter() - begin:.0f} s",
        end="",
        flush=True,
    )


def oracle(x: dict, words: dict, tokens: int, state: np.ndarray) -> tuple[np.ndarray, float]:
    """o of every token; `state` is carried through all of them. Prefill in pieces, to show progress."""
    begin, pieces = time.perf_counter(), []
    for t in range(0, tokens, PIECE):
        piece = rows(x, t, min(t + PIECE, tokens))
        pieces.append(linattn.forward(**piece, **words, pool=state, implementation=ORACLE)[0])
        progress(min(t + PIECE, tokens), tokens, begin)
    print()
    return np.concatenate(pieces, axis=1), time.perf_counter() - begin


def decode(
    x: dict, words: dict, state: np.ndarray, implementation: str | None
) -> tuple[np.ndarray, float]:
    """One token per call, the state updated in place, as a server does it."""
    begin = time.perf_counter()
    o = [
        linattn.step(**rows(x, t, t + 1), **words, pool=state, implementation=implementation)[0]
        for t in range(x["q"].shape[1])
    ]
    return np.concatenate(o, axis=1), time.perf_counter() - begin


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=32)
    options = parser.parse_args()
    tokens, heads, dim = options.tokens, options.heads, 128

    rng = np.random.default_rng(0)
    print(f"KDA, {tokens} tokens, {heads} heads, K = V = {dim}, float16 in, float32 state")
    x = layer(tokens + DECODED, heads, dim, rng)
    prompt, rest = rows(x, 0, tokens), rows(x, tokens, tokens + DECODED)
    words = {
        "op": "kda",
        "gate_input": "bounded",
        "lower_bound": -5.0,
        "A_log": np.log(rng.uniform(1, 16, heads)).astype(np.float32),
        "dt_bias": rng.standard_normal((heads, dim), dtype=np.float32),
        "beta_input": "logit",
        "qk_l2norm": True,
        "state_layout": "value_key",
    }

    problem = linattn.Problem(
        op="kda",
        max_tokens=tokens,
        heads=heads,
        key_dim=dim,
        value_dim=dim,
        dtype="float16",
        gate_input="bounded",
        gate_dtype="float16",
        beta_input="logit",
        beta_dtype="float16",
        qk_l2norm=True,
        state_layout="value_key",
    )
    best, best_step = chosen(problem, "forward"), chosen(problem, "step")
    linattn.forward(**rows(prompt, 0, 64), **words)  # threads and plans exist before the clock runs
    begin = time.perf_counter()
    o, state = linattn.forward(**prompt, **words, output_final_state=True, implementation=best)
    prefill_time = time.perf_counter() - begin
    prefill_state = state.copy()
    more, decode_time = decode(rest, words, state, best_step)

    expected_state = np.zeros_like(state)
    expected, oracle_time = oracle(prompt, words, tokens, expected_state)
    errors = [
        ("prefill", best, o, expected, prefill_state, expected_state.copy(), prefill_time, tokens)
    ]
    expected_more, oracle_decode_time = decode(rest, words, expected_state, ORACLE)
    errors.append(
        (
            "decode",
            best_step,
            more,
            expected_more,
            state,
            expected_state,
            decode_time,
            DECODED,
        )
    )

    print(
        f"\n{'pass':8} {'implementation':16} {'error o':>9} {'error state':>12} {'time':>10} {'tokens/s':>10}"
    )
    good = True
    for name, implementation, got, want, S, want_S, seconds, count in errors:
        error, state_error = error_ratio(got, want), error_ratio(S, want_S)
        good &= error <= tolerance("float16") and state_error <= tolerance("float16", "state")
        print(
            f"{name:8} {implementation:16} {error:9.1e} {state_error:12.1e} {1e3 * seconds:7.1f} ms"
            f" {count / seconds:10.0f}"
        )
    for name, seconds, count in (
        ("prefill", oracle_time, tokens),
        ("decode", oracle_decode_time, DECODED),
    ):
        print(
            f"{name:8} {ORACLE:16} {'-':>9} {'-':>12} {1e3 * seconds:7.1f} ms {count / seconds:10.0f}"
        )
    bound = tolerance("float16"), tolerance("float16", "state")
    print(
        f"relative rms errors; bounds {bound[0]:.1e} and {bound[1]:.1e}: {'ok' if good else 'FAILED'}"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
