# SPDX-License-Identifier: Apache-2.0
"""PyTorch's view of the library: torch ops with fake kernels, so that torch.compile sees through, and autograd.

Two kinds, since a schema that mutates cannot have autograd: `linattn::forward` is functional and differentiable,
`linattn::forward_` and `linattn::step_` write into tensors of the caller. Imported only when a call needs them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from . import _native
from .op import DTYPES, LAYOUT, SAVE, STATE_DTYPE, STATE_LAYOUTS, digit, float_dtype

_NAMESPACE = "linattn"
_DTYPES = {code: getattr(torch, name) for name, code in DTYPES.items()}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}

_library = torch.library.Library(_NAMESPACE, "DEF")
_operators = getattr(torch.ops, _NAMESPACE)


def _define(name: str, schema: str, run: Any, fake: Any) -> None:
    _library.define(f"{name}({schema}")
    for key in ("CPU", "CUDA"):
        _library.impl(name, run, key)
    torch.library.register_fake(f"{_NAMESPACE}::{name}", fake, lib=_library)


# ---- the functional op --------------------------------------------------------------------------------------------

_NUMBERS = "int problem, float scale, float lower_bound"
_TENSORS = (
    "Tensor q, Tensor k, Tensor v, Tensor? g, Tensor? beta, Tensor? a_log, Tensor? dt_bias, Tensor? initial_state, "
    "Tensor? cu_seqlens, Tensor? erase, Tensor? write, Tensor? has_initial_state"
)
_INPUTS = (
    "q k v g beta A_log dt_bias initial_state cu_seqlens erase write has_initial_state".split()
)
_CU_SEQLENS = _INPUTS.index("cu_seqlens")
# Those with a gradient, in the order of the binding.
_DIFFERENTIABLE = [*range(_CU_SEQLENS), _INPUTS.index("erase"), _INPUTS.index("write")]


def _native_inputs(tensors: tuple, out: Tensor | None, final_state: Tensor | None) -> list:
    """The binding's arrays: no slots."""
    *inputs, erase, write, has_initial_state = tensors
    return [*inputs, out, final_state, erase, write, None, has_initial_state, None]


@lru_cache(maxsize=1024)
def _saved_coefficients(*question: Any) -> tuple:
    return tuple(_native.saved_coefficients(*question))


def _bucket(n: Any) -> int:
    """The binding's power of two; a symbolic count stands for a long call."""
    return 1 << max(int(n) - 1, 0).bit_length() if isinstance(n, int) else 1 << 20


def _sequences(tensors: tuple) -> Any:
    cu_seqlens = tensors[_CU_SEQLENS]
    return tensors[0].shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1


def _saved_size(problem: int, tensors: tuple, sm_limit: int, implementation: str | None) -> Any:
    if not digit(problem, SAVE):
        return 0
    q, _, v, g, beta = tensors[:5]
    strength = beta if beta is not None else tensors[_CU_SEQLENS + 1]
    tokens, sequences = q.shape[0] * q.shape[1], _sequences(tensors)
    default = _CODES[torch.float32]
    a, b, c = _saved_coefficients(
        problem,
        64,  # checkpoint_interval
        sm_limit,
        _CODES[q.dtype],
        default if g is None else _CODES[g.dtype],
        default if strength is None else _CODES[strength.dtype],
        0,  # checkpoint_dtype
        _bucket(tokens),
        _bucket(sequences),
        int(q.shape[2]),
        int(v.shape[2]),
        int(q.shape[3]),
        int(v.shape[3]),
        1 if q.device.type == "cpu" else 2,
        q.device.index or 0,
        implementation,
    )
    return a * tokens + b * sequences + c


