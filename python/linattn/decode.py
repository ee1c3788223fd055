# SPDX-License-Identifier: Apache-2.0
"""cuLA's doors for decode: gates and sigmoids in the kernel, states in place in a pool, over `linattn.step`.

The rules of serving.py hold: ids on the device, no wait, views, nothing differentiable, PyTorch only. Unlike cuLA, any
head dim, any dtype of the library, and any count of sequences without a new compilation.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from . import _compat as compat
from ._frameworks import dtype_name
from .kda import channel_gate
from .serving import expect_shape, int32, own_rows, pool_words, read_only, step

if TYPE_CHECKING:
    from torch import Tensor

_CULA_WORDS = pool_words("initial_state_source", "initial_state_indices") | {"g": "a", "beta": "b"}
_LAYOUTS = {"vk": "value_key", "kv": "key_value"}


def _split(
    door: str, name: str, x: Tensor, rows: tuple[int, int], heads: tuple[int, ...]
) -> Tensor:
    """x as [B, T, *heads], a view of any of its shapes: tokens as one axis or two, heads as one axis or apart."""
    shape = tuple(x.shape)
    if shape == (*rows, *heads):
        return x
    tokens, width = rows[0] * rows[1], math.prod(heads)
    flat = shape in ((tokens, *heads), (tokens, width))
    if not flat and shape not in ((*rows, *heads), (*rows, width)):
        allowed = ((*rows, *heads), (*rows, width), (tokens, *heads), (tokens, width))
        expect_shape(door, name, x, *dict.fromkeys(allowed), axes="tokens and value heads")
    if x.shape[-len(heads) :] != heads:
        x = x.unflatten(-1, heads)
    return x.unflatten(0, rows) if flat else x


def _slots(
    door: str,
    words: dict[str, str],
    v: Tensor,
    matrix: tuple[int, int],
    source: Tensor | None,
    indices: Tensor | None,
    sequences: int,
) -> tuple[Tensor, Tensor | None]:
    """The pool and the ids of a step; no ids: a pool of as many slots as sequences."""
    import torch

    pool_name, ids_name = words["initial_state"], words["read_slots"]
    ids = int32(door, ids_name, indices)
    if ids is not None:
        expect_shape(door, ids_name, ids, (sequences,), axes="[N]")
    if source is None:
        zeros = v.new_zeros((sequences, v.shape[-2], *matrix), dtype=torch.float32)
        return zeros, ids if ids is None else own_rows(ids, sequences)
    if source.dim() != 4 or tuple(source.shape[1:]) != (v.shape[-2], *matrix):
        expected = ["slots", v.shape[-2], *matrix]
        raise ValueError(
            f"{door}: {pool_name} has shape {list(source.shape)}; expected [{', '.join(map(str, expected))}]"
        )
    if ids is not None:
        return source, ids
    if source.shape[0] < sequences:
        raise ValueError(
            f"{door}: {pool_name} has {source.shape[0]} slots; expected at least {sequences}, since {ids_name} is None"
        )
    return source[:sequences], None


def _sharpened(
    door: str, g: Tensor, A_log: Tensor, dt_bias: Tensor | None, softplus_beta: float
) -> tuple[Tensor, Tensor, Tensor | None]:
    """exp(A) softplus(beta x) / beta is the library's gate of other inputs: beta g, beta dt_bias and A - log(beta)."""
    if softplus_beta == 1:
        return g, A_log, dt_bias
    if not (softplus_beta > 0 and math.isfinite(softplus_beta)):
        raise ValueError(f"{door}: softplus_beta is {softplus_beta}; expected a positive number")
    bias = None if dt_bias is None else dt_bias * softplus_beta
    return g.float() * softplus_beta, A_log - math.log(softplus_beta), bias


