# SPDX-License-Identifier: Apache-2.0
"""Gated DeltaNet-2: a decay per key channel, erase strengths per key channel, write strengths per value channel.

S <- Diag(exp(g_t)) S;  S <- S + k_t (w_t v_t - S^T (b_t k_t))^T;  o_t = scale S^T q_t. With b = w = beta it is KDA.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _compat as compat
from .kda import channel_gate, check_gate

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
    state_v_first = compat.value_first(door, state_v_first, kwargs)
    A_log, dt_bias, chunk_size = compat.take_keywords(
        door, kwargs, "A_log", "dt_bias", "chunk_size"
    )
    compat.check_context(door, cp_context, initial_state, output_final_state)
    compat.check_sequences(door, q, initial_state, cu_seqlens)
    compat.check_state_dtype(door, initial_state)
    check_gate(door, use_gate_in_kernel, A_log, lower_bound)
    compat.check_chunk_size(door, chunk_size, (64,))
    compat.check_safe_gate(door, safe_gate and use_gate_in_kernel, lower_bound)
    for name, x in (("k", k), ("g", g), ("b", b)):
        assert x.shape == q.shape, (
            f"{door}: {name} has shape {list(x.shape)}; expected q's, {list(q.shape)}"
        )
    assert k.shape[-1] <= 256, f"{door}: K is {k.shape[-1]}; expected at most 256"
    assert w.shape == v.shape, f"{door}: w has shape {list(w.shape)}; expected v's, {list(v.shape)}"
    compat.assert_shape(door, "v", v, (*q.shape[:3], v.shape[-1]), "[B, T, H, V]")
    compat.check_intermediate_states(door, return_intermediate_states, disable_recompute)
    g, gate = channel_gate(door, g, v.shape[2], use_gate_in_kernel, A_log, dt_bias, lower_bound)
    return compat.run(
        door,
        "gdn2",
        q,
        k,
        v,
        g,
        **gate,
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
    )


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
    state_v_first = compat.value_first(door, state_v_first, kwargs)
    compat.take_keywords(door, kwargs)
    compat.check_sequences(door, q, initial_state, cu_seqlens)
    compat.assert_shape(door, "b", b, (*v.shape[:3], k.shape[-1]), "[B, T, HV, K]")
    assert w.shape == v.shape, f"{door}: w has shape {list(w.shape)}; expected v's, {list(v.shape)}"
    check_gate(door, use_gate_in_kernel, A_log, lower_bound)
    g, gate = channel_gate(door, g, v.shape[2], use_gate_in_kernel, A_log, dt_bias, lower_bound)
    return compat.run(
        door,
        "gdn2",
        q,
        k,
        v,
        g,
        **gate,
        erase=b,
        write=w,
        beta_input="value",
        qk_l2norm=use_qk_l2norm_in_kernel,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        state_v_first=state_v_first,
        cu_seqlens=cu_seqlens,
    )
