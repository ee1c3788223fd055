# SPDX-License-Identifier: Apache-2.0
"""Kimi Delta Attention: a decay per key channel and the delta rule (arXiv:2510.26692, equation 1).

S <- Diag(exp(g_t)) S;  S <- S + beta_t k_t (v_t - S^T k_t)^T;  o_t = scale S^T q_t
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _compat as compat

if TYPE_CHECKING:
    from torch import Tensor


def channel_gate(
    door: str,
    g: Tensor,
    A_log: Tensor | None,
    dt_bias: Tensor | None,
    lower_bound: float | None,
) -> tuple:
    """g, gate_input, A_log, dt_bias and lower_bound of the native call, with use_gate_in_kernel."""
    if lower_bound is None:
        if A_log is None:
            raise ValueError(
                f"{door}: A_log is None; expected [HV] with use_gate_in_kernel, unless lower_bound is given"
            )
        return g, "softplus", A_log, dt_bias, None
    if lower_bound < 0:
        return g, "bounded", A_log, dt_bias, lower_bound
    # FLA computes it; such a gate does not forget.
    HV = g.shape[2]
    A_log = compat.parameter(door, "A_log", A_log, (HV,))
    dt_bias = compat.parameter(door, "dt_bias", dt_bias, (HV, g.shape[3]))
    return compat.bounded_gate(g, A_log, dt_bias, lower_bound), "log_decay", None, None, None


def strength(door: str, use_beta_sigmoid_in_kernel: bool, allow_neg_eigval: bool) -> str:
    if use_beta_sigmoid_in_kernel:
        return "twice_logit" if allow_neg_eigval else "logit"
    if allow_neg_eigval:
        raise ValueError(
            f"{door}: allow_neg_eigval is True; expected use_beta_sigmoid_in_kernel with it"
        )
    return "value"


def chunk_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    disable_recompute: bool = False,
    return_intermediate_states: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    cp_context: Any = None,
    use_graph: bool = False,
    max_num_seqs: int | None = None,
    **kwargs: Any,
) -> tuple:
    """KDA over whole sequences. Differentiable in q, k, v, g, beta, A_log, dt_bias and initial_state.

    Args:
        q, k: [B, T, H, K], bfloat16, float16 or float32; K at most 256.
        v: [B, T, HV, V], HV a multiple of H; value head i uses query head i // (HV / H).
        g: [B, T, HV, K], the natural log of the decay; with use_gate_in_kernel its raw input.
        beta: [B, T, HV], write strengths; with use_beta_sigmoid_in_kernel logits.
        scale: on q; None: K**-0.5.
        initial_state: [N, HV, K, V] float32 (bfloat16 and float16 too); None: zero.
        output_final_state: return the float32 [N, HV, K, V] state after the last token.
        use_qk_l2norm_in_kernel: q and k over sqrt(sum of squares + 1e-6), before the scale.
        use_gate_in_kernel: g becomes -exp(A_log) softplus(g + dt_bias), or with lower_bound
            lower_bound sigmoid(exp(A_log) (g + dt_bias)); A_log [HV] (None with a bound: rate 1), dt_bias [HV * K].
        allow_neg_eigval: twice the sigmoid.
        safe_gate: a promise about g that no kernel here needs; its bound is checked, [-5, 0).
        return_intermediate_states: a third result [B, chunks, HV, K, V] in k's dtype, the state before each chunk;
            in torch.inference_mode() only.
        state_v_first: states are [N, HV, V, K].
        cu_seqlens: int32 or int64 [N + 1], with B = 1; rows past its last entry are zero.
        disable_recompute, cu_seqlens_cpu, use_graph, max_num_seqs: no effect on results; calls are always graph-safe.
        A_log, dt_bias, chunk_size (32, 64), transpose_state_layout: as keywords.

    Returns:
        (o [B, T, HV, V], final_state or None), or with the states as a third item.

    Raises:
        ValueError, AssertionError, NotImplementedError: where FLA 0.6.0 does, and docs/fla.md's list.
    """
    door = "chunk_kda"
    A_log = dt_bias = chunk_size = states_every = None
    if kwargs:
        state_v_first = compat.value_first(door, state_v_first, kwargs)
        A_log, dt_bias, chunk_size = compat.take_keywords(
            door, kwargs, "A_log", "dt_bias", "chunk_size"
        )
        compat.check_chunk_size(door, chunk_size, (32, 64))
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
        states_every = 64 if chunk_size is None else chunk_size
    compat.check_key_dim(door, q)
    if use_graph and cu_seqlens is not None and max_num_seqs is not None:
        assert len(cu_seqlens) - 1 == max_num_seqs, (
            f"{door}: cu_seqlens holds {len(cu_seqlens) - 1} sequences; expected max_num_seqs = {max_num_seqs}"
        )
    return compat.run(
        door,
        "kda",
        q,
        k,
        v,
        g,
        gate_input,
        A_log,
        dt_bias,
        lower_bound,
        beta=beta,
        beta_input=strength(door, use_beta_sigmoid_in_kernel, allow_neg_eigval),
        qk_l2norm=use_qk_l2norm_in_kernel,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        state_v_first=state_v_first,
        cu_seqlens=cu_seqlens,
        cu_seqlens_cpu=cu_seqlens_cpu,
        states_every=states_every,
        check=_check_chunk,
    )


def _check_chunk(
    door: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None,
    **_: Any,
) -> None:
    compat.check_state_dtype(door, initial_state)
    B, T, H, K = q.shape
    HV = v.shape[2]
    assert q.shape == k.shape, f"{door}: k has shape {list(k.shape)}; expected q's, {list(q.shape)}"
    assert HV % H == 0, f"{door}: v has {HV} heads; expected a multiple of the {H} heads of q"
    compat.assert_shape(door, "g", g, (B, T, HV, K), "[B, T, HV, K]")
    compat.assert_shape(door, "beta", beta, (B, T, HV), "[B, T, HV]")


def fused_recurrent_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    lower_bound: float | None = None,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """KDA with FLA's arguments for a few tokens; shapes, dtypes and results as `chunk_kda`. Differentiable here.

    initial_state may have any float dtype. For a pool of states in place see `fused_recurrent_kda_fwd`.
    """
    door = "fused_recurrent_kda"
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
        "kda",
        q,
        k,
        v,
        g,
        gate_input,
        A_log,
        dt_bias,
        lower_bound,
        beta=beta,
        beta_input=strength(door, use_beta_sigmoid_in_kernel, allow_neg_eigval),
        qk_l2norm=use_qk_l2norm_in_kernel,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        state_v_first=state_v_first,
        cu_seqlens=cu_seqlens,
        check=compat.check_beta,
    )