def _decode(
    door: str,
    words: dict[str, str],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    A_log: Tensor | None,
    dt_bias: Tensor | None,
    source: Tensor | None,
    indices: Tensor | None,
    *,
    cu_seqlens: Tensor | None = None,
    scale: float | None = None,
    l2norm: bool = True,
    softplus_beta: float = 1.0,
    lower_bound: float | None = None,
    out: Tensor | None = None,
    state_layout: str = "vk",
    is_kda: bool = True,
    one_token: bool = True,
    disable_state_update: bool = False,
    every_state: Tensor | None = None,
) -> Tensor:
    """KDA or GDN with cuLA's arguments. one_token: [N, 1, ...] or, without cu_seqlens, [1, N, ...]."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 4:
            raise ValueError(f"{door}: {name} has shape {list(x.shape)}; expected 4 axes")
    if state_layout not in _LAYOUTS:
        raise ValueError(f"{door}: state_layout is {state_layout!r}; expected 'vk' or 'kv'")
    (B, T, _, K), (HV, V) = q.shape, v.shape[2:]
    flip = one_token and cu_seqlens is None and T != 1
    if flip and B != 1:
        raise ValueError(
            f"{door}: q has shape {list(q.shape)}; expected one token per sequence, [N, 1, H, K] or [1, N, H, K]"
        )
    if out is not None:
        expect_shape(door, "out", out, tuple(v.shape), axes="v's shape")
    heads = (HV, K) if is_kda else (HV,)
    g, beta = _split(door, "a", a, (B, T), heads), _split(door, "b", b, (B, T), (HV,))
    dt_bias = compat.parameter(door, "dt_bias", dt_bias, heads)
    A_log = compat.parameter(door, "A_log", A_log, (HV,))
    gate_input = "softplus"
    if lower_bound is not None:
        g, gate_input, A_log, dt_bias, lower_bound = channel_gate(
            door, g, A_log, dt_bias, lower_bound
        )
    elif A_log is None:
        raise ValueError(f"{door}: A_log is None; expected [HV]")
    else:
        g, A_log, dt_bias = _sharpened(door, g, A_log, dt_bias, softplus_beta)
    if flip:  # tokens as sequences
        q, k, v, g, beta = (x.transpose(0, 1) for x in (q, k, v, g, beta))
        out = None if out is None else out.transpose(0, 1)
    sequences = q.shape[0] if cu_seqlens is None else len(cu_seqlens) - 1
    matrix = (V, K) if state_layout == "vk" else (K, V)
    pool, ids = _slots(door, words, v, matrix, source, indices, sequences)
    layout = _LAYOUTS[state_layout]
    if every_state is not None:
        if not disable_state_update:
            _check_written_once(door, words, pool, ids)
        each, states = _every_state(door, every_state, pool, ids, q.shape[:2], (HV, *matrix))
        given = {
            "initial_state": pool,
            "read_slots": ids,
            "final_state": states,
            "write_slots": each,
        }
    elif not disable_state_update:
        given = {"pool": pool, "read_slots": ids, "write_slots": ids}
    else:
        given = {"initial_state": pool} if ids is None else read_only(pool, ids)
    o, _ = step(
        door,
        words,
        op="kda" if is_kda else "gdn",
        q=q,
        k=k,
        v=v,
        g=g,
        beta=beta,
        A_log=A_log,
        dt_bias=dt_bias,
        gate_input=gate_input,
        beta_input="logit",
        lower_bound=lower_bound,
        scale=scale,
        qk_l2norm=l2norm,
        state_layout=layout,
        cu_seqlens=cu_seqlens,
        out=out,
        **given,
    )
    if every_state is not None and not disable_state_update:
        # A call without tokens copies states: the last ones into the pool, by its ids.
        step(
            door,
            words,
            op="linear_attention",
            q=q[:, :0],
            k=k[:, :0],
            v=v[:, :0],
            state_layout=layout,
            initial_state=states,
            read_slots=each[:, -1].contiguous(),
            final_state=pool,
            write_slots=ids,
        )
    return o.transpose(0, 1) if flip else o


def _check_written_once(door: str, words: dict[str, str], pool: Tensor, ids: Tensor | None) -> None:
    """Before the first of two calls; ids on the CPU, where they can be seen."""
    extent = (pool.shape[1] - 1) * pool.stride(1) + pool.shape[2] * pool.shape[3]
    if pool.shape[0] > 1 and pool.stride(0) < extent:
        raise ValueError(
            f"{door}: {words['final_state']} has stride {pool.stride(0)} on its first axis; expected at least "
            f"{extent}, since slots are written and must not overlap"
        )
    if ids is None or ids.device.type != "cpu":
        return
    kept = ids[ids >= 0]
    if len(kept.unique()) != len(kept):
        raise ValueError(
            f"{door}: {words['write_slots']} is {ids.tolist()}; expected each slot once"
        )


def _every_state(
    door: str, buffer: Tensor, pool: Tensor, ids: Tensor | None, rows: Any, state: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """A buffer [N, T, *state] as a pool of N T slots, and the slot of each token's state."""
    import torch

    name = "intermediate_states_buffer"
    N, T = rows
    expect_shape(door, name, buffer, (N, T, *state), axes="[N, T, *state]")
    if buffer.dtype != pool.dtype:
        raise ValueError(
            f"{door}: {name} is {dtype_name(buffer)}; expected {dtype_name(pool)}, the dtype of the states"
        )
    if T == 0:
        raise ValueError(f"{door}: q holds no tokens; expected at least one with {name}")
    if N > 1 and T > 1 and buffer.stride(0) != T * buffer.stride(1):
        raise ValueError(
            f"{door}: {name} has stride {buffer.stride(0)} on its first axis; expected {T * buffer.stride(1)}, "
            "the tokens one after another"
        )
    each = torch.arange(N * T, dtype=torch.int32, device=buffer.device).view(N, T)
    if ids is not None:
        each = torch.where(ids[:, None] < 0, -1, each)
    return each, buffer.view(N * T, *state)


