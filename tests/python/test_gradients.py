# SPDX-License-Identifier: Apache-2.0
"""Gradients of the doors against PyTorch's autograd of the recurrence in double."""

import linattn
import pytest
import torch
from linattn.testing import assert_close, tolerance
from reference import bounded_gate, l2norm, recurrence, softplus_gate

B, T, H, K, V = 2, 21, 2, 12, 20
GRADIENT = tolerance(torch.bfloat16, "gradient")


def leaf(x, dtype=torch.float32):
    return x.to(dtype).requires_grad_()


def inputs(names, heads, dtype, rng, length=T, batch=B):
    """Leaves by name, in the dtypes of a model: 16-bit activations, float32 gates, strengths and states."""

    def normal(*shape):
        return torch.randn(shape, generator=rng)

    rows = (batch, length)
    make = {
        "q": lambda: leaf(l2norm(normal(*rows, H, K)), dtype),
        "k": lambda: leaf(l2norm(normal(*rows, H, K)), dtype),
        "raw_q": lambda: leaf(normal(*rows, H, K), dtype),
        "raw_k": lambda: leaf(normal(*rows, H, K), dtype),
        "v": lambda: leaf(normal(*rows, heads, V), dtype),
        "g_channel": lambda: leaf(-torch.rand(*rows, heads, K, generator=rng)),
        "g_head": lambda: leaf(-torch.rand(*rows, heads, generator=rng)),
        "raw_g_channel": lambda: leaf(normal(*rows, heads, K), dtype),
        "raw_g_head": lambda: leaf(normal(*rows, heads), dtype),
        "g_gamma": lambda: leaf(-torch.rand(heads, generator=rng)),
        "beta": lambda: leaf(normal(*rows, heads).sigmoid()),
        "raw_beta": lambda: leaf(normal(*rows, heads), dtype),
        "b": lambda: leaf(normal(*rows, heads, K).sigmoid(), dtype),
        "w": lambda: leaf(normal(*rows, heads, V).sigmoid(), dtype),
        "A_log": lambda: leaf(torch.rand(heads, generator=rng)),
        "dt_bias_channel": lambda: leaf(normal(heads * K)),
        "dt_bias_head": lambda: leaf(normal(heads)),
        "h0": lambda: leaf(normal(batch, heads, K, V)),
    }
    return {name: make[name]() for name in names.split()}


