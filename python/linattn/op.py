# SPDX-License-Identifier: Apache-2.0
"""Ops, and the words of the native doors with their numbers in include/linattn/c.h."""

from __future__ import annotations

from dataclasses import dataclass

GATES = {"none": 1, "head_constant": 2, "head": 3, "channel": 4}
UPDATES = {"add": 1, "delta": 2, "erase_write": 3}
GATE_INPUTS = {"log_decay": 1, "decay": 2, "softplus": 3, "bounded": 4}
BETA_INPUTS = {"one": 1, "value": 2, "logit": 3, "twice_logit": 4}
STATE_LAYOUTS = {"key_value": 1, "value_key": 2}
DTYPES = {"bfloat16": 1, "float16": 2, "float32": 3, "int32": 4, "int64": 5}
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
}


def as_op(op: str | Op) -> Op:
    if isinstance(op, Op):
        return op
    if op not in OPS:
        raise ValueError(f"op is {op!r}; expected an Op or one of {', '.join(OPS)}")
    return OPS[op]