def kda_decode(
    A_log: Tensor,
    dt_bias: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    initial_state_source: Tensor | None,
    initial_state_indices: Tensor | None,
    cu_seqlens: Tensor | None = None,
    scale: float | None = None,
    use_qk_l2norm_in_kernel: bool = True,
    softplus_beta: float = 1.0,
    softplus_threshold: float = 20.0,
    out: Tensor | None = None,
    state_layout: str = "vk",
) -> Tensor:
    """KDA, one token per sequence on a pool of states, the gate and the sigmoid in the kernel: cuLA's kda_decode.

    Args:
        A_log: HV elements.  dt_bias: HV * K elements, None: 0. Any shape and float dtype.
        q, k: [N, 1, H, K], or packed [1, N, H, K].  v: [N, 1, HV, V] or [1, N, HV, V], HV a multiple of H.
        a: raw gate, with tokens as q has them or as one axis [N], and heads as [HV, K] or [HV * K]; the log decay is
            -exp(A_log) softplus(a + dt_bias).
        b: logits of the write strengths, [N, 1, HV], [1, N, HV] or [N, HV].
        initial_state_source: the pool, [slots, HV, V, K], or with state_layout "kv" [slots, HV, K, V]; float32 (or
            bfloat16, float16); written in place. None: every sequence starts from zero and its state is not kept.
        initial_state_indices: int32 or int64 [N], the slots; negative ids are pads: nothing is read or written, rows
            are zero. None: sequence n has slot n.
        cu_seqlens: int32 or int64 [N + 1] with the packed form, and then sequences of any length. None: one token each.
        scale: on q; None: K**-0.5.
        softplus_beta: the gate has softplus(beta x) / beta.
        softplus_threshold: no effect: the softplus is exact at every x.
        out: v's shape, q's dtype; None: a new tensor.

    Returns:
        o in v's shape.

    Raises:
        ValueError: a sentence that names the argument, what came, what was expected.
    """
    return _decode(
        "kda_decode",
        _CULA_WORDS,
        q,
        k,
        v,
        a,
        b,
        A_log,
        dt_bias,
        initial_state_source,
        initial_state_indices,
        cu_seqlens=cu_seqlens,
        scale=scale,
        l2norm=use_qk_l2norm_in_kernel,
        softplus_beta=softplus_beta,
        out=out,
        state_layout=state_layout,
    )


def fused_sigmoid_gating_delta_rule_update(
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor | None,
    softplus_beta: float,
    softplus_threshold: float,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    b: Tensor,
    initial_state_source: Tensor | None,
    initial_state_indices: Tensor | None,
    scale: float | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    is_kda: bool = False,
    out: Tensor | None = None,
    state_layout: str = "vk",
) -> Tensor:
    """`kda_decode` in SGLang's order of arguments, for KDA and, with is_kda=False (the default), Gated DeltaNet.

    Args:
        a: with is_kda as `kda_decode`; else per head, [N, 1, HV], [1, N, HV] or [N, HV].
        dt_bias: with is_kda HV * K elements; else HV.
        The rest as `kda_decode`; note the default of use_qk_l2norm_in_kernel.
    """
    return _decode(
        "fused_sigmoid_gating_delta_rule_update",
        _CULA_WORDS,
        q,
        k,
        v,
        a,
        b,
        A_log,
        dt_bias,
        initial_state_source,
        initial_state_indices,
        cu_seqlens=cu_seqlens,
        scale=scale,
        l2norm=use_qk_l2norm_in_kernel,
        softplus_beta=softplus_beta,
        out=out,
        state_layout=state_layout,
        is_kda=is_kda,
    )