# Name: tensors, value heads, the door's call, the same in double. x holds the leaves, d their double copies.
CASES = {
    "kda": (
        "q k v g_channel beta h0",
        4,
        lambda x, more: linattn.chunk_kda(
            x["q"], x["k"], x["v"], x["g_channel"], x["beta"], **more
        ),
        lambda d, h0: recurrence(
            d["q"], d["k"], d["v"], d["g_channel"], beta=d["beta"], initial_state=h0
        ),
    ),
    "kda_softplus_norm_logit": (
        "raw_q raw_k v raw_g_channel raw_beta A_log dt_bias_channel h0",
        4,
        lambda x, more: linattn.chunk_kda(
            x["raw_q"],
            x["raw_k"],
            x["v"],
            x["raw_g_channel"],
            x["raw_beta"],
            A_log=x["A_log"],
            dt_bias=x["dt_bias_channel"],
            use_gate_in_kernel=True,
            use_qk_l2norm_in_kernel=True,
            use_beta_sigmoid_in_kernel=True,
            **more,
        ),
        lambda d, h0: recurrence(
            l2norm(d["raw_q"]),
            l2norm(d["raw_k"]),
            d["v"],
            softplus_gate(d["raw_g_channel"], d["A_log"], d["dt_bias_channel"].view(4, K)),
            beta=d["raw_beta"].sigmoid(),
            initial_state=h0,
        ),
    ),
    "kda_bounded_neg_eigval": (
        "q k v raw_g_channel raw_beta A_log dt_bias_channel h0",
        2,
        lambda x, more: linattn.fused_recurrent_kda(
            x["q"],
            x["k"],
            x["v"],
            x["raw_g_channel"],
            x["raw_beta"],
            A_log=x["A_log"],
            dt_bias=x["dt_bias_channel"],
            lower_bound=-5.0,
            use_gate_in_kernel=True,
            use_beta_sigmoid_in_kernel=True,
            allow_neg_eigval=True,
            **more,
        ),
        lambda d, h0: recurrence(
            d["q"],
            d["k"],
            d["v"],
            bounded_gate(d["raw_g_channel"], d["A_log"], d["dt_bias_channel"].view(2, K), -5.0),
            beta=2 * d["raw_beta"].sigmoid(),
            initial_state=h0,
        ),
    ),
    "kda_bounded_without_A_log": (
        "q k v raw_g_channel beta h0",
        2,
        lambda x, more: linattn.chunk_kda(
            x["q"],
            x["k"],
            x["v"],
            x["raw_g_channel"],
            x["beta"],
            lower_bound=-2.0,
            use_gate_in_kernel=True,
            **more,
        ),
        lambda d, h0: recurrence(
            d["q"],
            d["k"],
            d["v"],
            bounded_gate(d["raw_g_channel"], None, None, -2.0),
            beta=d["beta"],
            initial_state=h0,
        ),
    ),
    "gdn": (
        "q k v g_head beta h0",
        4,
        lambda x, more: linattn.chunk_gated_delta_rule(
            x["q"], x["k"], x["v"], x["g_head"], x["beta"], **more
        ),
        lambda d, h0: recurrence(
            d["q"], d["k"], d["v"], d["g_head"][..., None], beta=d["beta"], initial_state=h0
        ),
    ),
    "gdn_softplus": (
        "q k v raw_g_head beta A_log dt_bias_head h0",
        4,
        lambda x, more: linattn.chunk_gdn(
            x["q"],
            x["k"],
            x["v"],
            x["raw_g_head"],
            x["beta"],
            A_log=x["A_log"],
            dt_bias=x["dt_bias_head"],
            use_gate_in_kernel=True,
            **more,
        ),
        lambda d, h0: recurrence(
            d["q"],
            d["k"],
            d["v"],
            softplus_gate(d["raw_g_head"], d["A_log"], d["dt_bias_head"])[..., None],
            beta=d["beta"],
            initial_state=h0,
        ),
    ),
    "gdn_head_and_channel": (
        "q k v g_head g_channel beta h0",
        2,
        lambda x, more: linattn.fused_recurrent_gated_delta_rule(
            x["q"], x["k"], x["v"], g=x["g_head"], gk=x["g_channel"], beta=x["beta"], **more
        ),
        lambda d, h0: recurrence(
            d["q"],
            d["k"],
            d["v"],
            d["g_head"][..., None] + d["g_channel"],
            beta=d["beta"],
            initial_state=h0,
        ),
    ),
    "gla": (
        "raw_q raw_k v g_channel h0",
        2,
        lambda x, more: linattn.chunk_gla(x["raw_q"], x["raw_k"], x["v"], x["g_channel"], **more),
        lambda d, h0: recurrence(d["raw_q"], d["raw_k"], d["v"], d["g_channel"], initial_state=h0),
    ),
    "simple_gla": (
        "raw_q raw_k v g_head h0",
        2,
        lambda x, more: linattn.chunk_simple_gla(
            x["raw_q"], x["raw_k"], x["v"], x["g_head"], **more
        ),
        lambda d, h0: recurrence(
            d["raw_q"], d["raw_k"], d["v"], d["g_head"][..., None], initial_state=h0
        ),
    ),
    "simple_gla_constant": (
        "raw_q raw_k v g_gamma h0",
        2,
        lambda x, more: linattn.fused_recurrent_simple_gla(
            x["raw_q"], x["raw_k"], x["v"], g_gamma=x["g_gamma"], **more
        ),
        lambda d, h0: recurrence(
            d["raw_q"],
            d["raw_k"],
            d["v"],
            d["g_gamma"].expand(B, T, 2)[..., None],
            initial_state=h0,
        ),
    ),
    "simple_gla_reverse": (
        "raw_q raw_k v g_head h0",
        2,
        lambda x, more: linattn.fused_recurrent_simple_gla(
            x["raw_q"], x["raw_k"], x["v"], x["g_head"], reverse=True, **more
        ),
        lambda d, h0: flipped(
            recurrence(
                d["raw_q"].flip(1),
                d["raw_k"].flip(1),
                d["v"].flip(1),
                d["g_head"][..., None].flip(1),
                initial_state=h0,
            )
        ),
    ),
    "lightning": (
        "raw_q raw_k v h0",
        2,
        lambda x, more: linattn.chunk_lightning_attn(x["raw_q"], x["raw_k"], x["v"], 1, 4, **more),
        lambda d, h0: recurrence(
            d["raw_q"],
            d["raw_k"],
            d["v"],
            (-3.0 * torch.arange(2.0).double()).expand(B, T, 2)[..., None],
            initial_state=h0,
        ),
    ),
    "delta_rule": (
        "raw_q raw_k v beta h0",
        2,
        lambda x, more: linattn.chunk_delta_rule(
            x["raw_q"], x["raw_k"], x["v"], x["beta"], use_qk_l2norm_in_kernel=True, **more
        ),
        lambda d, h0: recurrence(
            l2norm(d["raw_q"]), l2norm(d["raw_k"]), d["v"], beta=d["beta"], initial_state=h0
        ),
    ),
    "linear_attention": (
        "raw_q raw_k v h0",
        2,
        lambda x, more: linattn.chunk_linear_attn(
            x["raw_q"], x["raw_k"], x["v"], normalize=False, **more
        ),
        lambda d, h0: recurrence(d["raw_q"], d["raw_k"], d["v"], initial_state=h0),
    ),
    "gdn2": (
        "q k v g_channel b w h0",
        2,
        lambda x, more: linattn.chunk_gdn2(
            x["q"], x["k"], x["v"], x["g_channel"], x["b"], x["w"], **more
        ),
        lambda d, h0: recurrence(
            d["q"],
            d["k"],
            d["v"],
            d["g_channel"],
            erase=d["b"],
            write=d["w"],
            initial_state=h0,
        ),
    ),
}


