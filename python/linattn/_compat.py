# SPDX-License-Identifier: Apache-2.0
"""What FLA's doors have in common: legacy keywords, checks, the closed list of what is refused, and the one call.

Every door follows flash-linear-attention 0.6.0: its parameters, its defaults, its exceptions. PyTorch only.

What the library checks by itself is not checked before it: only when it refuses does a door look for the exception of
FLA, and for a layout or dtype of which FLA takes a copy.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import _call, _native
from ._frameworks import dtype_name, framework_of
from .op import problem_code

if TYPE_CHECKING:
    from torch import Tensor

# The closed list: all that FLA 0.6.0 takes and these doors refuse, by NotImplementedError. docs/fla.md prints it.
REFUSED = {
    "cp_context": "context parallelism: `cp_context` is not None",
    "gv": "a decay per value channel: `gv` is not None",
    "beta_per_channel": "`beta` per value channel, [B, T, HV, V]",
    "dtype": "q, k, v, g or a strength that is not bfloat16, float16 or float32; or q, k, v of different dtypes, or "
    "gdn2's `b` and `w`",
    "scale_zero": "`scale` of exactly 0",
    "second_gradient": "the gradient of a gradient (`create_graph=True`)",
}


def refuse(door: str, key: str, detail: str = "") -> None:
    raise NotImplementedError(
        f"linattn: {door}: not implemented: {REFUSED[key]}{detail and f' ({detail})'}"
    )


# ---- keywords -----------------------------------------------------------------------------------------------------


def take_keywords(door: str, kwargs: dict[str, Any], *known: str) -> list[Any]:
    """The values of FLA's hidden keywords, None where not given; any other keyword is a TypeError."""
    values = [kwargs.pop(name, None) for name in known]
    for name in kwargs:
        raise TypeError(f"{door}() got an unexpected keyword argument {name!r}")
    return values


def refuse_head_first(door: str, kwargs: dict[str, Any]) -> None:
    if "head_first" in kwargs:  # FLA raises the warning itself
        raise DeprecationWarning(f"{door}: head_first is gone; pass [B, T, H, ...] tensors")


def value_first(door: str, state_v_first: bool, kwargs: dict[str, Any]) -> bool:
    """state_v_first, or its old name, which is removed from kwargs."""
    if "transpose_state_layout" not in kwargs:
        return state_v_first
    if state_v_first:
        raise ValueError(
            f"{door}: state_v_first and transpose_state_layout came both; expected state_v_first alone"
        )
    warnings.warn(
        f"{door}: transpose_state_layout is now called state_v_first",
        DeprecationWarning,
        stacklevel=3,
    )
    return kwargs.pop("transpose_state_layout")


def check_chunk_size(door: str, chunk_size: int | None, allowed: tuple[int, ...]) -> None:
    """A chunk size changes rounding in FLA and nothing here; a wrong one is refused as there."""
    if chunk_size is not None and chunk_size not in allowed:
        expected = " or ".join(map(str, allowed))
        raise ValueError(f"{door}: chunk_size is {chunk_size}; expected {expected}")


def take_chunk_size(door: str, kwargs: dict[str, Any]) -> None:
    """Of the doors whose chunk size may be any power of two."""
    refuse_head_first(door, kwargs)
    (chunk_size,) = take_keywords(door, kwargs, "chunk_size")
    if chunk_size is not None and (chunk_size < 1 or chunk_size & (chunk_size - 1)):
        raise ValueError(f"{door}: chunk_size is {chunk_size}; expected a power of two")


# ---- checks that FLA makes ----------------------------------------------------------------------------------------


def check_sequences(
    door: str, q: Tensor, initial_state: Tensor | None, cu_seqlens: Tensor | None
) -> None:
    if cu_seqlens is None:
        return
    if q.shape[0] != 1:
        raise ValueError(
            f"{door}: q has a batch of {q.shape[0]}; expected 1 with cu_seqlens (pack the sequences)"
        )
    if initial_state is not None and initial_state.shape[0] != len(cu_seqlens) - 1:
        raise ValueError(
            f"{door}: initial_state holds {initial_state.shape[0]} states; expected {len(cu_seqlens) - 1}, "
            "one per sequence of cu_seqlens"
        )


