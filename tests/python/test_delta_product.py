# SPDX-License-Identifier: Apache-2.0
"""Comba and Gated DeltaProduct against FLA's references."""

import linattn
import pytest
import torch
from linattn.testing import assert_close, tolerance
from reference import l2norm

B, T, H, K, V, N = 2, 37, 2, 16, 24, 3


def tensors(rng, batch=B, dtype=torch.bfloat16, n=N):
    return {
        "q": torch.randn(batch, T, H, K, generator=rng).to(dtype),
        "k": l2norm(torch.randn(batch, n * T, H, K, generator=rng)).to(dtype),
        "v": torch.randn(batch, n * T, H, V, generator=rng).to(dtype),
        "g": -torch.rand(batch, T, H, generator=rng),
        "beta": torch.rand(batch, n * T, H, generator=rng),
    }


def test_comba_is_flas(rng):
    """An erased key p = c k, as FLA's layer makes it, is an erase strength of beta c."""
    from fla.ops.comba import naive_recurrent_comba

    x = tensors(rng, dtype=torch.float32, n=1)
    h0 = torch.randn(B, H, K, V, generator=rng)
    c = torch.rand(B, T, H, K, generator=rng)
    beta = x.pop("beta")
    expected, S = naive_recurrent_comba(
        **x, p=c * x["k"], beta=beta, initial_state=h0, output_final_state=True
    )
    words = {"op": "comba", "gate_input": "log_decay", "beta_input": "value"}
    words |= {"state_layout": "key_value", "initial_state": h0, "output_final_state": True}
    strengths = {"erase": beta[..., None] * c, "write": beta[..., None].repeat(1, 1, 1, V)}
    for door in (linattn.forward, linattn.step):
        out, state = door(**x, **strengths, **words)
        assert_close(out, expected, tolerance(torch.float32))
        assert_close(state, S, tolerance(torch.float32, "state"))


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("varlen", [False, True])
@pytest.mark.parametrize("norm", [True, False])
def test_delta_product(gated, varlen, norm, rng):
    from fla.ops.gated_delta_product.naive import naive_recurrent_gated_delta_product

    x = tensors(rng, batch=1 if varlen else B)
    cu = torch.tensor([0, 5, T]) if varlen else None
    h0 = torch.randn(2, H, K, V, generator=rng)
    if not gated:
        x["g"] = None
    options = {"initial_state": h0, "output_final_state": True, "cu_seqlens": cu, "scale": 0.3}
    o, S = linattn.chunk_gated_delta_product(
        **x, num_householder=N, use_qk_l2norm_in_kernel=norm, **options
    )
    if norm:
        x |= {name: l2norm(x[name].float()) for name in "qk"}
    expected, state = naive_recurrent_gated_delta_product(
        **{name: None if a is None else a.float() for name, a in x.items()},
        **options,
        num_householder=N,
    )
    assert o.dtype == torch.bfloat16 and o.is_contiguous()
    assert_close(o, expected, tolerance(torch.bfloat16))
    assert_close(S, state, tolerance(torch.bfloat16, "state"))


def test_delta_product_of_one_is_the_gated_delta_rule(rng):
    x = {name: a.requires_grad_() for name, a in tensors(rng, n=1).items()}
    one, _ = linattn.chunk_gated_delta_product(**x, num_householder=1)
    rule, _ = linattn.chunk_gated_delta_rule(**x)
    assert torch.equal(one, rule)
    do = torch.randn(one.shape, generator=rng).bfloat16()
    mine = torch.autograd.grad(one, list(x.values()), do)
    theirs = torch.autograd.grad(rule, list(x.values()), do)
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs))


def test_delta_product_gradients(rng):
    """By the recurrence that it stands for, in double."""
    x = {name: a.requires_grad_() for name, a in tensors(rng).items()}
    o, _ = linattn.chunk_gated_delta_product(**x, num_householder=N)
    do = torch.randn(o.shape, generator=rng).bfloat16()
    gradients = torch.autograd.grad(o, list(x.values()), do)
    d = {name: a.detach().double().requires_grad_() for name, a in x.items()}
    S, out = torch.zeros(B, H, K, V, dtype=torch.float64), []
    for t in range(T):
        S = S * d["g"][:, t, :, None, None].exp()
        for i in range(N * t, N * t + N):
            k, v, beta = (d[name][:, i] for name in ("k", "v", "beta"))
            e = beta[..., None] * (v - torch.einsum("bhkv,bhk->bhv", S, k))
            S = S + k[..., None] * e[..., None, :]
        out.append(torch.einsum("bhkv,bhk->bhv", S, d["q"][:, t]) * K**-0.5)
    expected = torch.autograd.grad(torch.stack(out, 1), list(d.values()), do.double())
    for name, mine, theirs in zip(x, gradients, expected):
        assert_close(mine, theirs, tolerance(torch.bfloat16, "gradient"), f"d{name}")


MISTAKES = [
    ({"q": torch.zeros(B, T, H, K)}, AssertionError, "q is float32"),
    ({"num_householder": 2}, AssertionError, r"k has shape \[2, 111, 2, 16\]; expected"),
    ({"g": torch.zeros(B, T, H, K)}, AssertionError, "g has shape"),
    ({"beta": torch.zeros(B, T, H)}, AssertionError, "beta has shape"),
    ({"cu_seqlens": torch.tensor([0, T])}, ValueError, "q has a batch of 2; expected 1"),
    ({"scale": 0.0}, NotImplementedError, "scale"),
    ({"g": None, "cp_context": 1}, AssertionError, "g is None"),
]


@pytest.mark.parametrize(("changes", "error", "message"), MISTAKES)
def test_mistakes(changes, error, message, rng):
    call = {**tensors(rng), "num_householder": N, **changes}
    with pytest.raises(error, match=message):
        linattn.chunk_gated_delta_product(**call)