def flipped(result):
    return result[0].flip(1), result[1]


def doubles(x):
    return {name: a.detach().double().requires_grad_() for name, a in x.items()}


def weights(o, state, dtype, rng):
    """The gradients that arrive, on values of the outputs' dtypes."""
    do = torch.randn(o.shape, generator=rng).to(dtype)
    return do, torch.randn(state.shape, generator=rng)


def check_gradients(x, d, bound):
    for name, a in x.items():
        if d[name].grad is None:
            continue
        assert a.grad is not None, f"d{name} is missing"
        assert a.grad.dtype == a.dtype and a.grad.shape == a.shape
        assert_close(a.grad, d[name].grad, bound, f"d{name}")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_all_gradients(case, dtype, rng):
    names, heads, door, double = CASES[case]
    if case == "delta_rule" and dtype == torch.float32:
        dtype = torch.float16  # FLA asserts that this door does not take float32
    x = inputs(names, heads, dtype, rng)
    d = doubles(x)
    o, state = door(x, {"initial_state": x["h0"], "output_final_state": True})
    expected_o, expected_state = double(d, d["h0"])
    assert_close(o, expected_o, tolerance(dtype), "o")
    assert_close(state, expected_state, tolerance(dtype, "state"), "state")
    do, dstate = weights(o, state, dtype, rng)
    torch.autograd.backward((o, state), (do, dstate))
    torch.autograd.backward((expected_o, expected_state), (do.double(), dstate.double()))
    check_gradients(x, d, tolerance(dtype, "gradient"))


@pytest.mark.parametrize("case", ["kda", "gdn", "gla", "gdn2", "simple_gla_constant"])
def test_B03_gradient_only_through_the_final_state(case, rng):
    names, heads, door, double = CASES[case]
    x = inputs(names, heads, torch.bfloat16, rng)
    d = doubles(x)
    _, state = door(x, {"initial_state": x["h0"], "output_final_state": True})
    w = torch.randn(state.shape, generator=rng)
    (state * w).sum().backward()
    (double(d, d["h0"])[1] * w.double()).sum().backward()
    q = "q" if "q" in x else "raw_q"
    assert torch.count_nonzero(x[q].grad) == 0
    d[q].grad = torch.zeros_like(d[q])
    check_gradients(x, d, GRADIENT)


@pytest.mark.parametrize("state_needs_grad", [False, True])
@pytest.mark.parametrize("dstate", [False, True])
@pytest.mark.parametrize("output_final_state", [False, True])
@pytest.mark.parametrize("case", ["kda", "gla"])
def test_B05_every_combination_of_state_gradients(
    case, state_needs_grad, dstate, output_final_state, rng
):
    names, heads, door, double = CASES[case]
    x = inputs(names, heads, torch.bfloat16, rng)
    x["h0"].requires_grad_(state_needs_grad)
    d = doubles(x)
    o, state = door(x, {"initial_state": x["h0"], "output_final_state": output_final_state})
    expected_o, expected_state = double(d, d["h0"])
    loss, expected = o.float().square().sum(), expected_o.square().sum()
    if dstate and output_final_state:
        loss, expected = loss + state.square().sum(), expected + expected_state.square().sum()
    loss.backward()
    expected.backward()
    assert (x["h0"].grad is not None) == state_needs_grad
    if not state_needs_grad:
        d["h0"].grad = None
    check_gradients(x, d, GRADIENT)


