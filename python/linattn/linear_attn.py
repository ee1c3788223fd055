# SPDX-License-Identifier: Apache-2.0
"""Linear attention without decay (arXiv:2006.16236, equations 18 to 20).

S <- S + k_t v_t^T;  z <- z + k_t;  o_t = scale S^T q_t, normalised: over scale z^T q_t + 1e-10
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _compat as compat

if TYPE_CHECKING:
    from torch import Tensor


def _normalised(
    door: str,
    o: Tensor,
    q: Tensor,
    k: Tensor,
    z: Tensor | None,
    cu_seqlens: Tensor | None,
    **call: Any,
) -> tuple[Tensor, Tensor]:
    """o over z^T q, and the last z as [N, 1, H, K].

    z^T q is the same recurrence with one value channel that holds 1, so sequences, reversal and gradients come along.
    """
    ones = q.new_ones((*q.shape[:3], 1)).float()
    if z is not None:
        # [N, 1, H, K] -> [N, H, K, 1]
        z = z.transpose(1, 2).transpose(2, 3)
    denominator, z = compat.run(
        door,
        "linear_attention",
        q.float(),
        k.float(),
        ones,
        initial_state=z,
        output_final_state=True,
        cu_seqlens=cu_seqlens,
        **call,
    )
    if o.shape[2] != q.shape[2]:  # groups of value heads
        denominator = denominator.repeat_interleave(o.shape[2] // q.shape[2], 2)
    o = (o.float() / (denominator + 1e-10)).to(o.dtype)
    return o, z.transpose(2, 3).transpose(1, 2).to(k.dtype)


def _linear_attention(
    door: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None,
    initial_state: Any,
    output_final_state: bool,
    normalize: bool,
    cu_seqlens: Tensor | None,
    reverse: bool = False,
) -> tuple:
    z = None
    if normalize and isinstance(initial_state, tuple):
        initial_state, z = initial_state
    if isinstance(initial_state, tuple):
        raise TypeError(f"{door}: initial_state is a tuple; expected a tensor without normalize")
    call = {"scale": scale, "cu_seqlens": cu_seqlens, "reverse": reverse}
    o, final_state = compat.run(
        door,
        "linear_attention",
        q,
        k,
        v,
        initial_state=initial_state,
        output_final_state=output_final_state,
        **call,
    )
    if not normalize:
        return o, final_state
    o, z = _normalised(door, o, q, k, z, **call)
    return o, (final_state, z)


def chunk_linear_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    initial_state: Any = None,
    output_final_state: bool = False,
    normalize: bool = True,
    cu_seqlens: Tensor | None = None,
) -> tuple:
    """Linear attention over whole sequences. Differentiable in q, k, v and the initial states.

    Args:
        q, k: [B, T, H, K].  v: [B, T, H, V].  scale: on q; None: K**-0.5.
        normalize: divide by scale q_t^T (k_1 + ... + k_t) + 1e-10.
        initial_state: [N, H, K, V]; with normalize also a pair of it and the sum of keys, [N, 1, H, K].
        cu_seqlens: as `chunk_kda`.

    Returns:
        (o [B, T, H, V], final_state or None); with normalize (o, (final_state or None, sum of keys [N, 1, H, K] in
        k's dtype)).

    Raises:
        ValueError, NotImplementedError: where FLA 0.6.0 does, and docs/fla.md's list.
    """
    return _linear_attention(
        "chunk_linear_attn",
        q,
        k,
        v,
        scale,
        initial_state,
        output_final_state,
        normalize,
        cu_seqlens,
    )


def fused_recurrent_linear_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    initial_state: Any = None,
    output_final_state: bool = False,
    reverse: bool = False,
    normalize: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple:
    """As `chunk_linear_attn`, with FLA's arguments for a few tokens; reverse: from each sequence's last token."""
    return _linear_attention(
        "fused_recurrent_linear_attn",
        q,
        k,
        v,
        scale,
        initial_state,
        output_final_state,
        normalize,
        cu_seqlens,
        reverse,
    )