def refuse_context(
    door: str, cp_context: Any, initial_state: Tensor | None, output_final_state: bool
) -> None:
    assert initial_state is None, f"{door}: initial_state came with cp_context; expected None"
    assert output_final_state is False, (
        f"{door}: output_final_state came with cp_context; expected False"
    )
    assert cp_context.cu_seqlens is not None, (
        f"{door}: cp_context.cu_seqlens is None; expected offsets"
    )
    refuse(door, "cp_context")


def check_key_dim(door: str, q: Tensor) -> None:
    K = q.shape[-1]
    assert K <= 256, f"{door}: K is {K}; expected at most 256"


def check_beta(door: str, v: Tensor, beta: Tensor | None, **_: Any) -> None:
    if beta is not None and beta.dim() == v.dim():
        refuse(door, "beta_per_channel")


def check_state_dtype(door: str, initial_state: Tensor | None) -> None:
    """FLA asserts float32 here; 16-bit states are our addition."""
    if initial_state is not None:
        name = dtype_name(initial_state)
        assert name in ("float32", "bfloat16", "float16"), (
            f"{door}: initial_state is {name}; expected float32, bfloat16 or float16"
        )


def check_safe_gate(door: str, safe_gate: bool, lower_bound: float | None) -> None:
    if not safe_gate:
        return
    if lower_bound is None:
        raise ValueError(
            f"{door}: lower_bound is None; expected a number in [-5, 0) with safe_gate"
        )
    if not -5 <= lower_bound < 0:
        raise ValueError(
            f"{door}: lower_bound is {lower_bound}; expected a number in [-5, 0) with safe_gate"
        )


def check_intermediate_states(door: str, disable_recompute: bool) -> None:
    import torch

    assert torch.is_inference_mode_enabled(), (
        f"{door}: return_intermediate_states outside of torch.inference_mode(); expected inside"
    )
    assert disable_recompute is False, (
        f"{door}: return_intermediate_states came with disable_recompute; expected one of them"
    )


def check_heads(door: str, q: Tensor, v: Tensor) -> None:
    H, HV = q.shape[2], v.shape[2]
    assert H == HV, f"{door}: v has shape {list(v.shape)}, {HV} heads; expected the {H} of q"


def assert_like(door: str, other: str, y: Tensor, **tensors: Tensor) -> None:
    for name, x in tensors.items():
        assert x.shape == y.shape, (
            f"{door}: {name} has shape {list(x.shape)}; expected {other}'s, {list(y.shape)}"
        )


def assert_shape(door: str, name: str, x: Tensor, expected: tuple[int, ...], axes: str) -> None:
    assert tuple(x.shape) == tuple(expected), (
        f"{door}: {name} has shape {list(x.shape)}; expected {axes} = {list(expected)}"
    )


# ---- small pieces of tensors --------------------------------------------------------------------------------------


def last_axis_dense(x: Tensor | None) -> Tensor | None:
    """x itself in every usual layout; a copy when its last axis is strided or expanded, as FLA makes."""
    return x if x is None or x.shape[-1] <= 1 or x.stride(-1) == 1 else x.contiguous()


def dense_matrix(state: Tensor | None) -> Tensor | None:
    """A state in float32 whose matrices are dense: itself, or a copy of one that was transposed."""
    if state is None:
        return None
    state = state.float()
    if state.dim() != 4 or (state.stride(-1) == 1 and state.stride(-2) == state.shape[-1]):
        return state
    return state.contiguous()


def parameter(door: str, name: str, x: Tensor | None, shape: tuple[int, ...]) -> Tensor | None:
    """A gate parameter in the library's shape and dtype; FLA takes any shape of as many elements."""
    import torch

    if x is None or (x.shape == shape and x.dtype == torch.float32 and x.is_contiguous()):
        return x
    count = 1
    for n in shape:
        count *= n
    if x.numel() != count:
        raise ValueError(
            f"{door}: {name} has shape {list(x.shape)}, {x.numel()} elements; expected {count} as {list(shape)}"
        )
    return x.reshape(shape).float().contiguous()