@pytest.mark.parametrize("case", ["kda_softplus_norm_logit", "gdn2"])
def test_B06_each_input_alone(case, rng):
    names, heads, door, _ = CASES[case]
    x = inputs(names, heads, torch.bfloat16, rng)

    def backward():
        for a in x.values():
            a.grad = None
        o, state = door(x, {"initial_state": x["h0"], "output_final_state": True})
        (o.float().sum() + state.sum()).backward()
        return {name: a.grad for name, a in x.items()}

    together = backward()
    for name in x:
        for other, a in x.items():
            a.requires_grad_(other == name)
        alone = backward()
        assert torch.equal(alone[name], together[name]), name
        assert all(alone[other] is None for other in x if other != name)


def test_B02_no_gate_equals_a_gate_of_zero(rng):
    x = inputs("q k v beta", 2, torch.bfloat16, rng, length=100)
    gate = torch.zeros(B, 100, 2)
    results = []
    for call in (
        lambda: linattn.fused_recurrent_gated_delta_rule(**x),
        lambda: linattn.fused_recurrent_gated_delta_rule(**x, g=gate),
    ):
        for a in x.values():
            a.grad = None
        o, _ = call()
        o.float().square().sum().backward()
        results.append((o.detach(), *(a.grad for a in x.values())))
    for without, zero in zip(*results):
        assert_close(without, zero, 1e-6 if without.dtype == torch.float32 else 1e-3)
    assert results[0][-1].abs().max() > 0


@pytest.mark.parametrize("length", [0, 1, 2, 15, 16, 17])
def test_S01_S05_short_sequences(length, rng):
    names, heads, door, double = CASES["kda"]
    x = inputs(names, heads, torch.bfloat16, rng, length=length)
    d = doubles(x)
    o, state = door(x, {"initial_state": x["h0"], "output_final_state": True})
    assert o.shape == x["v"].shape
    do, dstate = weights(o, state, torch.bfloat16, rng)
    torch.autograd.backward((o, state), (do, dstate))
    if length == 0:
        assert torch.equal(state, x["h0"])
        assert torch.equal(x["h0"].grad, dstate)
        assert torch.count_nonzero(x["q"].grad) == 0
        return
    expected_o, expected_state = double(d, d["h0"])
    torch.autograd.backward((expected_o, expected_state), (do.double(), dstate.double()))
    assert_close(o, expected_o, tolerance(o.dtype))
    check_gradients(x, d, GRADIENT)


def test_S13_groups_of_value_heads(rng):
    """Value head i reads key head i // (HV / H); dq and dk are sums over the group."""
    x = inputs("q k v g_channel beta", 6, torch.bfloat16, rng)
    wide = {
        name: (a.detach().repeat_interleave(3, 2) if name in "qk" else a.detach()).requires_grad_()
        for name, a in x.items()
    }
    o, _ = linattn.chunk_kda(x["q"], x["k"], x["v"], x["g_channel"], x["beta"])
    repeated, _ = linattn.chunk_kda(
        wide["q"], wide["k"], wide["v"], wide["g_channel"], wide["beta"]
    )
    assert torch.equal(o, repeated)
    do = torch.randn(o.shape, generator=rng).bfloat16()
    o.backward(do)
    repeated.backward(do)
    for name in "qk":
        summed = wide[name].grad.float().unflatten(2, (H, 3)).sum(3)
        assert_close(x[name].grad, summed, GRADIENT, f"d{name}")


def test_N07_backward_of_a_strong_gate(rng):
    """Masked entries of exp(G_i - G_j) overflow; their gradients must be nothing, not NaN."""
    for g in (-5.0, -1.5):
        x = inputs("q k v beta h0", 2, torch.float32, rng, length=64, batch=1)
        x["g_channel"] = torch.full((1, 64, 2, K), g, requires_grad=True)
        d = doubles(x)
        _, _, door, double = CASES["kda"]
        o, _ = door(x, {"initial_state": x["h0"]})
        o.square().sum().backward()
        double(d, d["h0"])[0].square().sum().backward()
        check_gradients(x, d, tolerance(torch.float32, "gradient"))


