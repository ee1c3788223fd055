# SPDX-License-Identifier: Apache-2.0
"""Entries N and S of the fault catalogue through the doors: strong gates, odd dims, extreme parameters."""

import itertools

import linattn
import pytest
import torch
from linattn.testing import assert_close, tolerance
from reference import l2norm, recurrence

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def tensors(rng, B=1, T=65, H=2, HV=2, K=16, V=24, dtype=torch.float32):
    return {
        "q": l2norm(torch.randn(B, T, H, K, generator=rng)).to(dtype),
        "k": l2norm(torch.randn(B, T, H, K, generator=rng)).to(dtype),
        "v": torch.randn(B, T, HV, V, generator=rng).to(dtype),
        "g": -torch.rand(B, T, HV, K, generator=rng),
        "beta": torch.rand(B, T, HV, generator=rng),
    }


def check(x, bound=None, gradients=False):
    leaves = {name: a.requires_grad_() for name, a in x.items()}
    d = {name: a.detach().double().requires_grad_() for name, a in x.items()}
    o, S = linattn.chunk_kda(**leaves, output_final_state=True)
    expected, want = recurrence(d["q"], d["k"], d["v"], d["g"], beta=d["beta"])
    dtype = x["q"].dtype
    assert_close(o, expected, bound or tolerance(dtype), "o")
    assert_close(S, want, bound or tolerance(dtype, "state"), "state")
    if gradients:
        do = torch.randn(o.shape, generator=torch.Generator().manual_seed(5)).to(dtype)
        o.backward(do)
        expected.backward(do.double())
        for name, a in leaves.items():
            assert_close(a.grad, d[name].grad, bound or tolerance(dtype, "gradient"), f"d{name}")


@pytest.mark.parametrize("g", [-1.42, -5.0, -5.92, -11.2, -20.0, -88.0, -200.0, -1e4])
@pytest.mark.parametrize("one_channel", [False, True])
def test_N05_strong_gates(g, one_channel, rng):
    for T in (16, 17, 64, 65):
        x = tensors(rng, T=T)
        x["g"] = torch.zeros_like(x["g"]) if one_channel else torch.full_like(x["g"], g)
        x["g"][..., 3] = g
        check(x, gradients=T in (17, 65))


@pytest.mark.parametrize("T", [1, 17, 28, 33, 49, 65])
def test_N06_strong_gates_in_the_last_partial_chunk(T, rng):
    x = tensors(rng, T=T)
    x["g"] = torch.full_like(x["g"], -5.0)
    check(x)
    x["g"] = x["g"].detach()
    x["g"][:, ::2] = -1e3
    check(x)


def test_N08_a_dip_of_the_decay(rng):
    for offset in (0, 14, 15, 31, 60):
        x = tensors(rng, T=80)
        x["g"] = torch.zeros_like(x["g"])
        x["g"][:, offset : offset + 4, :, 2] = -26.0
        check(x, gradients=offset == 14)


def test_N09_growing_gate(rng):
    for g, T in ((0.01, 65), (1.0, 64)):
        x = tensors(rng, T=T)
        x["g"] = torch.full_like(x["g"], g)
        x["beta"] = torch.zeros_like(x["beta"]) + 0.1
        check(x)


def test_N10_gate_parameters_at_their_ends():
    """exp(A_log) softplus(x) and the bounded gate: in [-inf, 0], never NaN."""
    inf = float("inf")
    for A_log, raw in itertools.product(
        (-inf, -88.0, 0.0, 88.0, 89.0, 100.0), (-200.0, -20.0, 0.0, 20.0, 200.0)
    ):
        one = torch.ones(1, 2, 1, 4)
        x = {
            "q": one,
            "k": one / 2,
            "v": one,
            "g": torch.full((1, 2, 1, 4), raw),
            "beta": torch.zeros(1, 2, 1),
            "A_log": torch.tensor([A_log]),
            "use_gate_in_kernel": True,
            "initial_state": torch.ones(1, 1, 4, 4),
            "output_final_state": True,
        }
        rate = torch.tensor(A_log).double().exp()
        a = -rate * torch.nn.functional.softplus(torch.tensor(raw).double())
        bounded = -5 * torch.sigmoid(rate * raw)
        for lower_bound, decay in ((None, a), (-5.0, bounded)):
            if decay.isnan():  # 0 * inf in double as well: either end is right
                decay = torch.tensor(0.0)
            o, S = linattn.chunk_kda(**x, lower_bound=lower_bound)
            assert torch.isfinite(o).all(), (A_log, raw, lower_bound)
            assert_close(S, torch.full_like(S, float((2 * decay).exp())), 1e-4, f"{A_log} {raw}")


