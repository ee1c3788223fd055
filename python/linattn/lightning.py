# SPDX-License-Identifier: Apache-2.0
"""Linear attention with a constant decay per head: Lightning Attention (arXiv:2401.04658) and retention
(arXiv:2307.08621, equation 3).

S <- exp(g_h) S + k_t v_t^T;  o_t = scale S^T q_t
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _compat as compat
from .gla import simple_gla

if TYPE_CHECKING:
    from torch import Tensor


def _lightning_decay(q: Tensor, layer_idx: int, num_layers: int) -> Tensor:
    """Log decay of head h: -(8 / H) (1 - layer / layers) h. Head 0 never forgets."""
    import torch

    heads = q.shape[2]
    slope = -(8 / heads) * (1 - layer_idx / num_layers)
    return slope * torch.arange(heads, dtype=torch.float32, device=q.device)


def _retention_decay(q: Tensor) -> Tensor:
    """Log decay of head h: log(1 - 2^(-5 - h))."""
    import torch

    heads = torch.arange(q.shape[2], dtype=torch.float32, device=q.device)
    return torch.log1p(-torch.exp2(-5.0 - heads))


def chunk_lightning_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layer_idx: int,
    num_layers: int,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Lightning Attention over whole sequences: head h decays by exp(-(8 / H) (1 - layer_idx / num_layers) h).

    Args:
        q, k: [B, T, H, K].  v: [B, T, H, V].  scale: on q; None: K**-0.5.
        initial_state: [N, H, K, V], any float dtype. The final state is float32.
        cu_seqlens: as `chunk_kda`.
        chunk_size (keyword): a power of two, no effect on results.  head_first raises DeprecationWarning.

    Returns:
        (o [B, T, H, V], final_state or None). Differentiable in q, k, v and initial_state.

    Raises:
        ValueError, NotImplementedError: where FLA 0.6.0 does, and docs/fla.md's list.
    """
    door = "chunk_lightning_attn"
    if kwargs:
        compat.take_chunk_size(door, kwargs)
    return simple_gla(
        door,
        q,
        k,
        v,
        None,
        _lightning_decay(q, layer_idx, num_layers),
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
    )


def fused_recurrent_lightning_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layer_idx: int,
    num_layers: int,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """As `chunk_lightning_attn`, with FLA's arguments for a few tokens; reverse: from each sequence's last token."""
    door = "fused_recurrent_lightning_attn"
    return simple_gla(
        door,
        q,
        k,
        v,
        None,
        _lightning_decay(q, layer_idx, num_layers),
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
        reverse=reverse,
    )


def chunk_retention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Retention over whole sequences: head h decays by 1 - 2^(-5 - h). Arguments as `chunk_lightning_attn`."""
    door = "chunk_retention"
    if kwargs:
        compat.take_chunk_size(door, kwargs)
    return simple_gla(
        door,
        q,
        k,
        v,
        None,
        _retention_decay(q),
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
    )


def fused_recurrent_retention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """As `chunk_retention`, with FLA's arguments for a few tokens; reverse: from each sequence's last token."""
    door = "fused_recurrent_retention"
    if kwargs:
        state_v_first = compat.value_first(door, state_v_first, kwargs)
        compat.take_keywords(door, kwargs)
    return simple_gla(
        door,
        q,
        k,
        v,
        None,
        _retention_decay(q),
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        state_v_first=state_v_first,
        cu_seqlens=cu_seqlens,
        reverse=reverse,
    )
