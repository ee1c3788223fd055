# SPDX-License-Identifier: Apache-2.0
"""DeltaNet: the delta rule without decay (arXiv:2406.06484, equation 2).

S <- S + beta_t k_t (v_t - S^T k_t)^T;  o_t = scale S^T q_t
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _compat as compat

if TYPE_CHECKING:
    from torch import Tensor


def chunk_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """DeltaNet over whole sequences. Differentiable in q, k, v, beta and initial_state.

    Args:
        q, k: [B, T, H, K].  v: [B, T, H, V].  One dtype, bfloat16 or float16 (FLA asserts that it is not float32;
            `fused_recurrent_delta_rule` takes it).
        beta: [B, T, H], write strengths.
        scale: on q; None: K**-0.5.
        initial_state: [N, H, K, V], any float dtype. The final state is float32.
        use_qk_l2norm_in_kernel, cu_seqlens: as `chunk_kda`.  cu_seqlens_cpu: no effect on results.
        chunk_size (keyword): 16, 32 or 64, no effect on results.  head_first raises DeprecationWarning.

    Returns:
        (o [B, T, H, V], final_state or None).

    Raises:
        ValueError, AssertionError, NotImplementedError: where FLA 0.6.0 does, and docs/fla.md's list.
    """
    door = "chunk_delta_rule"
    assert str(q.dtype) != "torch.float32", f"{door}: q is float32; expected bfloat16 or float16"
    if kwargs:
        compat.refuse_head_first(door, kwargs)
        (chunk_size,) = compat.take_keywords(door, kwargs, "chunk_size")
        compat.check_chunk_size(door, chunk_size, (16, 32, 64))
    return compat.run(
        door,
        "delta_rule",
        q,
        k,
        v,
        beta=beta,
        beta_input="value",
        qk_l2norm=use_qk_l2norm_in_kernel,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
        check=_check_chunk,
    )


def _check_chunk(door: str, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, **_: Any) -> None:
    assert q.dtype == k.dtype == v.dtype, (
        f"{door}: q, k, v are {q.dtype}, {k.dtype}, {v.dtype}; expected one dtype"
    )
    assert beta.dim() == 3, f"{door}: beta has shape {list(beta.shape)}; expected [B, T, H]"


def fused_recurrent_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """As `chunk_delta_rule`, with FLA's arguments for a few tokens; float32 too. beta None: 1. scale is positive."""
    door = "fused_recurrent_delta_rule"
    assert scale is None or scale > 0, f"{door}: scale is {scale}; expected a positive number"
    return compat.run(
        door,
        "delta_rule",
        q,
        k,
        v,
        beta=beta,
        beta_input="one" if beta is None else "value",
        qk_l2norm=use_qk_l2norm_in_kernel,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
        check=compat.check_beta,
    )