def _forward_fake(
    problem: int, scale: float, lower_bound: float, *args: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """The outputs, not yet written: out, final_state (empty when it is not asked for) and what backward will read."""
    *tensors, sm_limit, implementation, _, output_final_state = args
    q, _, v = tensors[:3]
    out = q.new_empty(v.shape)
    if output_final_state:
        matrix = (q.shape[-1], v.shape[-1])
        if digit(problem, LAYOUT) == STATE_LAYOUTS["value_key"]:
            matrix = matrix[::-1]
        shape = (_sequences(tensors), v.shape[2], *matrix)
        state = q.new_empty(shape, dtype=_DTYPES[digit(problem, STATE_DTYPE)])
    else:
        state = q.new_empty((0,))
    size = _saved_size(problem, tensors, sm_limit, implementation)
    return out, state, q.new_empty((size,), dtype=torch.uint8)


def _forward(
    problem: int, scale: float, lower_bound: float, *args: Any
) -> tuple[Tensor, Tensor, Tensor]:
    *tensors, sm_limit, implementation, _, output_final_state = args
    _check_rank(tensors)
    out, state, saved = _forward_fake(problem, scale, lower_bound, *args)
    _native.forward(
        problem,
        scale,
        lower_bound,
        *_native_inputs(tensors, out, state if output_final_state else None),
        *(None,) * 6,  # start_positions to transition
        saved if digit(problem, SAVE) else None,
        0,
        64,
        sm_limit,
        implementation,
    )
    return out, state, saved


def _check_rank(tensors: list) -> None:
    """What is read here before the binding checks everything."""
    for name, x in zip("qkv", tensors):
        if x.dim() != 4:
            raise ValueError(
                f"linattn: {name} has shape {list(x.shape)}; expected 4 axes, [B, T, heads, dim]"
            )
    cu_seqlens = tensors[_CU_SEQLENS]
    if cu_seqlens is not None and (cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 2):
        raise ValueError(
            f"linattn: cu_seqlens has shape {list(cu_seqlens.shape)}; expected [N + 1] with N at least 1"
        )


_define(
    "forward",
    f"{_NUMBERS}, {_TENSORS}, int sm_limit, str? implementation, str? backward_implementation, "
    "bool output_final_state) -> (Tensor out, Tensor final_state, Tensor saved)",
    _forward,
    _forward_fake,
)

# ---- its gradient -------------------------------------------------------------------------------------------------


def _backward_fake(*args: Any) -> tuple[Tensor, ...]:
    """The gradients, not yet written; empty where none is wanted."""
    *tensors, wanted, _, _, _ = args[6:]
    q = tensors[0]
    return tuple(
        torch.empty(tensors[i].shape, dtype=tensors[i].dtype, device=q.device)
        if want
        else q.new_empty((0,))
        for i, want in zip(_DIFFERENTIABLE, wanted)
    )


def _backward(*args: Any) -> tuple[Tensor, ...]:
    dout, dfinal_state, saved, *numbers = args[:6]
    *tensors, wanted, sm_limit, implementation, forward_implementation = args[6:]
    gradients = _backward_fake(*args)
    _native.backward(
        *numbers,
        *_native_inputs(tensors, dout, dfinal_state),
        saved,
        *(d if want else None for d, want in zip(gradients, wanted)),
        forward_implementation,
        0,
        64,
        sm_limit,
        implementation,
    )
    return gradients


_define(
    "backward",
    f"Tensor? dout, Tensor? dfinal_state, Tensor saved, {_NUMBERS}, {_TENSORS}, bool[] wanted, int sm_limit, "
    "str? implementation, str? forward_implementation) -> ("
    + ", ".join(["Tensor"] * len(_DIFFERENTIABLE))
    + ")",
    _backward,
    _backward_fake,
)


def _setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
    # So that no gradient on one of the outputs is told apart from a zero one.
    ctx.set_materialize_grads(False)
    ctx.numbers, ctx.rest = inputs[:3], inputs[3 + len(_INPUTS) :]
    ctx.save_for_backward(*inputs[3 : 3 + len(_INPUTS)], output[2])
    ctx.mark_non_differentiable(output[2])


def _autograd(ctx: Any, dout: Tensor | None, dfinal_state: Tensor | None, _: Any) -> tuple:
    *tensors, saved = ctx.saved_tensors
    problem = ctx.numbers[0]
    sm_limit, implementation, backward_implementation, output_final_state = ctx.rest
    wanted = [tensors[i] is not None and ctx.needs_input_grad[3 + i] for i in _DIFFERENTIABLE]
    if not output_final_state:
        dfinal_state = None
    if dfinal_state is not None:
        dfinal_state = dfinal_state.contiguous().to(_DTYPES[digit(problem, STATE_DTYPE)])
    computed = _operators.backward(
        _last_axis_dense(dout),
        dfinal_state,
        saved,
        *ctx.numbers,
        *tensors,
        wanted,
        sm_limit,
        backward_implementation,
        implementation,
    )
    gradients = [None] * (3 + len(_INPUTS) + len(ctx.rest))
    for i, want, gradient in zip(_DIFFERENTIABLE, wanted, computed):
        gradients[3 + i] = gradient if want else None
    return tuple(gradients)


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

# The binding's order. `in_place`: the initial state is final_state; a schema may not name a mutated tensor twice.
_INTO = (
    f"{_NUMBERS}, Tensor q, Tensor k, Tensor v, Tensor? g, Tensor? beta, Tensor? a_log, Tensor? dt_bias, "
    "Tensor? initial_state, Tensor? cu_seqlens, Tensor(a!) out, Tensor(b!)? final_state, Tensor? erase, "
    "Tensor? write, Tensor? read_slots, Tensor? has_initial_state, Tensor? write_slots"
)
_AT_THE_END = "int first_slot, int checkpoint_interval, int sm_limit, str? implementation, bool in_place) -> ()"
_INITIAL_STATE, _FINAL_STATE = 3 + 7, 3 + 10


def _into(native: Any) -> Any:
    def body(*args: Any) -> None:
        *args, in_place = args
        if in_place:
            args[_INITIAL_STATE] = args[_FINAL_STATE]
        native(*args)

    return body


_define(
    "forward_",
    f"{_INTO}, Tensor? start_positions, Tensor(c!)? checkpoints, Tensor? checkpoint_offsets, "
    "Tensor? checkpoint_positions, Tensor? checkpoint_slots, Tensor(d!)? transition, Tensor? saved, "
    + _AT_THE_END,
    _into(_native.forward),
    lambda *args: None,
)
_define(
    "step_",
    f"{_INTO}, Tensor? accepted, Tensor? parents, Tensor(c!)? replay, Tensor? counts, Tensor? picks, "
    "Tensor? conv_weight, Tensor? conv_weight_k, Tensor? conv_weight_v, Tensor? conv_bias, Tensor? conv_bias_k, "
    "Tensor? conv_bias_v, Tensor(d!)? conv_state, Tensor(e!)? conv_state_k, Tensor(f!)? conv_state_v, "
    "Tensor? conv_read_slots, Tensor? conv_write_slots, Tensor? conv_accepted, Tensor? z, Tensor? norm_weight, "
    f"float norm_epsilon, {_AT_THE_END}",
    _into(_native.step),
    lambda *args: None,
)

_define(
    "commit_",
    "int problem, Tensor replay, Tensor(a!) pool, Tensor counts, Tensor? read_slots, Tensor? write_slots, "
    "Tensor? has_initial_state, Tensor? picks, Tensor? cu_seqlens, Tensor? pools, int heads, int first_slot, "
    "int sm_limit, str? implementation) -> ()",
    _native.commit,
    lambda *args: None,
)

# ---- what _call.py calls ------------------------------------------------------------------------------------------


def is_functional(which: str, arrays: dict[str, Any]) -> bool:
    """Whether the call is one of `linattn::forward`; gradients want that and go with nothing that the others do."""
    of_the_caller = [name for name, x in arrays.items() if x is not None and name not in _INPUTS]
    wants_gradient = torch.is_grad_enabled() and any(
        x is not None and x.requires_grad
        for name, x in arrays.items()
        if which == "step" or name in _INPUTS
    )
    if not wants_gradient:
        return which == "forward" and not of_the_caller
    if which == "step":
        raise NotImplementedError(
            "an input requires a gradient; step has none: use forward, or torch.no_grad()"
        )
    for name in of_the_caller:
        raise NotImplementedError(
            f"{name} is given and an input requires a gradient; expected one of the two "
            "(torch.no_grad() for serving)"
        )
    return True


def forward(
    numbers: tuple[int, float, float],
    arrays: dict[str, Any],
    counts: tuple,
    output_final_state: bool,
    backward_implementation: str | None,
) -> tuple[Tensor, Tensor | None]:
    problem, scale, lower_bound = numbers
    tensors = [arrays[name] for name in _INPUTS]
    if digit(problem, STATE_DTYPE) == 0:
        initial_state = arrays["initial_state"]
        dtype = torch.float32 if initial_state is None else initial_state.dtype
        problem |= DTYPES[float_dtype("initial_state", dtype)] << STATE_DTYPE
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors):
        problem |= 1 << SAVE
    _, _, sm_limit, implementation = counts
    out, final_state, _ = _operators.forward(
        problem,
        scale,
        lower_bound,
        *tensors,
        sm_limit,
        implementation,
        backward_implementation,
        output_final_state,
    )
    return out, final_state if output_final_state else None


def commit(arguments: list) -> None:
    _operators.commit_(*arguments)


def into(which: str, arguments: list) -> None:
    in_place = (
        arguments[_INITIAL_STATE] is not None
        and arguments[_INITIAL_STATE] is arguments[_FINAL_STATE]
    )
    if in_place:
        arguments[_INITIAL_STATE] = None
    getattr(_operators, f"{which}_")(*arguments, in_place)