def kda_packed_decode(
    mixed_qkv: Tensor,
    a: Tensor,
    b: Tensor,
    *,
    A_log: Tensor,
    dt_bias: Tensor | None,
    state: Tensor,
    state_indices: Tensor | None,
    out: Tensor | None = None,
    scale: float | None,
    use_qk_l2norm_in_kernel: bool = True,
) -> Tensor:
    """`kda_decode` of one packed projection per sequence.

    Args:
        mixed_qkv: [N, 2 H K + HV V], rows with any stride: the H query heads, the H key heads, the HV value heads.
        a, b, A_log, dt_bias, scale, use_qk_l2norm_in_kernel: as `kda_decode`, N sequences of one token.
        state: the pool, [slots, HV, V, K], which gives HV, V and K.  state_indices: as initial_state_indices.
        out: [N, 1, HV, V]; None: a new tensor.

    Returns:
        o [N, 1, HV, V].
    """
    door = "kda_packed_decode"
    if mixed_qkv.dim() != 2:
        raise ValueError(
            f"{door}: mixed_qkv has shape {list(mixed_qkv.shape)}; expected [N, 2 H K + HV V]"
        )
    if state is None or state.dim() != 4:
        got = "None" if state is None else f"of shape {list(state.shape)}"
        raise ValueError(f"{door}: state is {got}; expected a pool [slots, HV, V, K]")
    _, HV, V, K = state.shape
    if K == 0:
        raise ValueError(f"{door}: state has shape {list(state.shape)}; expected K of at least 1")
    width = mixed_qkv.shape[1]
    H, left = divmod(width - HV * V, 2 * K)
    if left or H < 1:
        raise ValueError(
            f"{door}: mixed_qkv has rows of {width}; expected 2 H K + HV V with HV = {HV}, V = {V}, K = {K} of state"
        )
    parts = mixed_qkv[:, None].split([H * K, H * K, HV * V], -1)
    heads = ((H, K), (H, K), (HV, V))
    q, k, v = (x.unflatten(-1, shape) for x, shape in zip(parts, heads))
    words = pool_words("state", "state_indices") | {"g": "a", "beta": "b"}
    words |= dict.fromkeys("qkv", "mixed_qkv")
    return _decode(
        door,
        words,
        q,
        k,
        v,
        a,
        b,
        A_log,
        dt_bias,
        state,
        state_indices,
        scale=scale,
        l2norm=use_qk_l2norm_in_kernel,
        out=out,
    )


def kda_decode_mtp(
    A_log: Tensor | None,
    dt_bias: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    initial_state_source: Tensor | None,
    initial_state_indices: Tensor | None,
    scale: float | None = None,
    use_qk_l2norm_in_kernel: bool = True,
    softplus_beta: float = 1.0,
    softplus_threshold: float = 20.0,
    out: Tensor | None = None,
    state_layout: str = "vk",
    disable_state_update: bool = False,
    intermediate_states_buffer: Tensor | None = None,
    lower_bound: float | None = None,
) -> Tensor:
    """KDA over T tokens per sequence, for the verification of drafts; arguments as `kda_decode`, and

        q, k: [N, T, H, K].  v: [N, T, HV, V].  a: [N, T, HV, K], or heads or tokens as one axis.  b: [N, T, HV].
        disable_state_update: the pool is read and stays as it is.
        intermediate_states_buffer: [N, T, HV, V, K] (state_layout "kv": [N, T, HV, K, V]) in the pool's dtype, receives
            the state after each token; pads leave their rows as they are. With a state update the last states are then
            copied to the pool by a second, small call.
        lower_bound: the log decay is lower_bound sigmoid(exp(A_log) (a + dt_bias)); A_log None: rate 1.

    Returns:
        o [N, T, HV, V].
    """
    return _decode(
        "kda_decode_mtp",
        _CULA_WORDS,
        q,
        k,
        v,
        a,
        b,
        A_log,
        dt_bias,
        initial_state_source,
        initial_state_indices,
        scale=scale,
        l2norm=use_qk_l2norm_in_kernel,
        softplus_beta=softplus_beta,
        lower_bound=lower_bound,
        out=out,
        state_layout=state_layout,
        one_token=False,
        disable_state_update=disable_state_update,
        every_state=intermediate_states_buffer,
    )


