# SPDX-License-Identifier: Apache-2.0
"""PyTorch's view of the library: torch ops with fake kernels, so that torch.compile sees through, and autograd.

Two kinds, since a schema that mutates cannot have autograd: `linattn::forward` is functional and differentiable,
`linattn::forward_` and `linattn::step_` write into tensors of the caller. Imported only when a torch tensor comes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from . import _native
from ._problem import LAYOUT, SAVE, STATE_DTYPE
from .op import DTYPES, STATE_LAYOUTS

_NAMESPACE = "linattn"
_DTYPES = {code: getattr(torch, name) for name, code in DTYPES.items()}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}

_library = torch.library.Library(_NAMESPACE, "DEF")
_operators = getattr(torch.ops, _NAMESPACE)

_TENSORS = (
    "Tensor q, Tensor k, Tensor v, Tensor? g, Tensor? beta, Tensor? erase, Tensor? write, Tensor? a_log, "
    "Tensor? dt_bias, Tensor? initial_state, Tensor? has_initial_state, Tensor? cu_seqlens"
)
_NUMBERS = "int[] flags, float scale, float lower_bound"
_COUNT = 12  # of _TENSORS


def _define(name: str, schema: str, run: Any, fake: Any) -> None:
    _library.define(f"{name}{schema}")
    for key in ("CPU", "CUDA"):
        _library.impl(name, run, key)
    torch.library.register_fake(f"{_NAMESPACE}::{name}", fake, lib=_library)


def _with_slots(tensors: tuple, read_slots: Tensor | None) -> list:
    """The binding's thirteen inputs: read_slots stands before the last two of ours."""
    return [*tensors[:10], read_slots, *tensors[10:]]


# ---- forward ------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _saved_coefficients(
    flags: tuple, dtypes: tuple, sizes: tuple, device: tuple, implementation: str
) -> tuple:
    return tuple(_native.saved_coefficients(*flags, *dtypes, *sizes, *device, implementation))


def _bucket(n: Any) -> int:
    """The binding's power of two; a symbolic count stands for a long call."""
    return 1 << max(int(n) - 1, 0).bit_length() if isinstance(n, int) else 1 << 20


def _saved_size(tensors: tuple, flags: list[int], implementation: str) -> Any:
    if not flags[SAVE]:
        return 0
    q, _, v, g, beta, erase = tensors[:6]
    tokens = q.shape[0] * q.shape[1]
    sequences = _sequences(tensors)
    strength = beta if beta is not None else erase
    default = _CODES[torch.float32]
    a, b, c = _saved_coefficients(
        tuple(flags),
        (
            _CODES[q.dtype],
            default if g is None else _CODES[g.dtype],
            default if strength is None else _CODES[strength.dtype],
            0,
        ),
        (
            _bucket(tokens),
            _bucket(sequences),
            int(q.shape[2]),
            int(v.shape[2]),
            int(q.shape[3]),
            int(v.shape[3]),
        ),
        (1, 0) if q.device.type == "cpu" else (2, q.device.index or 0),
        implementation,
    )
    return a * tokens + b * sequences + c


def _sequences(tensors: tuple) -> Any:
    return tensors[0].shape[0] if tensors[11] is None else tensors[11].shape[0] - 1


def _outputs(
    tensors: tuple, flags: list[int], output_final_state: bool, implementation: str
) -> tuple[Tensor, Tensor, Tensor]:
    q, _, v = tensors[:3]
    out = q.new_empty(v.shape)
    if output_final_state:
        K, V = q.shape[-1], v.shape[-1]
        last = (V, K) if flags[LAYOUT] == STATE_LAYOUTS["value_key"] else (K, V)
        state = q.new_empty(
            (_sequences(tensors), v.shape[2], *last), dtype=_DTYPES[flags[STATE_DTYPE]]
        )
    else:
        state = q.new_empty((0,))
    saved = q.new_empty((_saved_size(tensors, flags, implementation),), dtype=torch.uint8)
    return out, state, saved


