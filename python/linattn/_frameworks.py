# SPDX-License-Identifier: Apache-2.0
"""Array libraries as the native doors see them: what an argument may be, how to allocate, how to call.

PyTorch has _torch.py. NumPy, CuPy and eager JAX lend their memory through DLPack. None is imported here: who has an
array has imported its library.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import tvm_ffi

from . import _native
from .op import DTYPES, LAYOUT, STATE_DTYPE, STATE_LAYOUTS, digit, float_dtype

Array = Any  # torch.Tensor, numpy.ndarray, cupy.ndarray or jax.Array


def expect_array(name: str, x: Array, array: type, text: str) -> Array:
    if x is not None and not isinstance(x, array):
        raise TypeError(f"{name} is a {_type_name(x)}; expected a {text} as q")
    return x


def _type_name(x: Any) -> str:
    return f"{type(x).__module__}.{type(x).__qualname__}".removeprefix("builtins.")


def dtype_name(x: Array) -> str:
    return str(x.dtype).removeprefix("torch.")


def new_state(empty: Callable[..., Array], code: int, inputs: tuple) -> Array | None:
    """A final state; None when shapes are so wrong that the library will say so."""
    q, _, v, *_, initial_state, cu_seqlens = inputs
    if len(q.shape) != 4 or len(v.shape) != 4:
        return None
    if cu_seqlens is not None and len(cu_seqlens.shape) != 1:
        return None
    asked = digit(code, STATE_DTYPE)
    if asked:
        dtype = next(name for name, number in DTYPES.items() if number == asked)
    elif initial_state is not None:
        dtype = float_dtype("initial_state", dtype_name(initial_state))
    else:
        dtype = "float32"
    sequences = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    matrix = (q.shape[3], v.shape[3])
    if digit(code, LAYOUT) == STATE_LAYOUTS["value_key"]:
        matrix = matrix[::-1]
    return empty((sequences, v.shape[2], *matrix), dtype, q)


# ---- libraries that lend through DLPack ---------------------------------------------------------------------------


class _Library:
    """What NumPy, CuPy and JAX have in common; `module` has NumPy's interface."""

    def __init__(self, name: str, module: Any, array: type) -> None:
        self.name, self.module, self.array = name, module, array

    def run(self, *call: Any) -> None:
        """The short way; there is none."""

    def input(self, name: str, x: Array) -> Array:
        return expect_array(name, x, self.array, self.name)

    def output(self, name: str, x: Array) -> Array:
        return self.input(name, x)

    def empty(self, shape: tuple[int, ...], dtype: str, like: Array) -> Array:
        return self.module.empty(shape, dtype)

    def lend(self, x: Array) -> Any:
        return x

    def call(self, which: str, like: Array, arguments: list[Any]) -> None:
        """Runs a function of the library, with scratch from the framework's allocator."""
        scratch = []

        def allocate(size: int) -> Any:
            scratch.append(self.empty((size,), "uint8", like))
            return tvm_ffi.from_dlpack(self.lend(scratch[-1]))

        lent = (self.lend(x) if isinstance(x, self.array) else x for x in arguments)
        with self.stream_of(like):
            getattr(_native, which)(*lent, tvm_ffi.convert(allocate))
        self.wait(like)

    def commit(self, like: Array, arguments: list[Any], pools: Array | None) -> None:
        self.call("commit", like, arguments)

    def stream_of(self, like: Array) -> Any:
        """A context in which the library runs where `like` is computed."""
        return nullcontext()

    def wait(self, like: Array) -> None:
        """Until the scratch may go: at once where memory is given back in the order of the stream."""


class _Numpy(_Library):
    def input(self, name: str, x: Array) -> Array:
        if super().input(name, x) is None or x.flags.aligned:
            return x
        raise ValueError(f"{name} is not aligned to its element; expected an aligned array")

    def output(self, name: str, x: Array) -> Array:
        if self.input(name, x) is None or x.flags.writeable:
            return x
        raise ValueError(f"{name} is read-only; expected a writeable array")

    def empty(self, shape: tuple[int, ...], dtype: str, like: Array) -> Array:
        if dtype == "bfloat16":
            raise ValueError(
                "state_dtype is bfloat16, which NumPy lacks; expected float16 or float32"
            )
        return super().empty(shape, dtype, like)

    def lend(self, x: Array) -> Any:
        return x if x.flags.writeable else self.module.asarray(_ReadOnly(x))


