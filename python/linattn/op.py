# SPDX-License-Identifier: Apache-2.0
"""Ops, and the words of the native doors with their numbers in include/linattn/c.h."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

GATES = {"none": 1, "head_constant": 2, "head": 3, "channel": 4}
UPDATES = {"add": 1, "delta": 2, "erase_write": 3}
GATE_INPUTS = {"log_decay": 1, "decay": 2, "softplus": 3, "bounded": 4}
BETA_INPUTS = {"one": 1, "value": 2, "logit": 3, "twice_logit": 4}
STATE_LAYOUTS = {"key_value": 1, "value_key": 2}
DTYPES = {"bfloat16": 1, "float16": 2, "float32": 3, "int32": 4, "int64": 5}
ACTIVATIONS = {"identity": 1, "silu": 2, "sigmoid": 3}
PASSES = {"forward": 1, "backward": 2, "step": 3}


def number(words: dict[str, int], name: str, word: str | None) -> int:
    """The number of a word; 0 when it is not given, which the library refuses where it matters."""
    if word is None:
        return 0
    try:
        return words[word]
    except (KeyError, TypeError):
        raise ValueError(f"{name} is {word!r}; expected one of {', '.join(words)}") from None


@dataclass(frozen=True)
class Op:
    """A pair of policies: how the state decays (`gate`) and what is written into it (`update`)."""

    gate: str
    update: str

    def __post_init__(self) -> None:
        number(GATES, "gate", self.gate)
        number(UPDATES, "update", self.update)


OPS = {
    "kda": Op("channel", "delta"),
    "gdn": Op("head", "delta"),
    "gla": Op("channel", "add"),
    "lightning": Op("head_constant", "add"),
    "simple_gla": Op("head", "add"),
    "retention": Op("head_constant", "add"),
    "delta_rule": Op("none", "delta"),
    "linear_attention": Op("none", "add"),
    "gdn2": Op("channel", "erase_write"),
    "comba": Op("head", "erase_write"),
}


def as_op(op: str | Op) -> Op:
    if isinstance(op, Op):
        return op
    if op not in OPS:
        raise ValueError(f"op is {op!r}; expected an Op or one of {', '.join(OPS)}")
    return OPS[op]


FLOATS = ("bfloat16", "float16", "float32")


def float_dtype(name: str, dtype: Any) -> str:
    dtype = str(dtype).removeprefix("torch.")
    if dtype not in FLOATS:
        raise ValueError(f"{name} is {dtype}; expected bfloat16, float16 or float32")
    return dtype


# ---- a problem's words as one number ------------------------------------------------------------------------------

# What tensors do not show of a problem is one integer of four bits each, as bindings/inputs.h reads it. Places:
GATE, UPDATE, GATE_INPUT, BETA_INPUT, LAYOUT, STATE_DTYPE, NORM, SAVE, INVARIANT = range(0, 36, 4)
CONV_ACTIVATION, NORM_GATE = 36, 40

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
    except (KeyError, TypeError):  # a wrong word, or another spelling of a dtype
        op = as_op(op)
        number(GATE_INPUTS, "gate_input", gate_input)
        number(BETA_INPUTS, "beta_input", beta_input)
        number(STATE_LAYOUTS, "state_layout", state_layout)
        words = (Op(op.gate, op.update), gate_input, beta_input, qk_l2norm, state_layout)
        dtype = None if state_dtype is None else float_dtype("state_dtype", state_dtype)
        return problem_code(*words, dtype, batch_invariant)
    if qk_l2norm:
        code |= 1 << NORM
    if batch_invariant:
        code |= 1 << INVARIANT
    return code


def digit(code: int, place: int) -> int:
    return code >> place & 15
