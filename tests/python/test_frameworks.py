# SPDX-License-Identifier: Apache-2.0
"""NumPy, CuPy and eager JAX without PyTorch: each in a process in which torch cannot be imported."""

import importlib.util
import os
import subprocess
import sys

import pytest
import torch

pytestmark = pytest.mark.no_poison

PRELUDE = """
import sys
sys.modules["torch"] = None
import numpy
import linattn

rng = numpy.random.default_rng(1)
H, HV, K, V = 2, 4, 16, 24
KDA = {"op": "kda", "gate_input": "log_decay", "beta_input": "value", "state_layout": "key_value"}

def arrays(batch, T, dtype="float32", H=H, HV=HV, K=K, V=V):
    norm = lambda x: x / numpy.linalg.norm(x, axis=-1, keepdims=True)
    return {
        "q": norm(rng.standard_normal((batch, T, H, K))).astype(dtype),
        "k": norm(rng.standard_normal((batch, T, H, K))).astype(dtype),
        "v": rng.standard_normal((batch, T, HV, V)).astype(dtype),
        "g": -rng.random((batch, T, HV, K), dtype="float32"),
        "beta": rng.random((batch, T, HV), dtype="float32"),
    }

def close(x, y, bound=1e-5):
    x, y = (numpy.asarray(a, dtype="float64") for a in (x, y))
    assert x.shape == y.shape, (x.shape, y.shape)
    error = numpy.sqrt(((x - y) ** 2).mean() / (y ** 2).mean())
    assert error <= bound, error

def raises(kind, text, call):
    try:
        call()
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError("accepted")
"""

NUMPY = """
x = arrays(2, 9)
out, state = linattn.forward(**x, **KDA, output_final_state=True)
pool = numpy.zeros((2, HV, K, V), "float32")
for t in range(9):
    o, same = linattn.step(**{name: a[:, t : t + 1] for name, a in x.items()}, **KDA, pool=pool)
    assert same is pool
    close(o, out[:, t : t + 1])
close(pool, state)
"""

CUPY = """
import cupy

for dtype, bound, sizes in (
    ("float32", 1e-5, (2, 50)),
    ("float16", 2e-3, (2, 150)),
    ("float16", 2e-3, (1, 16384, "float16", 1, 1, 64, 64)),  # split: takes scratch
):
    x = arrays(sizes[0], sizes[1], dtype, *sizes[3:])
    expected, S = linattn.forward(**x, **KDA, output_final_state=True)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        slow = cupy.ones((4096, 4096), "float32")
        for _ in range(20):
            slow = slow @ slow * 1e-4
        zero = (slow * 0).sum().astype(dtype)  # the inputs come late in this stream
        y = {name: cupy.asarray(a) + zero.astype(a.dtype) for name, a in x.items()}
        out, state = linattn.forward(**y, **KDA, output_final_state=True)
        assert isinstance(out, cupy.ndarray) and out.dtype == dtype
        total = out + 0
        y = None  # memory goes back while the kernel may still run
    close(cupy.asnumpy(total), expected, bound)
    close(cupy.asnumpy(state), S, bound)

x = {name: cupy.asarray(a) for name, a in arrays(2, 9).items()}
out, state = linattn.forward(**x, **KDA, output_final_state=True)
pool = cupy.zeros((5, HV, K, V), "float32")
slots = cupy.asarray([3, 1], dtype="int32")
buffer = cupy.zeros((2, 1, HV, V + 8), "float32")
for t in range(9):
    token = {name: a[:, t : t + 1] for name, a in x.items()}
    o, same = linattn.step(
        **token, **KDA, pool=pool, read_slots=slots, write_slots=slots, out=buffer[..., :V]
    )
    assert same is pool
    close(cupy.asnumpy(o), cupy.asnumpy(out[:, t : t + 1]))
close(cupy.asnumpy(pool[slots]), cupy.asnumpy(state))
assert (buffer[..., V:] == 0).all()
raises(TypeError, "k is a numpy.ndarray; expected a cupy.ndarray", lambda: linattn.forward(
    **{**x, "k": cupy.asnumpy(x["k"])}, **KDA))
"""

JAX = """
import jax
import jax.numpy as jnp

for dtype, bound, sizes in (
    ("float32", 1e-5, (2, 50)),
    ("bfloat16", 1e-2, (2, 150)),
    ("float16", 2e-3, (1, 16384, "float16", 1, 1, 64, 64)),
):
    x = arrays(sizes[0], sizes[1], "float32", *sizes[3:])
    y = {name: jnp.asarray(a, dtype if name in "qkv" else None) for name, a in x.items()}
    x = {name: numpy.asarray(a, "float32") for name, a in y.items()}
    expected, S = linattn.forward(**x, **KDA, output_final_state=True)
    y["g"] = y["g"] * jnp.exp(jnp.zeros(()))  # computed, not copied
    out, state = linattn.forward(**y, **KDA, output_final_state=True)
    assert isinstance(out, jax.Array) and out.dtype == dtype
    close((out * 2).astype("float32") / 2, expected, bound)
    close(state, S, bound)
    token = {name: a[:, :1] for name, a in y.items()}
    o, state = linattn.step(**token, **KDA, initial_state=state * 0, output_final_state=True)
    close(o.astype("float32"), expected[:, :1], bound)
raises(TypeError, "cannot be written", lambda: linattn.step(**token, **KDA, pool=state))
raises(TypeError, "traced", lambda: jax.jit(lambda q: linattn.forward(**{**y, "q": q}, **KDA))(y["q"]))
"""

CUDA = torch.cuda.is_available()


def installed(name):
    return importlib.util.find_spec(name) is not None


@pytest.mark.parametrize(
    "code",
    [
        NUMPY,
        pytest.param(
            CUPY,
            marks=pytest.mark.skipif(not (CUDA and installed("cupy")), reason="CuPy and a GPU"),
        ),
        pytest.param(JAX, marks=pytest.mark.skipif(not installed("jax"), reason="JAX")),
    ],
    ids=["numpy", "cupy", "jax"],
)
def test_without_torch(code):
    result = subprocess.run(
        [sys.executable, "-c", PRELUDE + code],
        env={**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-4000:]