def test_N17_gradient_of_the_norm_at_zero(rng):
    x = inputs("raw_q raw_k v beta h0", 2, torch.float32, rng)
    with torch.no_grad():
        x["raw_q"][:, 3] = 0
        x["raw_k"][:, 5] = 0
        x["raw_k"][:, 6] *= 1e-4
    d = doubles(x)
    o, _ = linattn.fused_recurrent_delta_rule(
        x["raw_q"],
        x["raw_k"],
        x["v"],
        x["beta"],
        initial_state=x["h0"],
        use_qk_l2norm_in_kernel=True,
    )
    expected, _ = CASES["delta_rule"][3](d, d["h0"])
    o.sum().backward()
    expected.sum().backward()
    assert all(torch.isfinite(a.grad).all() for a in x.values())
    check_gradients(x, d, tolerance(torch.float32, "gradient"))


def test_normalised_linear_attention_gradients(rng):
    x = inputs("raw_q raw_k v h0", 2, torch.float32, rng)
    with torch.no_grad():
        x["raw_q"].abs_()
        x["raw_k"].abs_()
    z = leaf(torch.rand(B, 1, H, K, generator=rng))
    d, dz = doubles(x), z.detach().double().requires_grad_()
    o, (state, sums) = linattn.chunk_linear_attn(
        x["raw_q"], x["raw_k"], x["v"], initial_state=(x["h0"], z), output_final_state=True
    )
    expected, expected_state = recurrence(d["raw_q"], d["raw_k"], d["v"], initial_state=d["h0"])
    keys = d["raw_k"].cumsum(1) + dz
    expected = expected / ((d["raw_q"] * K**-0.5 * keys).sum(-1, keepdim=True) + 1e-10)
    w = torch.randn(sums.shape, generator=rng)
    (o.square().sum() + state.sum() + (sums * w).sum()).backward()
    (expected.square().sum() + expected_state.sum() + (keys[:, -1:] * w).sum()).backward()
    check_gradients({**x, "z": z}, {**d, "z": dz}, tolerance(torch.float32, "gradient"))


def test_second_gradient_is_refused(rng):
    x = inputs("q k v g_channel beta", 2, torch.float32, rng)
    o, _ = linattn.chunk_kda(x["q"], x["k"], x["v"], x["g_channel"], x["beta"])
    (dq,) = torch.autograd.grad(o.square().sum(), x["q"], create_graph=True)
    with pytest.raises(NotImplementedError, match="gradient of a gradient"):
        dq.sum().backward()


def test_I02_autocast(rng):
    """Nothing is cast down: the result equals the one without autocast, each gradient has its input's dtype."""
    names, heads, door, _ = CASES["kda_softplus_norm_logit"]
    x = inputs(names, heads, torch.bfloat16, rng)
    x["raw_g_channel"] = leaf(x["raw_g_channel"].detach().float() + 1e-3)
    results = []
    for enabled in (False, True):
        for a in x.values():
            a.grad = None
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            o, state = door(x, {"initial_state": x["h0"], "output_final_state": True})
            loss = o.float().square().sum() + state.sum()
        loss.backward()
        assert all(a.grad.dtype == a.dtype for a in x.values())
        results.append((o.detach(), state.detach(), *(a.grad for a in x.values())))
    for without, with_autocast in zip(*results):
        assert torch.equal(without, with_autocast)


def test_I03_modes_give_the_same_bits(rng):
    x = inputs("q k v g_channel beta", 2, torch.bfloat16, rng)
    call = lambda: linattn.chunk_kda(x["q"], x["k"], x["v"], x["g_channel"], x["beta"])[0]  # noqa: E731
    with_grad = call().detach()
    with torch.no_grad():
        without = call()
    with torch.inference_mode():
        inference = call()
    # With gradients the implementation is one that saves for backward; it may round differently.
    assert_close(with_grad, without, tolerance(torch.bfloat16))
    assert torch.equal(without, inference)


def test_I09_deterministic(rng):
    names, heads, door, _ = CASES["kda"]
    x = inputs(names, heads, torch.bfloat16, rng)
    torch.use_deterministic_algorithms(True)
    try:
        results = []
        for _ in range(5):
            for a in x.values():
                a.grad = None
            o, state = door(x, {"initial_state": x["h0"], "output_final_state": True})
            (o.float().sum() + state.sum()).backward()
            results.append([o.detach(), state.detach(), *(a.grad for a in x.values())])
    finally:
        torch.use_deterministic_algorithms(False)
    for again in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], again))
