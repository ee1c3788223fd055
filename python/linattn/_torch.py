# SPDX-License-Identifier: Apache-2.0
"""PyTorch as the doors see it: when a call may go straight to the library, and outputs from PyTorch's allocator.

Eager calls without gradients do, in a few microseconds (docs/host.md). All others, torch.compile's among them, go
through the ops of _ops.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active, _is_tracing, _len_torch_dispatch_stack
from torch.compiler import is_compiling

from ._frameworks import expect_array

name = "torch"
_PLAIN = frozenset({Tensor, torch.nn.Parameter})  # a subclass has to see an op


def direct(*tensors: Tensor | None) -> bool:
    """Whether plain tensors come, none wants a gradient, and no compiler, transform or mode has to see an op."""
    if (
        is_compiling()
        or _are_functorch_transforms_active()
        or _len_torch_dispatch_stack()
        or _is_tracing()
    ):
        return False
    plain, grad = _PLAIN, torch.is_grad_enabled()
    for x in tensors:  # noqa: SIM110  (a generator costs a microsecond)
        if x is not None and (type(x) not in plain or (grad and x.requires_grad)):
            return False
    return True


def input(name: str, x: Tensor | None) -> Tensor | None:
    return expect_array(name, x, Tensor, "torch.Tensor")


output = input


def empty(shape: tuple[int, ...], dtype: str, like: Tensor) -> Tensor:
    return torch.empty(shape, dtype=getattr(torch, dtype), device=like.device)


def empty_like(x: Tensor) -> Tensor:
    """Contiguous."""
    return torch.empty_like(x) if x.is_contiguous() else x.new_empty(x.shape)


def call(which: str, like: Tensor, arguments: list[Any]) -> None:
    """Through an op that writes into its arguments."""
    from . import _ops

    _ops.into(which, arguments)
