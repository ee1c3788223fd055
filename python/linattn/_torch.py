# SPDX-License-Identifier: Apache-2.0
"""PyTorch as the doors see it: when a call may go straight to the library, and outputs from PyTorch's allocator.

Eager calls without gradients do, in a few microseconds (docs/host.md). All others, torch.compile's among them, go
through the ops of _ops.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, is_grad_enabled
from torch._C import _are_functorch_transforms_active, _is_tracing, _len_torch_dispatch_stack
from torch.compiler import is_compiling

from . import _native
from ._frameworks import expect_array, new_state

name = "torch"
_PLAIN = frozenset({Tensor, torch.nn.Parameter})  # a subclass has to see an op


def _is_watched() -> bool:
    """Whether a compiler, a transform or a mode has to see an op."""
    return bool(
        is_compiling()
        or _are_functorch_transforms_active()
        or _len_torch_dispatch_stack()
        or _is_tracing()
    )


def run(
    native: Any,
    numbers: tuple[int, float, float],
    inputs: tuple,
    out: Tensor | None,
    final_state: Tensor | None,
    output_final_state: bool,
    rest: tuple,
    counts: tuple,
) -> tuple[Tensor, Tensor | None] | None:
    """Straight to the library, if plain tensors come, none wants a gradient, and no compiler, transform or mode has to
    see an op; else None."""
    if _is_watched():
        return None
    plain, grad = _PLAIN, is_grad_enabled()
    for x in (*inputs, out, final_state, *rest):
        if x is not None and (type(x) not in plain or (grad and x.requires_grad)):
            return None
    v, initial_state = inputs[2], inputs[7]
    if v is None:
        return None
    if out is None:
        out = torch.empty_like(v) if v.is_contiguous() else v.new_empty(v.shape)
    if output_final_state and final_state is None:
        if initial_state is not None and initial_state.is_contiguous() and not rest:
            final_state = torch.empty_like(initial_state)
        else:
            final_state = new_state(empty, numbers[0], inputs)
    native(*numbers, *inputs, out, final_state, *rest, *counts)
    return out, final_state


def input(name: str, x: Tensor | None) -> Tensor | None:
    return expect_array(name, x, Tensor, "torch.Tensor")


output = input


def empty(shape: tuple[int, ...], dtype: str, like: Tensor) -> Tensor:
    return torch.empty(shape, dtype=getattr(torch, dtype), device=like.device)


def commit(like: Tensor, arguments: list[Any], pools: Tensor | None) -> None:
    tensors = [x for x in arguments if isinstance(x, Tensor)]
    if is_grad_enabled() and any(x.requires_grad for x in tensors):
        raise NotImplementedError(
            "an input requires a gradient; commit has none: use torch.no_grad()"
        )
    if _is_watched() or any(type(x) not in _PLAIN for x in tensors):
        if pools is not None:
            raise NotImplementedError(
                "pools is given and a compiler or a transform is active, which sees no addresses; expected "
                "torch.compiler.disable around the commit, or one call for each pool"
            )
        from . import _ops

        _ops.commit(arguments)
    else:
        _native.commit(*arguments)


def call(which: str, like: Tensor, arguments: list[Any]) -> None:
    """Through an op that writes into its arguments."""
    from . import _ops

    _ops.into(which, arguments)
