# SPDX-License-Identifier: Apache-2.0
"""What a fused step has around its recurrence: `step(..., conv=Conv(...), norm=Norm(...))`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ._frameworks import Array
from .op import ACTIVATIONS, CONV_ACTIVATION, NORM_GATE, number

Parts = Array | tuple[Array, Array, Array]  # of q, k and v: together, or each


@dataclass(frozen=True, eq=False)
class Conv:
    """A causal depthwise convolution of q, k and v before the recurrence; what it gives stays float32.

    weight: [channels, width], 2 to 4 taps, the last for the token itself: one tensor whose channels are those of q
        (H K), k (H K) and v (HV V), or a tuple of three. bias: [channels], likewise.
    state: [slots, channels, entries], likewise: in a sequence's row the inputs before its first token, oldest first,
        read and written in place. Any strides: of a pool [slots, entries, channels] its `transpose(1, 2)`. None:
        zeros, and nothing is kept.
    activation: "silu" or "identity".
    read_slots, write_slots: int32 [N], the rows; as the slots of the states.
    accepted: int32 [N], for drafts: a sequence reads its row from entry accepted[n] - 1, and leaves there what follows
        on each of its tokens, from entry t after token t; rows have width - 2 + tokens entries or more.
    """

    weight: Parts
    state: Parts | None = None
    bias: Parts | None = None
    activation: str = "silu"
    read_slots: Array | None = None
    write_slots: Array | None = None
    accepted: Array | None = None

    def _arrays(self) -> tuple:
        slots = (self.read_slots, self.write_slots, self.accepted)
        return (*_parts(self.weight), *_parts(self.bias), *_parts(self.state), *slots)


@dataclass(frozen=True, eq=False)
class Norm:
    """An RMSNorm of the output over V: weight o / sqrt(mean o^2 + epsilon), times gate(z).

    weight: [V]; None: 1.  gate: "silu" or "sigmoid" with z, "identity" without.
    z: [B, T, HV, V] in the dtype of q, of any strides with a dense last axis.
    """

    weight: Array | None = None
    z: Array | None = None
    gate: str = "silu"
    epsilon: float = 1e-6


_NO_CONV, _NO_NORM = (None,) * 12, (None,) * 2
NOTHING = (*_NO_CONV, *_NO_NORM)


def fuse(conv: Conv | None, norm: Norm | None) -> tuple[int, tuple, float]:
    """A problem's words, the binding's arrays and the norm's epsilon."""
    code, arrays, epsilon = 0, NOTHING, 0.0
    if conv is not None:
        code |= number(ACTIVATIONS, "conv.activation", conv.activation) << CONV_ACTIVATION
        arrays = (*conv._arrays(), *_NO_NORM)
    if norm is not None:
        code |= number(ACTIVATIONS, "norm.gate", norm.gate) << NORM_GATE
        arrays, epsilon = (*arrays[: len(_NO_CONV)], norm.z, norm.weight), float(norm.epsilon)
    return code, arrays, epsilon


def _parts(x: Any) -> tuple:
    return tuple(x) if isinstance(x, (tuple, list)) else (x, None, None)