DIMS = [
    (64, 64),
    (64, 128),
    (128, 64),
    (128, 256),
    (256, 128),
    (96, 96),
    (100, 100),
    (72, 72),
    (16, 16),
    (1, 1),
    (3, 5),
]


@pytest.mark.parametrize(("K", "V"), DIMS)
def test_S10_head_dims(K, V, rng):
    for B in (1, 8):
        check(tensors(rng, B=B, T=20, H=1, HV=1, K=K, V=V), gradients=B == 1)


@pytest.mark.parametrize("dtypes", list(itertools.product(DTYPES, repeat=3)), ids=str)
def test_I05_dtypes(dtypes, rng):
    """q, k, v in one dtype, g and beta each in its own."""
    x = tensors(rng, T=30, dtype=dtypes[0])
    x["g"], x["beta"] = x["g"].to(dtypes[1]), x["beta"].to(dtypes[2])
    check(x, gradients=True, bound=max(tolerance(d, "gradient") for d in dtypes))


def test_S13_three_groupings(rng):
    for H, HV in ((2, 4), (3, 12), (1, 5)):
        check(tensors(rng, T=20, H=H, HV=HV), gradients=True)


def test_N02_correlated_keys(rng):
    for s in (0.0, 0.01, 0.05, 0.3):
        x = tensors(rng, T=130, H=1, HV=1, K=32, V=32)
        u = torch.randn(1, 1, 1, 32, generator=rng)
        x["k"] = 0.9 * l2norm(u + s * torch.randn(1, 130, 1, 32, generator=rng))
        x["beta"] = torch.ones_like(x["beta"])
        x["g"] = torch.full_like(x["g"], -0.02)
        check(x, gradients=True)


def test_N14_gradient_of_the_state_over_many_chunks(rng):
    x = tensors(rng, T=512, H=1, HV=1, dtype=torch.bfloat16)
    x["g"] = torch.full_like(x["g"], -0.001)
    leaves = {name: a.requires_grad_() for name, a in x.items()}
    d = {name: a.detach().double().requires_grad_() for name, a in x.items()}
    h0, d0 = (
        torch.zeros(1, 1, 16, 24, requires_grad=True),
        torch.zeros(1, 1, 16, 24).double().requires_grad_(),
    )
    _, S = linattn.chunk_kda(**leaves, initial_state=h0, output_final_state=True)
    _, want = recurrence(d["q"], d["k"], d["v"], d["g"], beta=d["beta"], initial_state=d0)
    w = torch.randn(S.shape, generator=rng)
    S.backward(w)
    want.backward(w.double())
    for name, a in leaves.items():
        if name != "q":
            assert_close(a.grad, d[name].grad, tolerance(torch.bfloat16, "gradient"), f"d{name}")
    assert_close(h0.grad, d0.grad, 1e-4)


def test_P_length_costs_linear_memory_of_the_caller(rng):
    """Inputs are not copied: a call leaves its arguments' storages alone and returns fresh ones."""
    x = tensors(rng)
    o, S = linattn.chunk_kda(**x, output_final_state=True)
    pointers = {a.untyped_storage().data_ptr() for a in x.values()}
    assert o.untyped_storage().data_ptr() not in pointers
    assert S.untyped_storage().data_ptr() not in pointers
