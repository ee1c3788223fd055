# SPDX-License-Identifier: Apache-2.0
"""PyTorch and NumPy as the native doors see them: how to allocate, and what an argument may be."""

from __future__ import annotations

import sys
from typing import Any

Array = Any  # torch.Tensor or numpy.ndarray


class _ReadOnly:
    """Lends NumPy's read-only memory to DLPack, which knows no read-only; the library never writes inputs."""

    def __init__(self, array: Array) -> None:
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface
        self.owner = array


class _Numpy:
    name = "numpy"

    def __init__(self, numpy: Any) -> None:
        self.numpy = numpy

    def empty(self, shape: tuple[int, ...], dtype: str, like: Array) -> Array:
        if dtype == "bfloat16":
            raise ValueError(
                "state_dtype is bfloat16, which NumPy lacks; expected float16 or float32"
            )
        return self.numpy.empty(shape, dtype)

    def input(self, name: str, x: Array) -> Array:
        if x is None:
            return None
        if not isinstance(x, self.numpy.ndarray):
            raise TypeError(f"{name} is a {_type_name(x)}; expected a numpy.ndarray as q")
        if not x.flags.aligned:
            raise ValueError(f"{name} is not aligned to its element; expected an aligned array")
        return x if x.flags.writeable else self.numpy.asarray(_ReadOnly(x))

    def output(self, name: str, x: Array) -> Array:
        if x is not None and not x.flags.writeable:
            raise ValueError(f"{name} is read-only; expected a writeable array")
        return self.input(name, x)


class _Torch:
    name = "torch"

    def __init__(self, torch: Any) -> None:
        self.torch = torch

    def empty(self, shape: tuple[int, ...], dtype: str, like: Array) -> Array:
        return self.torch.empty(shape, dtype=getattr(self.torch, dtype), device=like.device)

    def input(self, name: str, x: Array) -> Array:
        if x is not None and not isinstance(x, self.torch.Tensor):
            raise TypeError(f"{name} is a {_type_name(x)}; expected a torch.Tensor as q")
        return x

    output = input


def _type_name(x: Any) -> str:
    return f"{type(x).__module__}.{type(x).__qualname__}".removeprefix("builtins.")


_frameworks: dict[str, Any] = {}


def framework_of(q: Array) -> Any:
    """The framework that q belongs to. Neither is imported here: who has a tensor has imported it."""
    for name, array, wrap in (("torch", "Tensor", _Torch), ("numpy", "ndarray", _Numpy)):
        module = sys.modules.get(name)
        if module is not None and isinstance(q, getattr(module, array)):
            if name not in _frameworks:
                _frameworks[name] = wrap(module)
            return _frameworks[name]
    raise TypeError(f"q is a {_type_name(q)}; expected a torch.Tensor or a numpy.ndarray")


def dtype_name(x: Array) -> str:
    return str(x.dtype).removeprefix("torch.")


def float_dtype(name: str, dtype: Any) -> str:
    dtype = str(dtype).removeprefix("torch.")
    if dtype not in ("bfloat16", "float16", "float32"):
        raise ValueError(f"{name} is {dtype}; expected bfloat16, float16 or float32")
    return dtype