def _forward(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    tensors = args[:_COUNT]
    flags, scale, lower_bound, output_final_state, implementation, _ = args[_COUNT:]
    _check_rank(tensors)
    out, state, saved = _outputs(tensors, flags, output_final_state, implementation)
    _native.forward(
        *_with_slots(tensors, None),
        *flags,
        scale,
        lower_bound,
        0,
        implementation,
        out,
        state if output_final_state else None,
        *(None,) * 7,
        saved if flags[SAVE] else None,
    )
    return out, state, saved


def _forward_fake(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    tensors = args[:_COUNT]
    flags, _, _, output_final_state, implementation, _ = args[_COUNT:]
    return _outputs(tensors, flags, output_final_state, implementation)


def _check_rank(tensors: tuple) -> None:
    """What is read here before the binding checks everything."""
    for name, x in zip("qkv", tensors):
        if x.dim() != 4:
            raise ValueError(
                f"linattn: {name} has shape {list(x.shape)}; expected 4 axes, [B, T, heads, dim]"
            )
    cu_seqlens = tensors[11]
    if cu_seqlens is not None and (cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 2):
        raise ValueError(
            f"linattn: cu_seqlens has shape {list(cu_seqlens.shape)}; expected [N + 1] with N at least 1"
        )


_define(
    "forward",
    f"({_TENSORS}, {_NUMBERS}, bool output_final_state, str implementation, str backward_implementation) "
    "-> (Tensor out, Tensor final_state, Tensor saved)",
    _forward,
    _forward_fake,
)

# ---- backward -----------------------------------------------------------------------------------------------------

_DIFFERENTIABLE = (
    0,
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    9,
)  # q .. initial_state, in the order of the binding's gradients


def _gradients(tensors: tuple, wanted: list[bool]) -> tuple[Tensor, ...]:
    q = tensors[0]
    return tuple(
        torch.empty(x.shape, dtype=x.dtype, device=x.device) if want else q.new_empty((0,))
        for x, want in zip(tensors, wanted, strict=False)
    )


def _backward(
    dout: Tensor | None, dfinal_state: Tensor | None, saved: Tensor, *args: Any
) -> tuple[Tensor, ...]:
    tensors = args[:_COUNT]
    flags, scale, lower_bound, wanted, implementation, forward_implementation = args[_COUNT:]
    gradients = _gradients(tensors, wanted)
    _native.backward(
        *_with_slots(tensors, None),
        *flags,
        scale,
        lower_bound,
        0,
        implementation,
        dout,
        dfinal_state,
        saved,
        *(d if want else None for d, want in zip(gradients, wanted, strict=True)),
        forward_implementation,
    )
    return gradients


def _backward_fake(
    dout: Tensor | None, dfinal_state: Tensor | None, saved: Tensor, *args: Any
) -> tuple[Tensor, ...]:
    return _gradients(args[:_COUNT], args[_COUNT + 3])


_define(
    "backward",
    f"(Tensor? dout, Tensor? dfinal_state, Tensor saved, {_TENSORS}, {_NUMBERS}, bool[] wanted, str implementation, "
    "str forward_implementation) -> (" + ", ".join(["Tensor"] * len(_DIFFERENTIABLE)) + ")",
    _backward,
    _backward_fake,
)


def _setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
    ctx.set_materialize_grads(
        False
    )  # no gradient on one of the outputs is told apart from a zero one
    ctx.save_for_backward(*inputs[:_COUNT], output[2])
    ctx.mark_non_differentiable(output[2])
    ctx.rest = inputs[_COUNT:]


def _autograd(ctx: Any, dout: Tensor | None, dfinal_state: Tensor | None, _: Any) -> tuple:
    *tensors, saved = ctx.saved_tensors
    flags, scale, lower_bound, output_final_state, implementation, backward_implementation = (
        ctx.rest
    )
    wanted = [bool(ctx.needs_input_grad[i]) and tensors[i] is not None for i in _DIFFERENTIABLE]
    if not output_final_state:
        dfinal_state = None
    gradients = _operators.backward(
        _last_axis_dense(dout),
        None if dfinal_state is None else dfinal_state.contiguous().to(_DTYPES[flags[STATE_DTYPE]]),
        saved,
        *tensors,
        flags,
        scale,
        lower_bound,
        wanted,
        backward_implementation,
        implementation,
    )
    rest = (None,) * (_COUNT - len(_DIFFERENTIABLE) + 6)
    return (*(d if want else None for d, want in zip(gradients, wanted, strict=True)), *rest)


def _last_axis_dense(x: Tensor | None) -> Tensor | None:
    """x itself unless its last axis is strided or expanded (the gradient of a sum is), which the library refuses."""
    return x if x is None or x.shape[-1] <= 1 or x.stride(-1) == 1 else x.contiguous()


def _no_second_backward(ctx: Any, *gradients: Any) -> tuple:
    raise NotImplementedError(
        "linattn: the gradient of a gradient is not implemented (create_graph=True)"
    )


torch.library.register_autograd(
    f"{_NAMESPACE}::forward", _autograd, setup_context=_setup_context, lib=_library
)
torch.library.register_autograd(f"{_NAMESPACE}::backward", _no_second_backward, lib=_library)

# ---- into tensors of the caller -----------------------------------------------------------------------------------

# `in_place`: the initial state is final_state itself; a schema may not name a mutated tensor twice.
_INTO = f"{_TENSORS}, Tensor? read_slots, {_NUMBERS}, int first_slot, str implementation, bool in_place, Tensor(a!) out"


def _into(run: Any) -> Any:
    def body(*args: Any) -> None:
        tensors, read_slots = list(args[:_COUNT]), args[_COUNT]
        flags, scale, lower_bound, first_slot, implementation, in_place, out, final_state, *rest = (
            args[_COUNT + 1 :]
        )
        if in_place:
            tensors[9] = final_state
        numbers = (*flags, scale, lower_bound, first_slot, implementation)
        run(*_with_slots(tuple(tensors), read_slots), *numbers, out, final_state, *rest)

    return body


_define(
    "forward_",
    f"({_INTO}, Tensor(b!)? final_state, Tensor? write_slots, Tensor? start_positions, Tensor(c!)? checkpoints, "
    "Tensor? checkpoint_offsets, Tensor? checkpoint_positions, Tensor? checkpoint_slots, Tensor(d!)? transition) -> ()",
    _into(lambda *args: _native.forward(*args, None)),
    lambda *args: None,
)
_define(
    "step_",
    f"({_INTO}, Tensor(b!)? final_state, Tensor? write_slots, Tensor? read_table, Tensor? write_table, "
    "Tensor? accepted, Tensor? parents) -> ()",
    _into(_native.step),
    lambda *args: None,
)

# ---- what _call.py calls ------------------------------------------------------------------------------------------


def _tensors(call: Any) -> list:
    return [x for name, x in call.inputs.items() if name != "read_slots"]


def forward(
    call: Any, output_final_state: bool, wants_gradient: bool, backward_implementation: str
) -> tuple[Tensor, Tensor | None]:
    flags = list(call.flags)
    flags[SAVE] = int(wants_gradient)
    scale, lower_bound, _, implementation = call.numbers
    out, final_state, _ = _operators.forward(
        *_tensors(call),
        flags,
        scale,
        lower_bound,
        output_final_state,
        implementation,
        backward_implementation,
    )
    return out, final_state if output_final_state else None


def _call_into(op: Any, call: Any, outputs: list) -> None:
    tensors = _tensors(call)
    in_place = tensors[9] is not None and tensors[9] is call.final_state
    if in_place:
        tensors[9] = None
    scale, lower_bound, first_slot, implementation = call.numbers
    read_slots = call.inputs["read_slots"]
    op(
        *tensors,
        read_slots,
        call.flags,
        scale,
        lower_bound,
        first_slot,
        implementation,
        in_place,
        *outputs,
    )


def forward_into(call: Any, outputs: list) -> None:
    _call_into(_operators.forward_, call, outputs)


def step_into(call: Any, outputs: list) -> None:
    _call_into(_operators.step_, call, outputs)
