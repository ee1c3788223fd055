# SPDX-License-Identifier: Apache-2.0
"""CuPy's and JAX's arrays on the GPU, through DLPack: the results of the same call on torch tensors."""

import os

import linattn
import pytest
import torch
from gpu import ids, inputs, states, to_gpu

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def library(name):
    """A module that sees the GPU, or the test is skipped."""
    module = pytest.importorskip(name)
    if name == "jax":
        importable = pytest.importorskip("jax.numpy") is not None
        if not importable or not any(device.platform == "gpu" for device in module.devices()):
            pytest.skip("JAX sees no GPU")
    return module


def expected(x, words, h0):
    return linattn.forward(**to_gpu(x), **words, initial_state=h0.cuda(), output_final_state=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_cupy(dtype):
    cupy = library("cupy")
    x, words = inputs("kda", 2, 40, dtype)
    h0 = states(2)
    arrays = {name: cupy.asarray(a.numpy()) for name, a in x.items()}
    out, state = linattn.forward(
        **arrays, **words, initial_state=cupy.asarray(h0.numpy()), output_final_state=True
    )
    assert isinstance(out, cupy.ndarray) and isinstance(state, cupy.ndarray)
    o, S = expected(x, words, h0)
    assert torch.equal(torch.from_dlpack(out), o) and torch.equal(torch.from_dlpack(state), S)


def test_cupy_pool_in_place_and_in_its_stream():
    cupy = library("cupy")
    x, words = inputs("gdn", 2, 3)
    pool, slots = states(5), ids(4, 1)
    there = pool.cuda()
    o, _ = linattn.step(
        **to_gpu(x), **words, pool=there, read_slots=slots.cuda(), write_slots=slots.cuda()
    )
    with cupy.cuda.Stream(non_blocking=True) as stream:
        arrays = {name: cupy.asarray(a.numpy()) for name, a in x.items()}
        mine, slots = cupy.asarray(pool.numpy()), cupy.asarray(slots.numpy())
        out, same = linattn.step(**arrays, **words, pool=mine, read_slots=slots, write_slots=slots)
        stream.synchronize()
    assert same is mine
    assert torch.equal(torch.from_dlpack(out), o) and torch.equal(torch.from_dlpack(mine), there)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_jax(dtype):
    jax = library("jax")
    x, words = inputs("kda", 2, 40, dtype)
    h0 = states(2)
    arrays = {name: jax.dlpack.from_dlpack(a) for name, a in to_gpu(x).items()}
    out, state = linattn.forward(
        **arrays,
        **words,
        initial_state=jax.dlpack.from_dlpack(h0.cuda()),
        output_final_state=True,
    )
    assert isinstance(out, jax.Array) and isinstance(state, jax.Array)
    o, S = expected(x, words, h0)
    out, state = out.block_until_ready(), state.block_until_ready()
    assert torch.equal(torch.from_dlpack(out), o) and torch.equal(torch.from_dlpack(state), S)
    for name, a in x.items():
        assert torch.equal(torch.from_dlpack(arrays[name]).cpu(), a), f"{name} was written"


def test_jax_arrays_cannot_be_written():
    jax = library("jax")
    x, words = inputs("kda", 2, 3)
    arrays = {name: jax.dlpack.from_dlpack(a) for name, a in to_gpu(x).items()}
    pool = jax.dlpack.from_dlpack(states(2).cuda())
    with pytest.raises(TypeError, match="cannot be written"):
        linattn.step(**arrays, **words, pool=pool)
