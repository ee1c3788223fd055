# SPDX-License-Identifier: Apache-2.0
"""FLA's doors for servers: a few tokens per sequence on a pool of states, over `linattn.step`. cuLA's: decode.py.

States live in a pool [slots, ...] that is read and written in place by slot ids on the device. Nothing waits for the
device, inputs are passed as views, and nothing is differentiable (an input that requires a gradient is refused: call
under torch.no_grad()). PyTorch only. docs/serving.md has the rules that the doors share.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from . import _call
from . import _compat as compat
from ._frameworks import dtype_name
from .kda import channel_gate, strength

if TYPE_CHECKING:
    from torch import Tensor

# ---- what the doors share -----------------------------------------------------------------------------------------


def step(door: str, words: dict[str, str], **call: Any) -> tuple[Tensor, Tensor | None]:
    """linattn.step, whose refusals name the door's arguments: words maps the library's names to them."""
    if call.get("scale") == 0:
        compat.refuse(door, "scale_zero")
    try:
        return _call.step(**call)
    except ValueError as error:
        names = re.compile(rf"\b({'|'.join(words)})\b")
        text = names.sub(lambda name: words[name[0]], str(error).removeprefix("linattn: "))
        raise ValueError(f"{door}: {text}") from error


def pool_words(pool: str, ids: str) -> dict[str, str]:
    """The library's names of states and slots in a door's words."""
    return {
        "initial_state": pool,
        "final_state": pool,
        "read_slots": ids,
        "write_slots": ids,
        "write_slot_stride": f"the number of columns of {ids}",
    }


def int32(door: str, name: str, ids: Tensor | None) -> Tensor | None:
    """Ids or counts as the library takes them, contiguous int32; int64 is converted without wrapping round."""
    import torch

    if ids is None or ids.dtype == torch.int32:
        return ids if ids is None else ids.contiguous()
    if ids.dtype != torch.int64:
        raise ValueError(f"{door}: {name} is {dtype_name(ids)}; expected int32 or int64")
    return ids.clamp(-1, 2**31 - 1).to(torch.int32).contiguous()


def expect_shape(door: str, name: str, x: Tensor, *allowed: tuple[int, ...], axes: str) -> None:
    if tuple(x.shape) not in allowed:
        shapes = " or ".join(str(list(shape)) for shape in allowed)
        raise ValueError(f"{door}: {name} has shape {list(x.shape)}; expected {shapes}, {axes}")


def own_rows(ids: Tensor, count: int) -> Tensor:
    """int32 [count]: n where ids[n] is a slot, -1 where it is a pad."""
    import torch

    rows = torch.arange(count, dtype=torch.int32, device=ids.device)
    return torch.where(ids < 0, -1, rows)


def read_only(initial_state: Tensor, ids: Tensor) -> dict[str, Any]:
    """The arguments of a step that reads slots and stores nothing. A count of 0 is what makes a pad there."""
    return {
        "initial_state": initial_state,
        "read_slots": ids[:, None],
        "accepted": (ids >= 0).to(ids.dtype),
    }


# ---- FLA ----------------------------------------------------------------------------------------------------------

_FLA_WORDS = pool_words("initial_state", "ssm_state_indices") | {
    "accepted": "num_accepted_tokens",
    "state_layout": "state_v_first",
}


def _start_ids(ids: Tensor, accepted: Tensor | None) -> Tensor:
    """int32 [N]: the slot that each sequence starts from; negative for a count out of range."""
    import torch

    if ids.dim() == 1:
        return ids
    if accepted is None:
        return ids[:, 0].contiguous()
    columns = ids.shape[1]
    column = accepted.long() - 1
    start = ids.gather(1, column.clamp(0, columns - 1)[:, None])[:, 0]
    return torch.where((column < 0) | (column >= columns), -1, start)


def _check_ids(
    door: str, sequences: int, length: int | None, ids: Tensor | None, accepted: Tensor | None
) -> None:
    """length: the tokens of every sequence, None when only the device knows them."""
    name = "ssm_state_indices"
    if ids is None:
        if accepted is not None:
            raise ValueError(
                f"{door}: {name} is None and num_accepted_tokens is given; expected {name} [N, columns]"
            )
        return
    if ids.dim() not in (1, 2) or ids.shape[0] != sequences or 0 in ids.shape[1:]:
        raise ValueError(
            f"{door}: {name} has shape {list(ids.shape)}; expected [N] or [N, columns] with N = {sequences}"
        )
    if ids.dim() == 2 and length is not None and ids.shape[1] < length:
        raise ValueError(
            f"{door}: {name} has {ids.shape[1]} columns; expected at least {length}, one per token"
        )
    if accepted is not None:
        expect_shape(door, "num_accepted_tokens", accepted, (sequences,), axes="[N]")
        if ids.dim() == 1:
            raise ValueError(
                f"{door}: {name} has shape {list(ids.shape)} and num_accepted_tokens is given; "
                "expected [N, columns], of which it chooses one"
            )


def _new_final_state(
    door: str, q: Tensor, v: Tensor, state_v_first: bool, pool: Tensor, start: Tensor
) -> dict[str, Any]:
    """The arguments of a step from slots of a pool into a new float32 tensor, zero for pads."""
    import torch

    count, slots = start.shape[0], pool.shape[0]
    matrix = (v.shape[3], q.shape[3]) if state_v_first else (q.shape[3], v.shape[3])
    final = q.new_zeros((count, v.shape[2], *matrix), dtype=torch.float32)
    own = own_rows(start, count)
    if pool.dtype == torch.float32:
        return {
            "initial_state": pool,
            "read_slots": start,
            "final_state": final,
            "write_slots": own,
        }
    # The library has one dtype for the states of a call: those that are read are converted.
    if start.device.type == "cpu" and bool((start >= slots).any()):
        raise ValueError(
            f"{door}: ssm_state_indices holds {int(start.max())}; expected under {slots}, the slots of initial_state"
        )
    rows = pool.index_select(0, start.clamp(0, max(slots - 1, 0))).float()
    return {"initial_state": rows, "read_slots": own, "final_state": final, "write_slots": own}


def _serve(
    door: str,
    initial_state: Tensor | None,
    inplace_final_state: bool,
    output_final_state: bool,
    ssm_state_indices: Tensor | None,
    num_accepted_tokens: Tensor | None,
    state_v_first: bool,
    out: Tensor | None,
    **call: Any,
) -> tuple[Tensor, Tensor | None]:
    """FLA's rules of where states come from and go to; call holds the rest of the step."""
    q, v, cu_seqlens = call["q"], call["v"], call["cu_seqlens"]
    for name, x in (("q", q), ("v", v)):
        if x.dim() != 4:
            raise ValueError(f"{door}: {name} has shape {list(x.shape)}; expected 4 axes")
    assert out is None or out.shape == v.shape, (
        f"{door}: out has shape {list(out.shape)}; expected v's, {list(v.shape)}"
    )
    assert not inplace_final_state or initial_state is not None, (
        f"{door}: initial_state is None; expected a pool of states with inplace_final_state"
    )
    ids = int32(door, "ssm_state_indices", ssm_state_indices)
    accepted = int32(door, "num_accepted_tokens", num_accepted_tokens)
    if cu_seqlens is None:
        _check_ids(door, q.shape[0], q.shape[1], ids, accepted)
    else:
        _check_ids(door, len(cu_seqlens) - 1, None, ids, accepted)
    if ids is None:
        if inplace_final_state:
            states = {"pool": initial_state}
        else:
            states = {
                "initial_state": compat.dense_matrix(initial_state),
                "output_final_state": output_final_state,
                "state_dtype": "float32",
            }
    elif initial_state is None:
        raise ValueError(
            f"{door}: initial_state is None and ssm_state_indices is given; expected the pool of its slots"
        )
    elif inplace_final_state:
        read = ids if accepted is not None else _start_ids(ids, None)
        states = {
            "pool": initial_state,
            "read_slots": read,
            "accepted": accepted,
            "write_slots": ids,
        }
    else:
        start = _start_ids(ids, accepted)
        if output_final_state:
            states = _new_final_state(door, q, v, state_v_first, initial_state, start)
        else:
            states = read_only(initial_state, start)
    layout = "value_key" if state_v_first else "key_value"
    try:
        return step(door, _FLA_WORDS, **call, **states, state_layout=layout, out=out)
    except ValueError:
        compat.check_tensors(door, q, call["k"], v, {"g": call["g"], "beta": call["beta"]})
        compat.check_beta(door, v, call["beta"])
        raise


