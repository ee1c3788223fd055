# SPDX-License-Identifier: Apache-2.0
"""Loads the shared library. The functions take the arguments of bindings/ffi.cpp, in its order."""

from __future__ import annotations

from pathlib import Path

try:
    import tvm_ffi
except ImportError as error:
    raise ImportError(
        "linattn needs tvm-ffi to reach its library: pip install 'apache-tvm-ffi>=0.1.11,<0.2'"
    ) from error

_LIBRARY = Path(__file__).parent / "_lib" / "liblinattn_ffi.so"

if not _LIBRARY.exists():
    raise ImportError(
        f"linattn's library is not built: {_LIBRARY.name} is missing in {_LIBRARY.parent}; "
        "run `make demo` in the source tree, or `pip install .`"
    )

# tvm-ffi maps ValueError, TypeError and RuntimeError by itself.
tvm_ffi.register_error("NotImplementedError", NotImplementedError)

_module = tvm_ffi.load_module(str(_LIBRARY))

forward = _module.get_function("forward")
backward = _module.get_function("backward")
step = _module.get_function("step")
commit = _module.get_function("commit")
explain = _module.get_function("explain")
saved_coefficients = _module.get_function("saved_coefficients")
implementations = _module.get_function("implementations")
set_threads = _module.get_function("set_threads")
version = _module.get_function("version")