def linear_attention_decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    s: Tensor,
    out: Tensor,
    softmax_scale: float | None,
    stride_q: int | None,
    stride_k: int | None,
    stride_v: int | None,
    stride_s: int | None,
    stride_o: int | None,
    s_offsets: Tensor | None,
    decay_scales: Tensor,
    HEAD_DIM: int | None,
    K_SPLIT_DIM: int | None,
    V_SPLIT_DIM: int | None,
) -> Tensor:
    """Lightning Attention, one token per sequence on a pool of states: cuLA's linear_attention_decode.

    S <- exp(-decay_scales[h]) S + k v^T;  o = softmax_scale S^T q

    Args:
        q, k: [B, H, K].  v, out: [B, HV, V], HV a multiple of H (cuLA: H); out is written.
        s: the pool, [slots, HV, V, K] or [slots * HV, V, K], float32 (or bfloat16, float16); written in place.
        softmax_scale: on q; None: K**-0.5.
        stride_q, stride_k, stride_v, stride_o, stride_s: elements from one sequence, or slot, to the next. The tensors
            have their own: None, or what they have (stride_s of [slots * HV, V, K]: of its first axis, or HV times it).
        s_offsets: int32 or int64 [B], the slots; negative ids are pads: nothing is read or written, rows are zero.
            None: sequence n has slot n.
        decay_scales: HV elements, 0 or more.
        HEAD_DIM: K, or None.  K_SPLIT_DIM, V_SPLIT_DIM: how cuLA cuts its work; no effect.

    Returns:
        out.

    Raises:
        ValueError: a sentence that names the argument, what came, what was expected.
    """
    door = "linear_attention_decode"
    words = pool_words("s", "s_offsets") | {"g": "decay_scales"}
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 3:
            raise ValueError(f"{door}: {name} has shape {list(x.shape)}; expected [B, heads, dim]")
    expect_shape(door, "out", out, tuple(v.shape), axes="v's shape")
    B, (HV, V), K = q.shape[0], v.shape[1:], q.shape[2]
    if HEAD_DIM is not None and HEAD_DIM != K:
        raise ValueError(f"{door}: HEAD_DIM is {HEAD_DIM}; expected {K}, the last axis of q")
    if s is None or s.dim() not in (3, 4) or (s.dim() == 3 and s.shape[0] % HV):
        got = "None" if s is None else f"of shape {list(s.shape)}"
        raise ValueError(
            f"{door}: s is {got}; expected [slots, HV, V, K] or [slots * HV, V, K] with HV = {HV}"
        )
    pool = s.unflatten(0, (-1, HV)) if s.dim() == 3 else s
    for name, stride, x in (
        ("stride_q", stride_q, q),
        ("stride_k", stride_k, k),
        ("stride_v", stride_v, v),
        ("stride_o", stride_o, out),
        ("stride_s", stride_s, pool),
    ):
        of_a_head = name == "stride_s" and s.dim() == 3 and stride == s.stride(0)
        if stride is not None and x.shape[0] > 1 and stride != x.stride(0) and not of_a_head:
            raise ValueError(
                f"{door}: {name} is {stride}; expected {x.stride(0)}, the tensor's own, or None"
            )
    decay = compat.parameter(door, "decay_scales", decay_scales, (HV,))
    if decay is None:
        raise ValueError(f"{door}: decay_scales is None; expected [{HV}]")
    pool, ids = _slots(door, words, v, (V, K), pool, s_offsets, B)
    step(
        door,
        words,
        op="lightning",
        q=q[:, None],
        k=k[:, None],
        v=v[:, None],
        g=-decay,
        gate_input="log_decay",
        scale=softmax_scale,
        state_layout="value_key",
        pool=pool,
        read_slots=ids,
        write_slots=ids,
        out=out[:, None],
    )
    return out