def softplus_gate(g: Tensor, A_log: Tensor, dt_bias: Tensor | None) -> Tensor:
    """Log decay of a raw gate per head, for the doors that add another gate to it."""
    import torch

    x = g.float() if dt_bias is None else g.float() + dt_bias.float().reshape(-1)
    return -A_log.float().reshape(-1).exp() * torch.nn.functional.softplus(x)


def bounded_gate(
    g: Tensor, A_log: Tensor | None, dt_bias: Tensor | None, lower_bound: float
) -> Tensor:
    """Log decay of a raw gate per channel under a bound that is not negative, which the library refuses."""
    x = g.float() if dt_bias is None else g.float() + dt_bias
    return lower_bound * (x if A_log is None else A_log.exp()[:, None] * x).sigmoid()


def flip_tokens(x: Tensor | None, cu_seqlens: Tensor | None) -> Tensor | None:
    """Tokens of each sequence in reverse order."""
    if x is None:
        return None
    if cu_seqlens is None:
        return x.flip(1)
    import torch

    t = torch.arange(x.shape[1], device=x.device)
    offsets = cu_seqlens.to(torch.long)
    n = (torch.searchsorted(offsets, t, right=True) - 1).clamp(max=len(offsets) - 2)
    mirrored = offsets[n] + offsets[n + 1] - 1 - t
    return x[:, torch.where(t < offsets[-1], mirrored, t)]


# ---- the call -----------------------------------------------------------------------------------------------------


def run(
    door: str,
    op: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    gate_input: str | None = None,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    lower_bound: float | None = None,
    *,
    beta: Tensor | None = None,
    beta_input: str | None = None,
    erase: Tensor | None = None,
    write: Tensor | None = None,
    qk_l2norm: bool = False,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    reverse: bool = False,
    states_every: int | None = None,
    check: Callable[..., None] | None = None,
) -> tuple:
    """One native call. The final state is float32 as in FLA, whatever the initial state's dtype.

    reverse: each sequence from its last token.
    states_every=C: the state before every C tokens is a third result, [B, chunks, HV, K, V] in k's dtype.
    check: raises what FLA raises for shapes and dtypes that the library refuses; called with the tensors by name.
    """
    if scale is None:
        scale = 0.0
    elif scale == 0:
        refuse(door, "scale_zero")
    layout = "value_key" if state_v_first else "key_value"
    code = problem_code(op, gate_input, beta_input, qk_l2norm, layout, "float32")
    numbers = (code, float(scale), 0.0 if lower_bound is None else float(lower_bound))
    inputs = (q, k, v, g, beta, A_log, dt_bias, initial_state, cu_seqlens)
    rest = () if erase is None else (erase, write)
    refused = None
    if not reverse and states_every is None:
        try:
            done = framework_of(q).run(
                _native.forward, numbers, inputs, None, None, output_final_state, rest, ()
            )
        except ValueError as error:
            refused = error
        else:
            if done is not None:
                return done
    if check is not None:
        check(door, q=q, k=k, v=v, g=g, beta=beta, b=erase, w=write, initial_state=initial_state)
    check_tensors(door, q, k, v, {"g": g, "beta": beta, "b": erase, "w": write})
    check_sequences(door, q, initial_state, cu_seqlens)
    given = (q, k, v, g, beta, A_log, dt_bias, initial_state, erase, write)
    usable = _usable(door, *given)
    if refused is not None and all(a is b for a, b in zip(given, usable)):
        raise refused
    more = (reverse, states_every, state_v_first, cu_seqlens, cu_seqlens_cpu)
    return _run_carefully(numbers, usable, bool(output_final_state), *more)


def _usable(
    door: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    A_log: Tensor | None,
    dt_bias: Tensor | None,
    initial_state: Tensor | None,
    erase: Tensor | None,
    write: Tensor | None,
) -> tuple:
    """The tensors as the library takes them: themselves, or copies where FLA takes copies."""
    HV = v.shape[2]
    channel = g is not None and g.dim() == 4
    return (
        *map(last_axis_dense, (q, k, v)),
        last_axis_dense(g) if channel else g,
        beta,
        parameter(door, "A_log", A_log, (HV,)),
        parameter(door, "dt_bias", dt_bias, (HV, g.shape[3]) if channel else (HV,)),
        dense_matrix(initial_state),
        last_axis_dense(erase),
        last_axis_dense(write),
    )


