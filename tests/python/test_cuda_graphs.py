# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs: a capture holds no wait, and a replay follows what the tensors hold then (C-05 to C-07, P-03)."""

import linattn
import pytest
import torch
from gpu import ids, inputs, states, to_gpu
from linattn.testing import assert_close, tolerance

DTYPES = [torch.bfloat16, torch.float32]


def captured(call):
    """The graph of a call and its results, after a call that loads what is lazy."""
    with torch.cuda.stream(torch.cuda.Stream()):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = call()
    return graph, results


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_C06_lengths_slots_and_inputs_change(dtype):
    x, words = inputs("kda", 1, 200, dtype)
    there, pool = to_gpu(x), states(8).cuda()
    index = {
        "cu_seqlens": ids(0, 50, 100, 200, device="cuda"),
        "read_slots": ids(0, 1, 2, device="cuda"),
        "write_slots": ids(0, 1, 2, device="cuda"),
    }
    graph, (out, _) = captured(lambda: linattn.forward(**there, **words, pool=pool, **index))
    for cu, read, write in (
        ((0, 0, 1, 190), (7, -1, 3), (6, 4, 3)),
        ((0, 200, 200, 200), (-1, 5, -1), (2, 5, -1)),
        ((0, 64, 128, 129), (3, 4, 5), (-1, -1, 1)),
    ):
        new = {"cu_seqlens": ids(*cu), "read_slots": ids(*read), "write_slots": ids(*write)}
        y, _ = inputs("kda", 1, 200, dtype, seed=cu[1] + 5)
        expected_pool = states(8, seed=cu[2])
        for name, a in y.items():
            there[name].copy_(a)
        for name, a in new.items():
            index[name].copy_(a)
        pool.copy_(expected_pool)
        graph.replay()
        o, _ = linattn.forward(
            **y, **words, pool=expected_pool, **new, implementation="cpu.recurrent"
        )
        assert_close(out, o, tolerance(dtype), "out")
        assert_close(pool, expected_pool, tolerance(dtype, "state"), "pool")


def test_decode_loop():
    """One graph of a step is the whole decode: the pool advances by a token at each replay."""
    x, words = inputs("gdn", 3, 20, torch.bfloat16)
    token = {name: a[:, :1].cuda() for name, a in x.items()}
    pool = torch.zeros_like(states(3)).cuda()
    graph, (out, _) = captured(lambda: linattn.step(**token, **words, pool=pool))
    pool.zero_()
    rows = []
    for t in range(20):
        for name, a in x.items():
            token[name].copy_(a[:, t : t + 1])
        graph.replay()
        rows.append(out.clone())
    o, S = linattn.forward(**x, **words, output_final_state=True, implementation="cpu.recurrent")
    assert_close(torch.cat(rows, 1), o, tolerance(torch.bfloat16), "out")
    assert_close(pool, S, tolerance(torch.bfloat16, "state"), "pool")


def test_fused_decode_loop():
    """The same with a convolution and a norm: the conv states advance too."""
    x, words = inputs("gdn", 3, 12)
    words["qk_l2norm"] = True
    rng = torch.Generator().manual_seed(5)
    channels = sum(x[name][0, 0].numel() for name in "qkv")
    weight, rows = torch.randn(channels, 4, generator=rng), torch.zeros(3, channels, 3)
    z = torch.randn(x["v"].shape, generator=rng)
    token = {name: a[:, :1].cuda() for name, a in x.items()}
    pool, there, now = torch.zeros_like(states(3)).cuda(), rows.cuda(), z[:, :1].cuda()
    conv, norm = linattn.Conv(weight.cuda(), there), linattn.Norm(z=now)
    graph, (out, _) = captured(
        lambda: linattn.step(**token, **words, pool=pool, conv=conv, norm=norm)
    )
    pool.zero_(), there.zero_()
    expected_pool = torch.zeros_like(states(3))
    for t in range(12):
        for name, a in x.items():
            token[name].copy_(a[:, t : t + 1])
        now.copy_(z[:, t : t + 1])
        graph.replay()
        o, _ = linattn.step(
            **{name: a[:, t : t + 1] for name, a in x.items()},
            **words,
            pool=expected_pool,
            conv=linattn.Conv(weight, rows),
            norm=linattn.Norm(z=z[:, t : t + 1]),
        )
        assert_close(out, o, tolerance(torch.float32), "out")
        assert torch.equal(there.cpu(), rows)
    assert_close(pool, expected_pool, tolerance(torch.float32, "state"), "pool")


def test_C05_larger_calls_between_replays():
    x, words = inputs("kda", 2, 100, torch.bfloat16)
    there = to_gpu(x)
    graph, (out, state) = captured(
        lambda: linattn.forward(**there, **words, output_final_state=True)
    )
    graph.replay()
    expected = out.clone(), state.clone()
    large, _ = inputs("kda", 1, 6000, torch.bfloat16)
    for _ in range(3):
        linattn.forward(**to_gpu(large), **words)
        out.fill_(float("nan"))
        state.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, expected[0]) and torch.equal(state, expected[1])


@pytest.mark.parametrize("door", ["chunk_kda", "fused_recurrent_gated_delta_rule", "chunk_gla"])
def test_doors_are_captured(door):
    x, _ = inputs("kda" if door == "chunk_kda" else "gdn", 1, 100, torch.bfloat16)
    if door == "chunk_gla":
        x, _ = inputs("gla", 1, 100, torch.bfloat16)
        x["v"], x["g"] = x["v"][:, :, :2], x["g"][:, :, :2]
    there = to_gpu(x)
    cu = torch.tensor([0, 30, 100], device="cuda")

    def call():
        return getattr(linattn, door)(**there, cu_seqlens=cu, output_final_state=True)

    graph, (out, state) = captured(call)
    cu.copy_(torch.tensor([0, 77, 90]))
    graph.replay()
    expected, S = call()
    assert torch.equal(out, expected) and torch.equal(state, S)


def test_P03_no_host_synchronisation():
    x, words = inputs("kda", 1, 100)
    there, cu = to_gpu(x), ids(0, 40, 100, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        linattn.forward(**there, **words, cu_seqlens=cu, output_final_state=True)
        linattn.chunk_kda(**there, cu_seqlens=cu)
        linattn.step(**{n: a[:, :3] for n, a in there.items()}, **words)
    finally:
        torch.cuda.set_sync_debug_mode("default")
