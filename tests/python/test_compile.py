# SPDX-License-Identifier: Apache-2.0
"""torch.compile sees through the ops: no graph break, the eager results (entry I-01)."""

import warnings

import linattn
import pytest
import torch
from linattn.testing import assert_close, tolerance
from reference import l2norm
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

pytestmark = pytest.mark.no_poison
H, K, V = 2, 16, 24


DEVICES = ["cpu", *["cuda"] * torch.cuda.is_available()]


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def tensors(batch, T, rng, device="cpu"):
    x = {
        "q": l2norm(torch.randn(batch, T, H, K, generator=rng)).bfloat16(),
        "k": l2norm(torch.randn(batch, T, H, K, generator=rng)).bfloat16(),
        "v": torch.randn(batch, T, H, V, generator=rng).bfloat16(),
        "g": -torch.rand(batch, T, H, K, generator=rng),
        "beta": torch.rand(batch, T, H, generator=rng),
    }
    return {name: a.to(device) for name, a in x.items()}


def layer(q, k, v, g, beta, **more):
    o, state = linattn.chunk_kda(q * 2, k, v, g, beta, output_final_state=True, **more)
    return o + 1, state


@pytest.mark.parametrize("device", DEVICES)
def test_I01_fullgraph_forward(device, rng):
    backend = "aot_eager" if device == "cpu" else "inductor"
    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    for T in (5, 40):
        x = tensors(2, T, rng, device)
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


@pytest.mark.parametrize("device", DEVICES)
def test_compiled_decode_in_place(device, rng):
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
    x = tensors(2, 1, rng, device)
    pool = torch.randn(2, H, K, V, generator=rng).to(device)
    copy = pool.clone()
    for _ in range(3):
        assert torch.equal(compiled(pool, **x), decode(copy, **x))
    assert torch.equal(pool, copy)


class Recorder(TorchDispatchMode):
    """Keeps the calls of this library's ops; eager calls show themselves to a mode."""

    def __init__(self):
        super().__init__()
        self.calls = {}

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        if op.namespace == "linattn":
            self.calls[op] = args
        return op(*args, **(kwargs or {}))


@pytest.mark.parametrize("device", DEVICES)
def test_opcheck(device, rng):
    """PyTorch's own checks of schema, fake kernel, autograd registration and tracing, on the calls that doors make."""
    x = {name: a.float() for name, a in tensors(2, 6, rng, device).items()}
    words = {"op": "kda", "gate_input": "log_decay", "beta_input": "value"}
    pool = {"pool": torch.zeros(3, H, K, V, device=device), "state_layout": "key_value"}
    slots = torch.tensor([2, 0], dtype=torch.int32, device=device)
    with Recorder() as recorder:
        linattn.forward(**x, **words, **pool, read_slots=slots, write_slots=slots)
        linattn.step(**x, **words, **pool, read_slots=slots, write_slots=slots)
        linattn.forward(**x, **words)
        if device == "cpu":  # where backward runs
            leaves = {name: a.clone().requires_grad_() for name, a in x.items()}
            linattn.forward(**leaves, **words)[0].sum().backward()
    ops = {op: op.name().removeprefix("linattn::") for op in recorder.calls}
    assert sorted({*ops.values(), "backward"}) == ["backward", "forward", "forward_", "step_"]
    for op, name in ops.items():
        args = [
            a.detach().clone() if isinstance(a, torch.Tensor) else a for a in recorder.calls[op]
        ]
        if name == "forward" and device == "cpu":
            args = [a.requires_grad_() if torch.is_tensor(a) else a for a in args]
        torch.library.opcheck(op, tuple(args))


DOORS = {
    "chunk_kda": "q k v g beta",
    "fused_recurrent_kda": "q k v g beta",
    "chunk_gla": "q k v g",
    "chunk_simple_gla": "q k v",
    "chunk_lightning_attn": "q k v",
    "chunk_retention": "q k v",
    "chunk_linear_attn": "q k v",
    "chunk_delta_rule": "q k v beta",
    "chunk_gdn2": "q k v g b w",
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("door", DOORS)
def test_I01_every_door_is_one_graph(door, device, rng):
    x = tensors(1, 12, rng, device)
    x |= {"b": x["beta"][..., None].expand(1, 12, H, K), "w": x["v"].sigmoid().float()}
    x = {name: x[name] for name in DOORS[door].split()}
    if "lightning" in door:
        x.update(layer_idx=1, num_layers=4)
    call = getattr(linattn, door)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    cu = torch.tensor([0, 5, 12], device=device)
    for more in ({}, {"cu_seqlens": cu, "output_final_state": True}):
        torch.testing.assert_close(compiled(**x, **more), call(**x, **more), rtol=0, atol=0)


def test_what_watches_sees_an_op(rng):
    """A transform, a subclass and a tracer get an op, not memory."""
    x = tensors(2, 5, rng)
    eager, _ = linattn.chunk_kda(**x)
    rest = {name: a for name, a in x.items() if name != "q"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        both = torch.vmap(lambda q: linattn.chunk_kda(q, **rest)[0])(torch.stack([x["q"], x["q"]]))
        traced = torch.jit.trace(lambda q: linattn.chunk_kda(q, **rest)[0], x["q"])
    assert torch.equal(both[1], eager) and torch.equal(traced(x["q"]), eager)
    with FakeTensorMode() as mode:
        fake = {name: mode.from_tensor(a) for name, a in x.items()}
    out, _ = linattn.chunk_kda(**fake)
    assert type(out) is FakeTensor and out.shape == eager.shape
    exported = torch.export.export(Layer(), (), x).module()
    assert torch.equal(exported(**x), eager)


class Layer(torch.nn.Module):
    def forward(self, **x):
        return linattn.chunk_kda(**x)[0]