def _run_carefully(
    numbers: tuple,
    tensors: tuple,
    output_final_state: bool,
    reverse: bool,
    states_every: int | None,
    state_v_first: bool,
    cu_seqlens: Tensor | None,
    cu_seqlens_cpu: Tensor | None,
) -> tuple:
    """With tensors that the library takes, in whatever way is open."""
    q, k, v, g, beta, *parameters, erase, write = tensors
    if reverse:
        q, k, v, beta, erase, write = (
            flip_tokens(x, cu_seqlens) for x in (q, k, v, beta, erase, write)
        )
        if g is not None and g.dim() > 1:
            g = flip_tokens(g, cu_seqlens)
    inputs = (q, k, v, g, beta, *parameters, cu_seqlens)
    rest, counts = () if erase is None else (erase, write), ()
    if states_every is not None:
        states = _states_before_chunks(
            q, k, v, state_v_first, cu_seqlens, cu_seqlens_cpu, states_every
        )
        rest = (erase, write, *(None,) * 4, *states, None, None)
        counts = (0, states_every, 0, None)
    call = (numbers, inputs, None, None, output_final_state, rest, counts)
    done = framework_of(q).run(_native.forward, *call) or _call.run_long("forward", *call)
    if reverse:
        done = (flip_tokens(done[0], cu_seqlens), done[1])
    if states_every is not None:
        states, batch = states[0], q.shape[0] if cu_seqlens is None else 1
        chunks = states.shape[0] // max(batch, 1)
        done = (*done, states.view(batch, chunks, *states.shape[1:]))
    return done


def check_tensors(
    door: str, q: Tensor, k: Tensor, v: Tensor, others: dict[str, Tensor | None]
) -> None:
    import torch

    if not isinstance(q, torch.Tensor):
        raise TypeError(
            f"{door}: q is a {type(q).__name__}; expected a torch.Tensor (linattn.forward takes NumPy)"
        )
    floats = (torch.bfloat16, torch.float16, torch.float32)
    for name, x in dict(q=q, k=k, v=v, **others).items():
        if x is not None and x.dtype not in floats:
            refuse(door, "dtype", f"{name} is {dtype_name(x)}")
    if not q.dtype == k.dtype == v.dtype:
        refuse(door, "dtype", f"q, k, v are {', '.join(map(dtype_name, (q, k, v)))}")
    b, w = others.get("b"), others.get("w")
    if b is not None and b.dtype != w.dtype:
        refuse(door, "dtype", f"b is {dtype_name(b)}, w is {dtype_name(w)}")


def _states_before_chunks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state_v_first: bool,
    cu_seqlens: Tensor | None,
    cu_seqlens_cpu: Tensor | None,
    chunk_size: int,
) -> tuple[Tensor, ...]:
    """Checkpoints at 0, C, 2C, ... of every sequence. The number of chunks is read on the host, as in FLA."""
    import torch

    if cu_seqlens is None:
        lengths = [q.shape[1]] * q.shape[0]
    else:
        host = (cu_seqlens if cu_seqlens_cpu is None else cu_seqlens_cpu).tolist()
        lengths = [end - begin for begin, end in itertools.pairwise(host)]
    counts = [-(-length // chunk_size) for length in lengths]
    offsets = [sum(counts[:n]) for n in range(len(counts) + 1)]
    positions = [i * chunk_size for count in counts for i in range(count)]

    def ids(values: Any) -> Tensor:
        return torch.tensor(list(values), dtype=torch.int32, device=q.device)

    last = (v.shape[-1], k.shape[-1]) if state_v_first else (k.shape[-1], v.shape[-1])
    return (
        k.new_empty((offsets[-1], v.shape[2], *last)),
        ids(offsets),
        ids(positions),
        ids(range(offsets[-1])),
    )
