# SPDX-License-Identifier: Apache-2.0
"""Problem, and the questions that need no tensors: which implementations there are, and why one refuses."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from . import _native
from .op import DTYPES, PASSES, SAVE, Op, number, problem_code


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
