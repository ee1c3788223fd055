# SPDX-License-Identifier: Apache-2.0
"""Gated DeltaProduct (arXiv:2502.10297): several writes by the delta rule between two decays and two reads.

S <- exp(g_t) S;  n times: S <- S + beta_tj k_tj (v_tj - S^T k_tj)^T;  o_t = scale S^T q_t. It is the gated delta rule
over n tokens for each one: the first of them decays, the last one is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _compat as compat

if TYPE_CHECKING:
    from torch import Tensor


def chunk_gated_delta_product(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    num_householder: int,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    cp_context: Any = None,
) -> tuple[Tensor, Tensor | None]:
    """Gated DeltaProduct over whole sequences. Differentiable in every tensor.

    Args:
        q: [B, T, H, K].  k: [B, n T, H, K].  v: [B, n T, H, V].  beta: [B, n T, H], n being num_householder: token t
            writes with rows n t to n t + n - 1.  bfloat16 or float16 (FLA asserts that q is not float32).
        g: [B, T, H], the natural log of the decay; None: no decay.
        scale, initial_state, use_qk_l2norm_in_kernel, cu_seqlens: as `chunk_gated_delta_rule`; cu_seqlens counts the
            tokens of q.  cu_seqlens_cpu: no effect on results.

    Returns:
        (o [B, T, H, V], final_state [N, H, K, V] or None).

    Raises:
        ValueError, AssertionError, NotImplementedError: where FLA 0.6.0 does, and docs/fla.md's list.
    """
    door = "chunk_gated_delta_product"
    assert str(q.dtype) != "torch.float32", f"{door}: q is float32; expected bfloat16 or float16"
    B, T, H, K = q.shape
    n = num_householder
    compat.assert_shape(door, "k", k, (B, T * n, H, K), "[B, n T, H, K]")
    compat.assert_shape(door, "v", v, (B, T * n, H, v.shape[-1]), "[B, n T, H, V]")
    compat.assert_shape(door, "beta", beta, (B, T * n, H), "[B, n T, H]")
    if g is not None:
        compat.assert_shape(door, "g", g, (B, T, H), "[B, T, H]")
    if cp_context is not None:
        assert g is not None, f"{door}: g is None; expected a decay with cp_context"
        compat.refuse_context(door, cp_context, initial_state, output_final_state)
    compat.check_sequences(door, q, initial_state, cu_seqlens)
    o, final_state = compat.run(
        door,
        "delta_rule" if g is None else "gdn",
        _among(q, n, n - 1),
        k,
        v,
        None if g is None else _among(g, n, 0),
        None if g is None else "log_decay",
        beta=beta,
        beta_input="value",
        qk_l2norm=use_qk_l2norm_in_kernel,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=None if cu_seqlens is None else cu_seqlens * n,
    )
    return o.unflatten(1, (T, n))[:, :, n - 1].contiguous(), final_state


def _among(x: Tensor, n: int, place: int) -> Tensor:
    """Each token of x as the `place`-th of n, the others zero."""
    import torch

    zero = torch.zeros_like(x)
    return torch.stack([x if i == place else zero for i in range(n)], 2).flatten(1, 2)
