# SPDX-License-Identifier: Apache-2.0
"""Gated DeltaNet-2: a decay per key channel, erase strengths per key channel, write strengths per value channel.

S <- Diag(exp(g_t)) S;  S <- S + k_t (w_t v_t - S^T (b_t k_t))^T;  o_t = scale S^T q_t. With b = w = beta it is KDA.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _compat as compat
from .kda import channel_gate

if TYPE_CHECKING:
    from torch import Tensor


def chunk_gdn2(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    b: Tensor,
    w: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    disable_recompute: bool = False,
    return_intermediate_states: bool = False,
    state_v_first: bool = False,
    cp_context: Any = None,
    **kwargs: Any,
) -> tuple:
    """Gated DeltaNet-2 over whole sequences. Differentiable in every tensor that counts.

    Args:
        q, k, g: [B, T, H, K], K at most 256.  v: [B, T, H, V].  g is the natural log of the decay, or with
            use_gate_in_kernel its raw input (A_log, dt_bias, lower_bound as in `chunk_kda`).
        b: [B, T, H, K], how much of what k reads is erased.  w: [B, T, H, V], how much of v is written.
        initial_state: [N, H, K, V], float32 (bfloat16 and float16 too).
        chunk_size (64), A_log, dt_bias, transpose_state_layout: as keywords.
        The rest: as `chunk_kda`.

    Returns:
        (o [B, T, H, V], final_state or None), or with the states before each chunk as a third item.

    Raises:
        ValueError, AssertionError, NotImplementedError: where FLA 0.6.0 does, and docs/fla.md's list.
    """
    door = "chunk_gdn2"
    A_log = dt_bias = None
    if kwargs:
        state_v_first = compat.value_first(door, state_v_first, kwargs)
        A_log, dt_bias, chunk_size = compat.take_keywords(
            door, kwargs, "A_log", "dt_bias", "chunk_size"
        )
        compat.check_chunk_size(door, chunk_size, (64,))
    if cp_context is not None:
        compat.refuse_context(door, cp_context, initial_state, output_final_state)
    gate_input = "log_decay"
    if use_gate_in_kernel:
        compat.check_safe_gate(door, safe_gate, lower_bound)
        gate = channel_gate(door, g, A_log, dt_bias, lower_bound)
        g, gate_input, A_log, dt_bias, lower_bound = gate
    else:
        A_log = dt_bias = lower_bound = None
    if return_intermediate_states:
        compat.check_intermediate_states(door, disable_recompute)
    compat.check_key_dim(door, q)
    compat.check_heads(door, q, v)
    return compat.run(
        door,
        "gdn2",
        q,
        k,
        v,
        g,
        gate_input,
        A_log,
        dt_bias,
        lower_bound,
        erase=b,
        write=w,
        beta_input="value",
        qk_l2norm=use_qk_l2norm_in_kernel,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        state_v_first=state_v_first,
        cu_seqlens=cu_seqlens,
        cu_seqlens_cpu=cu_seqlens_cpu,
        states_every=64 if return_intermediate_states else None,
        check=_check_chunk,
    )


def _check_chunk(
    door: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    b: Tensor,
    w: Tensor,
    initial_state: Tensor | None,
    **_: Any,
) -> None:
    compat.check_state_dtype(door, initial_state)
    compat.assert_like(door, "q", q, k=k, g=g, b=b)
    compat.assert_like(door, "v", v, w=w)
    compat.assert_shape(door, "v", v, (*q.shape[:3], v.shape[-1]), "[B, T, H, V]")


def fused_recurrent_gdn2(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    b: Tensor,
    w: Tensor,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    lower_bound: float | None = None,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Gated DeltaNet-2 with FLA's arguments for a few tokens; as `chunk_gdn2`, and HV may be a multiple of H.

    g and b are then [B, T, HV, K], w [B, T, HV, V]. initial_state may have any float dtype. Differentiable here.
    """
    door = "fused_recurrent_gdn2"
    if kwargs:
        state_v_first = compat.value_first(door, state_v_first, kwargs)
        compat.take_keywords(door, kwargs)
    gate_input = "log_decay"
    if use_gate_in_kernel:
        gate = channel_gate(door, g, A_log, dt_bias, lower_bound)
        g, gate_input, A_log, dt_bias, lower_bound = gate
    else:
        A_log = dt_bias = lower_bound = None
    return compat.run(
        door,
        "gdn2",
        q,
        k,
        v,
        g,
        gate_input,
        A_log,
        dt_bias,
        lower_bound,
        erase=b,
        write=w,
        beta_input="value",
        qk_l2norm=use_qk_l2norm_in_kernel,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        state_v_first=state_v_first,
        cu_seqlens=cu_seqlens,
        check=_check_recurrent,
    )


def _check_recurrent(door: str, k: Tensor, v: Tensor, b: Tensor, w: Tensor, **_: Any) -> None:
    compat.assert_shape(door, "b", b, (*v.shape[:3], k.shape[-1]), "[B, T, HV, K]")
    compat.assert_like(door, "v", v, w=w)
