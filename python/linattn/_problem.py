# SPDX-License-Identifier: Apache-2.0
"""Problem, and the questions that need no tensors: which implementations there are, and why one refuses."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from . import _native
from ._frameworks import FLOATS, float_dtype
from .op import (
    BETA_INPUTS,
    DTYPES,
    GATE_INPUTS,
    GATES,
    OPS,
    PASSES,
    STATE_LAYOUTS,
    UPDATES,
    Op,
    as_op,
    number,
)

# What tensors do not show of a problem is one integer of four bits each, as bindings/inputs.h reads it. Places:
GATE, UPDATE, GATE_INPUT, BETA_INPUT, LAYOUT, STATE_DTYPE, NORM, SAVE, INVARIANT = range(0, 36, 4)

_OPS = {
    op: GATES[op.gate] << GATE | UPDATES[op.update] << UPDATE
    for op in (Op(gate, update) for gate in GATES for update in UPDATES)
}
_OPS |= {name: _OPS[op] for name, op in OPS.items()}


def _placed(words: dict[str, int], place: int) -> dict[str | None, int]:
    return {None: 0} | {word: code << place for word, code in words.items()}


_GATE_INPUTS = _placed(GATE_INPUTS, GATE_INPUT)
_BETA_INPUTS = _placed(BETA_INPUTS, BETA_INPUT)
_STATE_LAYOUTS = _placed(STATE_LAYOUTS, LAYOUT)
_STATE_DTYPES = _placed({name: DTYPES[name] for name in FLOATS}, STATE_DTYPE)


def problem_code(
    op: str | Op,
    gate_input: str | None,
    beta_input: str | None,
    qk_l2norm: bool,
    state_layout: str | None,
    state_dtype: Any = None,
    batch_invariant: bool = False,
) -> int:
    """The integer. state_dtype None: as the states that come, or float32."""
    try:
        code = (
            _OPS[op]
            | _GATE_INPUTS[gate_input]
            | _BETA_INPUTS[beta_input]
            | _STATE_LAYOUTS[state_layout]
            | _STATE_DTYPES[state_dtype]
        )
    except (KeyError, TypeError):
        as_op(op)
        number(GATE_INPUTS, "gate_input", gate_input)
        number(BETA_INPUTS, "beta_input", beta_input)
        number(STATE_LAYOUTS, "state_layout", state_layout)
        state_dtype = float_dtype("state_dtype", state_dtype)
        return problem_code(
            op, gate_input, beta_input, qk_l2norm, state_layout, state_dtype, batch_invariant
        )
    if qk_l2norm:
        code |= 1 << NORM
    if batch_invariant:
        code |= 1 << INVARIANT
    return code


def digit(code: int, place: int) -> int:
    return code >> place & 15


@dataclass(frozen=True)
class Problem:
    """All that selects a kernel; the C++ struct of the same name (include/linattn/problem.h)."""

    op: str | Op
    max_tokens: int
    heads: int
    key_dim: int
    value_dim: int
    max_sequences: int = 1
    value_heads: int = 0
    dtype: str = "bfloat16"
    gate_input: str | None = None
    gate_dtype: str = "float32"
    beta_input: str | None = None
    beta_dtype: str = "float32"
    qk_l2norm: bool = False
    state_layout: str | None = None
    state_dtype: str = "float32"
    checkpoint_dtype: str | None = None
    checkpoint_interval: int = 64
    save_for_backward: bool = False
    batch_invariant: bool = False
    sm_limit: int = 0

    def _arguments(self, device: Any) -> list[int]:
        kind, _, index = str(device).partition(":")
        if kind not in ("cpu", "cuda"):
            raise ValueError(f"device is {device}; expected cpu or cuda:<index>")
        code = problem_code(
            self.op,
            self.gate_input,
            self.beta_input,
            self.qk_l2norm,
            self.state_layout,
            self.state_dtype,
            self.batch_invariant,
        )
        code |= int(self.save_for_backward) << SAVE
        dtypes = [
            number(DTYPES, field.name, getattr(self, field.name))
            for field in fields(self)
            if field.name in ("dtype", "gate_dtype", "beta_dtype", "checkpoint_dtype")
        ]
        sizes = [
            self.max_tokens,
            self.max_sequences,
            self.heads,
            self.value_heads,
            self.key_dim,
            self.value_dim,
        ]
        numbers = [code, self.checkpoint_interval, self.sm_limit]
        return [*numbers, *dtypes, *sizes, 1 if kind == "cpu" else 2, int(index or 0)]


def explain(problem: Problem, device: Any = "cpu", which: str = "forward") -> str:
    """A line per implementation of the pass `which`: that it takes the problem, or why not."""
    return str(_native.explain(*problem._arguments(device), number(PASSES, "which", which)))


def implementations(which: str = "forward") -> list[str]:
    """Names of the implementations of a pass ("forward", "backward" or "step"), best first, the oracle last."""
    return [str(name) for name in _native.implementations(number(PASSES, "which", which))]


def set_threads(threads: int) -> None:
    """Threads of the CPU implementations, for the process; 0: one per core."""
    _native.set_threads(int(threads))
