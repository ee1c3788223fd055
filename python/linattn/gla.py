# SPDX-License-Identifier: Apache-2.0
"""Gated Linear Attention (arXiv:2312.06635, equation 3) and its relative with one decay per head.

GLA:         S <- Diag(exp(g_t)) S + k_t v_t^T;  o_t = scale S^T q_t
simple GLA:  S <- exp(g_t) S + k_t v_t^T  (Mamba-2's recurrence, arXiv:2405.21060)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _compat as compat

if TYPE_CHECKING:
    from torch import Tensor


def chunk_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """GLA over whole sequences. Differentiable in q, k, v, g and initial_state.

    Args:
        q, k, g: [B, T, H, K], g the natural log of the decay per channel.  v: [B, T, H, V].
        scale: on q; None: K**-0.5.
        initial_state: [N, H, K, V], float32 (bfloat16 and float16 too). The final state is float32.
        state_v_first, cu_seqlens: as `chunk_kda`.  cu_seqlens_cpu: no effect on results.

    Returns:
        (o [B, T, H, V], final_state [N, H, K, V] or None).

    Raises:
        ValueError, AssertionError, NotImplementedError: where FLA 0.6.0 does, and docs/fla.md's list.
    """
    door = "chunk_gla"
    compat.check_heads(door, q, v)
    return compat.run(
        door,
        "gla",
        q,
        k,
        v,
        g,
        gate_input="log_decay",
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        state_v_first=state_v_first,
        cu_seqlens=cu_seqlens,
        check=_check_chunk,
    )


def _check_chunk(
    door: str, q: Tensor, k: Tensor, v: Tensor, g: Tensor, initial_state: Tensor | None, **_: Any
) -> None:
    compat.check_state_dtype(door, initial_state)
    compat.assert_like(door, "q", q, k=k, g=g)
    compat.assert_shape(door, "v", v, (*q.shape[:3], v.shape[-1]), "[B, T, H, V]")


def fused_recurrent_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gk: Tensor | None = None,
    gv: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """GLA with FLA's arguments for a few tokens; as `chunk_gla`.

    gk: [B, T, H, K], None: no decay.  gv: not implemented.  reverse: each sequence from its last token to its first.
    """
    door = "fused_recurrent_gla"
    if kwargs:
        state_v_first = compat.value_first(door, state_v_first, kwargs)
        compat.take_keywords(door, kwargs)
    if gv is not None:
        compat.refuse(door, "gv")
    return compat.run(
        door,
        "linear_attention" if gk is None else "gla",
        q,
        k,
        v,
        gk,
        gate_input=None if gk is None else "log_decay",
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        state_v_first=state_v_first,
        cu_seqlens=cu_seqlens,
        reverse=reverse,
    )


def simple_gla(
    door: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    g_gamma: Tensor | None,
    **call: Any,
) -> tuple[Tensor, Tensor | None]:
    """Additive update with decays per head: per token, constant, both (their product) or none."""
    op, decay = "linear_attention", None
    if g is not None:
        op, decay = "simple_gla", g if g_gamma is None else g.float() + g_gamma.float()
    elif g_gamma is not None:
        op, decay = "lightning", g_gamma
    return compat.run(
        door, op, q, k, v, decay, gate_input=None if decay is None else "log_decay", **call
    )


def chunk_simple_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    g_gamma: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Linear attention with one decay per head, over whole sequences. Differentiable in every tensor.

    Args:
        q, k: [B, T, H, K].  v: [B, T, H, V].
        g: [B, T, H], the natural log of the decay per token.  g_gamma: [H], a constant one. Both: their sum.
        scale: on q; None: K**-0.5.
        initial_state: [N, H, K, V], any float dtype. The final state is float32.
        state_v_first, cu_seqlens: as `chunk_kda`.  cu_seqlens_cpu: no effect on results.
        chunk_size (keyword): a power of two, no effect on results.  head_first raises DeprecationWarning.

    Returns:
        (o [B, T, H, V], final_state or None).

    Raises:
        ValueError, NotImplementedError: where FLA 0.6.0 does, and docs/fla.md's list.
    """
    door = "chunk_simple_gla"
    if kwargs:
        compat.take_chunk_size(door, kwargs)
    return simple_gla(
        door,
        q,
        k,
        v,
        g,
        g_gamma,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        state_v_first=state_v_first,
        cu_seqlens=cu_seqlens,
    )


def fused_recurrent_simple_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    g_gamma: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """As `chunk_simple_gla`, with FLA's arguments for a few tokens; reverse: from each sequence's last token."""
    door = "fused_recurrent_simple_gla"
    if kwargs:
        state_v_first = compat.value_first(door, state_v_first, kwargs)
        compat.take_keywords(door, kwargs)
    return simple_gla(
        door,
        q,
        k,
        v,
        g,
        g_gamma,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        state_v_first=state_v_first,
        cu_seqlens=cu_seqlens,
        reverse=reverse,
    )