def fused_recurrent_kda_fwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_state: Tensor | None = None,
    scale: float | None = None,
    output_final_state: bool = False,
    inplace_final_state: bool = True,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    ssm_state_indices: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    lower_bound: float | None = None,
    out: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """KDA for a few tokens per sequence on a pool of states: FLA's entry for servers (fla.ops.kda.fused_recurrent).

    Args:
        q, k: [B, T, H, K], bfloat16, float16 or float32.  v: [B, T, HV, V], HV a multiple of H.
        g: [B, T, HV, K], the natural log of the decay; with use_gate_in_kernel its raw input.
        beta: [B, T, HV], write strengths; with use_beta_sigmoid_in_kernel logits.
        A_log, dt_bias, lower_bound, allow_neg_eigval, use_qk_l2norm_in_kernel: as `chunk_kda`.
        initial_state: the pool, [slots, HV, K, V] (state_v_first: [slots, HV, V, K]), float32, bfloat16 or float16,
            each head's matrix dense, slots with any stride. Without ssm_state_indices slots = N.
        inplace_final_state: states are written into initial_state.
        output_final_state: without inplace_final_state, return the state after the last token.
        cu_seqlens: int32 or int64 [N + 1], with B = 1; rows past its last entry are zero. None: N = B.
        ssm_state_indices: int32 or int64. [N]: the slot of each sequence. [N, columns]: the state after token t goes
            to slot [n, t], and the sequence starts from [n, 0]. Negative ids are pads: nothing is read or written,
            rows are zero.
        num_accepted_tokens: int32 or int64 [N], with [N, columns]: the sequence starts from [n, accepted - 1]. A count
            out of range makes a pad.
        out: [B, T, HV, V] in q's dtype; None: a new tensor.
        transpose_state_layout: as a keyword, the old name of state_v_first.

    Returns:
        (o [B, T, HV, V], final state): initial_state itself in place, else a new float32 [N, HV, K, V] (zero for pads),
        or None when it was not asked for.

    Raises:
        AssertionError: inplace_final_state without initial_state; a wrong shape of out.
        ValueError, TypeError, NotImplementedError: docs/serving.md.
    """
    door = "fused_recurrent_kda_fwd"
    if kwargs:
        state_v_first = compat.value_first(door, state_v_first, kwargs)
        compat.take_keywords(door, kwargs)
    gate_input = "log_decay"
    beta_input = strength(door, use_beta_sigmoid_in_kernel, allow_neg_eigval)
    if use_gate_in_kernel:
        HV, K = v.shape[-2], k.shape[-1]
        A_log = compat.parameter(door, "A_log", A_log, (HV,))
        dt_bias = compat.parameter(door, "dt_bias", dt_bias, (HV, K))
        gate = channel_gate(door, g, A_log, dt_bias, lower_bound)
        g, gate_input, A_log, dt_bias, lower_bound = gate
    else:
        A_log = dt_bias = lower_bound = None
    return _serve(
        door,
        initial_state,
        inplace_final_state,
        output_final_state,
        ssm_state_indices,
        num_accepted_tokens,
        state_v_first,
        out,
        op="kda",
        q=q,
        k=k,
        v=v,
        g=g,
        beta=beta,
        gate_input=gate_input,
        beta_input=beta_input,
        A_log=A_log,
        dt_bias=dt_bias,
        lower_bound=lower_bound,
        scale=scale,
        qk_l2norm=use_qk_l2norm_in_kernel,
        cu_seqlens=cu_seqlens,
    )


def fused_recurrent_gated_delta_rule_fwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    inplace_final_state: bool = True,
    cu_seqlens: Tensor | None = None,
    ssm_state_indices: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    state_v_first: bool = False,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Gated DeltaNet in the form of `fused_recurrent_kda_fwd`, which documents the arguments that are not here.

    Args:
        g: [B, T, HV], the natural log of the decay.  beta: [B, T, HV], write strengths; None: 1.

    Returns:
        (o [B, T, HV, V], final state): initial_state itself in place, else a new float32 [N, HV, K, V].
    """
    return _serve(
        "fused_recurrent_gated_delta_rule_fwd",
        initial_state,
        inplace_final_state,
        True,
        ssm_state_indices,
        num_accepted_tokens,
        state_v_first,
        out,
        op="gdn",
        q=q,
        k=k,
        v=v,
        g=g,
        beta=beta,
        gate_input="log_decay",
        beta_input="one" if beta is None else "value",
        scale=scale,
        qk_l2norm=use_qk_l2norm_in_kernel,
        cu_seqlens=cu_seqlens,
    )