class _ReadOnly:
    """Lends NumPy's read-only memory to DLPack, which knows no read-only; the library never writes inputs."""

    def __init__(self, array: Array) -> None:
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface
        self.owner = array


class _Cupy(_Library):
    """Runs in CuPy's current stream."""

    def empty(self, shape: tuple[int, ...], dtype: str, like: Array) -> Array:
        with like.device:
            return super().empty(shape, dtype, like)

    def lend(self, x: Array) -> Any:
        return _Lent(x, self._stream(x))

    def stream_of(self, like: Array) -> Any:
        return _cuda_stream(like, self._stream(like))

    def _stream(self, x: Array) -> int:
        return self.module.cuda.get_current_stream(x.device.id).ptr


class _Jax(_Library):
    """Eager JAX shows no current stream and frees memory by its own: a call waits for its arguments and results."""

    def input(self, name: str, x: Array) -> Array:
        if super().input(name, x) is None:
            return x
        if isinstance(x, self.module.core.Tracer) or len(x.devices()) != 1:
            raise TypeError(f"{name} is traced or sharded; expected a jax.Array on one device")
        return x.block_until_ready()

    def output(self, name: str, x: Array) -> Array:
        if x is None:
            return x
        raise TypeError(
            f"{name} is given, and a jax.Array cannot be written; expected None: results are new arrays"
        )

    def empty(self, shape: tuple[int, ...], dtype: str, like: Array) -> Array:
        return self.module.numpy.empty(shape, dtype, device=like.device).block_until_ready()

    def stream_of(self, like: Array) -> Any:
        stream = self._stream(like)
        return nullcontext() if stream is None else _cuda_stream(like, stream)

    def wait(self, like: Array) -> None:
        stream = self._stream(like)
        if stream is not None:  # what JAX imports is ready when all before it in the stream is
            self.module.dlpack.from_dlpack(_Lent(like, stream)).block_until_ready()

    def _stream(self, x: Array) -> int | None:
        """Where JAX waits for what others write."""
        return (
            None if x.device.platform == "cpu" else x.device.get_stream_for_external_ready_events()
        )


class _Lent:
    """Offers an array to a consumer in a stream of ours, not in the one that it asks for."""

    def __init__(self, array: Array, stream: int) -> None:
        self.array, self.stream = array, stream or 1  # 1: DLPack's word for CUDA's default stream

    def __dlpack__(self, stream: int | None = None, **options: Any) -> Any:
        return self.array.__dlpack__(stream=self.stream, **options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


def _cuda_stream(like: Array, stream: int) -> Any:
    _, index = like.__dlpack_device__()
    return tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", index), stream)


# ---- which one ----------------------------------------------------------------------------------------------------

_BY_TYPE: dict[type, Any] = {}


def framework_of(q: Array) -> Any:
    """The framework that q belongs to."""
    framework = _BY_TYPE.get(type(q))
    if framework is None:
        framework = _BY_TYPE[type(q)] = _find(q)
    return framework


def _find(q: Array) -> Any:
    def loaded(name: str, array: str) -> Any:
        module = sys.modules.get(name)
        return module if isinstance(q, getattr(module, array, ())) else None

    if loaded("torch", "Tensor"):
        from . import _torch

        return _torch
    for library, name, array in (
        (_Numpy, "numpy", "ndarray"),
        (_Cupy, "cupy", "ndarray"),
        (_Jax, "jax", "Array"),
    ):
        module = loaded(name, array)
        if module is not None:
            return library(f"{name}.{array}", module, getattr(module, array))
    raise TypeError(
        f"q is a {_type_name(q)}; expected a torch.Tensor, numpy.ndarray, cupy.ndarray or jax.Array"
    )
