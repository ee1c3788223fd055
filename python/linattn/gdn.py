# SPDX-License-Identifier: Apache-2.0
"""Gated DeltaNet: a decay per head and the delta rule (arXiv:2412.06464, equation 10).

S <- exp(g_t) S;  S <- S + beta_t k_t (v_t - S^T k_t)^T;  o_t = scale S^T q_t
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _compat as compat
from .kda import strength

if TYPE_CHECKING:
    from torch import Tensor


def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    chunk_indices: Tensor | None = None,
    cp_context: Any = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Gated DeltaNet over whole sequences. Differentiable in every tensor that counts.

    Args:
        q, k: [B, T, H, K].  v: [B, T, HV, V], HV a multiple of H.  bfloat16, float16 or float32.
        g: [B, T, HV], the natural log of the decay.  beta: [B, T, HV], write strengths.
        scale: on q; None: K**-0.5.
        initial_state: [N, HV, K, V], any float dtype; None: zero. The final state is float32.
        use_qk_l2norm_in_kernel, use_beta_sigmoid_in_kernel, allow_neg_eigval, state_v_first, cu_seqlens: as
            `chunk_kda`.
        use_gate_in_kernel (keyword): g becomes -exp(A_log) softplus(g + dt_bias), A_log and dt_bias [HV].
        cu_seqlens_cpu, chunk_indices: no effect on results.
        chunk_size (16, 32, 64), transpose_state_layout: as keywords; head_first raises DeprecationWarning.

    Returns:
        (o [B, T, HV, V], final_state [N, HV, K, V] or None).

    Raises:
        ValueError, AssertionError, NotImplementedError: where FLA 0.6.0 does, and docs/fla.md's list.
    """
    door = "chunk_gated_delta_rule"
    gate_input, A_log, dt_bias = "log_decay", None, None
    if kwargs:
        state_v_first = compat.value_first(door, state_v_first, kwargs)
        compat.refuse_head_first(door, kwargs)
        use_gate, A_log, dt_bias, chunk_size = compat.take_keywords(
            door, kwargs, "use_gate_in_kernel", "A_log", "dt_bias", "chunk_size"
        )
        compat.check_chunk_size(door, chunk_size, (16, 32, 64))
        if use_gate:
            assert A_log is not None, (
                f"{door}: A_log is None; expected [HV] with use_gate_in_kernel"
            )
            gate_input = "softplus"
        else:
            A_log = dt_bias = None
    if cp_context is not None:
        compat.refuse_context(door, cp_context, initial_state, output_final_state)
    return compat.run(
        door,
        "gdn",
        q,
        k,
        v,
        g,
        gate_input,
        A_log,
        dt_bias,
        beta=beta,
        beta_input=strength(door, use_beta_sigmoid_in_kernel, allow_neg_eigval),
        qk_l2norm=use_qk_l2norm_in_kernel,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        state_v_first=state_v_first,
        cu_seqlens=cu_seqlens,
        check=_check_chunk,
    )


def _check_chunk(door: str, q: Tensor, k: Tensor, v: Tensor, **_: Any) -> None:
    H, HV = q.shape[2], v.shape[2]
    if k.shape[2] != H:
        raise ValueError(f"{door}: k has {k.shape[2]} heads; expected {H} as q")
    if HV % H != 0:
        raise ValueError(f"{door}: v has {HV} heads; expected a multiple of the {H} heads of q")


chunk_gdn = chunk_gated_delta_rule


def fused_recurrent_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    gk: Tensor | None = None,
    gv: Tensor | None = None,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """The delta rule with any of FLA's gates, for a few tokens; as `chunk_gated_delta_rule`. Differentiable here.

    Args:
        g: [B, T, HV], log decay per head (raw with use_gate_in_kernel).  gk: [B, T, HV, K], log decay per key channel.
            Both: their sum. None: no decay.  gv: not implemented.
        beta: [B, T, HV]; None: 1 (with use_beta_sigmoid_in_kernel, as in FLA, a logit of 1).
    """
    door = "fused_recurrent_gated_delta_rule"
    if kwargs:
        state_v_first = compat.value_first(door, state_v_first, kwargs)
        compat.take_keywords(door, kwargs)
    if gv is not None:
        compat.refuse(door, "gv")
    beta_input = strength(door, use_beta_sigmoid_in_kernel, allow_neg_eigval)
    if beta is None:
        if use_beta_sigmoid_in_kernel:
            beta = v.new_ones(v.shape[:3])
        else:
            beta_input = "one"
    op, gate_input = "gdn", "log_decay"
    if use_gate_in_kernel:
        if A_log is None:
            raise ValueError(f"{door}: A_log is None; expected [HV] with use_gate_in_kernel")
        if g is None:
            raise ValueError(
                f"{door}: g is None; expected the raw gate [B, T, HV] with use_gate_in_kernel"
            )
        gate_input = "softplus"
        if gk is not None:
            HV = v.shape[2]
            A_log = compat.parameter(door, "A_log", A_log, (HV,))
            dt_bias = compat.parameter(door, "dt_bias", dt_bias, (HV,))
            g = compat.softplus_gate(g, A_log, dt_bias)
    else:
        A_log = dt_bias = None
    if gk is not None:
        op, gate_input, A_log, dt_bias = "kda", "log_decay", None, None
        g = gk if g is None else gk.float() + g.float()[..., None]
    elif g is None:
        op, gate_input = "delta_rule", None
    return compat.run(
        door,
        op,
        q,
        k,
        v,
        g,
        gate_input,
        A_log,
        dt_bias,
        beta=beta,
        beta_input=beta_input,
        qk_l2norm=use_qk_l2norm_in_kernel,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        state_v_first=state_v_first,
        cu_seqlens=cu_seqlens,
        check=compat.check_beta,
    )


fused_recurrent_gdn = fused_recurrent_gated_delta_rule
