# SPDX-License-Identifier: Apache-2.0
"""What tests of this library share: the error, its bound, and poisoned memory. Torch tensors and NumPy arrays alike."""

from __future__ import annotations

from typing import Any

# Half a unit in the last place, relative to a number.
ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24}

# Multiples of the rounding that a result may be off by, and the caps that no reasoning may exceed. In float32 the
# sums of an algorithm dominate, in 16 bits the rounding of inputs and outputs.
_FACTOR = {"bfloat16": 2.0, "float16": 4.0, "float32": 160.0}
_CAP = {
    "out": {"bfloat16": 7e-3, "float16": 2e-3, "float32": 1e-5},
    "state": {"bfloat16": 5e-3, "float16": 2e-3, "float32": 1e-5},
    "gradient": {"bfloat16": 1.5e-2, "float16": 4e-3, "float32": 1e-5},
}
_SHARE = {"out": 1.0, "state": 0.75, "gradient": 2.0}


def tolerance(dtype: Any, what: str = "out") -> float:
    """Largest `error_ratio` of a result ("out", "state" or "gradient") computed from inputs of this dtype."""
    name = str(dtype).removeprefix("torch.")
    return min(_CAP[what][name], _SHARE[what] * _FACTOR[name] * ROUNDING[name])


def error_ratio(x: Any, reference: Any) -> float:
    """rms(x - reference) / rms(reference), in double; infinite when x is not finite where the reference is."""
    import numpy

    x, reference = (_double(a) for a in (x, reference))
    if x.shape != reference.shape:
        raise AssertionError(f"shape {x.shape}; expected {reference.shape}")
    if not numpy.isfinite(reference).all():
        raise AssertionError("the reference is not finite")
    reference = numpy.where(abs(reference) < 2.0**-126, 0.0, reference)  # below float32
    if not numpy.isfinite(x).all():
        return float("inf")
    size = float(numpy.sqrt(numpy.mean(reference**2))) if reference.size else 0.0
    error = float(numpy.sqrt(numpy.mean((x - reference) ** 2))) if x.size else 0.0
    return error if size == 0.0 else error / size


def assert_close(x: Any, reference: Any, bound: float, name: str = "result") -> None:
    ratio = error_ratio(x, reference)
    if not ratio <= bound:
        raise AssertionError(f"{name}: error ratio {ratio:.3g}; expected at most {bound:.3g}")


def poison(x: Any) -> Any:
    """Fills a floating-point tensor with NaN: what is read before it is written shows."""
    if hasattr(x, "fill_"):
        return x.detach().fill_(float("nan")) if x.is_floating_point() else x
    if x.dtype.kind == "f":
        x.fill(float("nan"))
    return x


def _double(x: Any) -> Any:
    import numpy

    if hasattr(x, "detach"):
        return x.detach().double().cpu().numpy()
    return numpy.asarray(x, dtype=numpy.float64)
