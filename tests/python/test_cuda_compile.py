# SPDX-License-Identifier: Apache-2.0
"""torch.compile on CUDA tensors: no graph break, the eager results (entry I-01)."""

import linattn
import pytest
import torch
from gpu import inputs, states, to_gpu
from linattn.testing import assert_close, tolerance

pytestmark = pytest.mark.no_poison


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def layer(q, k, v, g, beta, **more):
    o, state = linattn.chunk_kda(q * 2, k, v, g, beta, output_final_state=True, **more)
    return o + 1, state


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_I01_fullgraph_forward(backend):
    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    for length in (5, 70):
        x = to_gpu(inputs("kda", 2, length, torch.bfloat16)[0])
        for a, b in zip(compiled(**x), layer(**x)):
            assert a.is_cuda and a.shape == b.shape and a.dtype == b.dtype
            assert_close(a, b, tolerance(torch.bfloat16))


def test_I01_dynamic_lengths_and_sequences():
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for length, cu in ((8, [0, 8]), (33, [0, 1, 2, 20, 30, 33]), (64, [0, 64])):
        x = to_gpu(inputs("kda", 1, length, torch.bfloat16)[0])
        cu = torch.tensor(cu, device="cuda")
        for a, b in zip(compiled(**x, cu_seqlens=cu), layer(**x, cu_seqlens=cu)):
            assert torch.equal(a, b)


def test_compiled_decode_in_place():
    x, words = inputs("kda", 2, 1, torch.bfloat16)
    there = to_gpu(x)

    def decode(pool, **x):
        return linattn.step(**x, **words, pool=pool)[0] * 2

    compiled = torch.compile(decode, fullgraph=True, backend="aot_eager")
    pool = states(2).cuda()
    copy = pool.clone()
    for _ in range(3):
        assert torch.equal(compiled(pool, **there), decode(copy, **there))
    assert torch.equal(pool, copy)
