# SPDX-License-Identifier: Apache-2.0
"""torch.compile sees through the ops: no graph break, the eager results (entry I-01)."""

import linattn
import pytest
import torch
from linattn.testing import assert_close, tolerance
from reference import l2norm

pytestmark = pytest.mark.no_poison
H, K, V = 2, 16, 24


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def tensors(batch, T, rng):
    return {
        "q": l2norm(torch.randn(batch, T, H, K, generator=rng)).bfloat16(),
        "k": l2norm(torch.randn(batch, T, H, K, generator=rng)).bfloat16(),
        "v": torch.randn(batch, T, H, V, generator=rng).bfloat16(),
        "g": -torch.rand(batch, T, H, K, generator=rng),
        "beta": torch.rand(batch, T, H, generator=rng),
    }


def layer(q, k, v, g, beta, **more):
    o, state = linattn.chunk_kda(q * 2, k, v, g, beta, output_final_state=True, **more)
    return o + 1, state


def test_I01_fullgraph_forward(rng):
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for T in (5, 40):
        x = tensors(2, T, rng)
        for a, b in zip(compiled(**x), layer(**x)):
            assert a.shape == b.shape and a.stride() == b.stride() and a.dtype == b.dtype
            assert torch.equal(a, b)


def test_I01_dynamic_lengths_and_sequences(rng):
    graphs = []

    def backend(graph, example_inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=backend)
    for T, cu in ((8, [0, 8]), (9, [0, 4, 9]), (33, [0, 1, 2, 20, 30, 33]), (64, [0, 64])):
        x = tensors(1, T, rng)
        cu = torch.tensor(cu)
        for a, b in zip(compiled(**x, cu_seqlens=cu), layer(**x, cu_seqlens=cu)):
            assert torch.equal(a, b)
    assert len(graphs) <= 2


def test_I01_training(rng):
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x = {name: a.requires_grad_() for name, a in tensors(2, 20, rng).items()}
    results = []
    for call in (layer, compiled):
        for a in x.values():
            a.grad = None
        o, state = call(**x)
        (o.float().square().sum() + state.sum()).backward()
        results.append([o.detach(), state.detach(), *(a.grad for a in x.values())])
    for a, b in zip(*results):
        assert a.dtype == b.dtype
        assert_close(b, a, tolerance(torch.bfloat16))


def test_compiled_decode_in_place(rng):
    def decode(pool, **x):
        out, _ = linattn.step(
            op="kda",
            gate_input="log_decay",
            beta_input="value",
            state_layout="key_value",
            pool=pool,
            **x,
        )
        return out * 2

    compiled = torch.compile(decode, fullgraph=True, backend="aot_eager")
    x = tensors(2, 1, rng)
    pool = torch.randn(2, H, K, V, generator=rng)
    copy = pool.clone()
    for _ in range(3):
        assert torch.equal(compiled(pool, **x), decode(copy, **x))
    assert torch.equal(pool, copy)


def test_opcheck(rng):
    """PyTorch's own checks of schema, fake kernel and autograd registration."""
    x = tensors(1, 6, rng)
    x = {name: a.float().requires_grad_() for name, a in x.items()}
    inputs = (x["q"], x["k"], x["v"], x["g"], x["beta"], *(None,) * 7)
    flags = [4, 2, 1, 2, 0, 1, 3, 64, 1, 0, 0]
    torch.library.opcheck(
        torch.ops.linattn.forward.default,
        (*inputs, flags, 0.0, 0.0, True, "", ""),
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )
