# SPDX-License-Identifier: Apache-2.0
"""The native doors: every op in PyTorch and NumPy, checkpoints, transitions, implementations."""

import linattn
import numpy
import pytest
import torch
from linattn.testing import assert_close, error_ratio, tolerance
from problems import HV, KDA, H, K, V, expected, kda, op_expected, op_inputs, pool_of, rows, slots


@pytest.mark.parametrize("name", linattn.OPS)
@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_every_op(name, framework, rng):
    x, words = op_inputs(name, rng)
    o, S = op_expected(x)
    if framework == "numpy":
        x = {n: a.numpy() for n, a in x.items()}
    out, state = linattn.forward(**x, **words, output_final_state=True)
    assert type(out) is type(x["q"]) and type(state) is type(x["q"])
    assert_close(out, o, tolerance(torch.float32))
    assert_close(state, S, tolerance(torch.float32, "state"))
    by_object, _ = linattn.forward(**x, **{**words, "op": linattn.OPS[name]})
    assert (by_object == out).all()


@pytest.mark.parametrize("name", linattn.OPS)
def test_T04_decode_equals_forward(name, rng):
    """Token by token through step, three tokens at a time, and one forward: one recurrence."""
    x, words = op_inputs(name, rng)
    out, state = linattn.forward(**x, **words, output_final_state=True)
    for stride in (1, 3):
        pool = torch.zeros(2, HV, K, V)
        pieces = []
        for t in range(0, 9, stride):
            piece = {n: a if a.dim() == 1 else a[:, t : t + stride] for n, a in x.items()}
            o, same = linattn.step(**piece, **words, pool=pool)
            assert same is pool
            pieces.append(o)
        assert_close(torch.cat(pieces, 1), out, 1e-5)
        assert_close(pool, state, 1e-5)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_numpy_equals_torch(dtype, rng):
    x = kda(rng, 2, 20, getattr(torch, dtype))
    h0 = pool_of(2, rng)
    ours, state = linattn.forward(**x, **KDA, initial_state=h0, output_final_state=True)
    arrays = {n: a.numpy() for n, a in x.items()}
    for a in arrays.values():
        a.flags.writeable = False  # inputs are only read
    o, S = linattn.forward(**arrays, **KDA, initial_state=h0.numpy(), output_final_state=True)
    assert o.dtype == dtype and (o == ours.numpy()).all() and (state.numpy() == S).all()


def test_numpy_strided_views_and_buffers(rng):
    x = kda(rng, 2, 20)
    ours, _ = linattn.forward(**x, **KDA)
    packed = numpy.concatenate([x["q"].numpy(), x["k"].numpy()], -1)  # [B, T, H, 2K]
    arrays = {n: a.numpy() for n, a in x.items()}
    arrays["q"], arrays["k"] = packed[..., :K], packed[..., K:]
    arrays["v"] = numpy.ascontiguousarray(arrays["v"].transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    buffer = numpy.zeros((2, 20, HV, V + 3), "float32")
    out, _ = linattn.forward(**arrays, **KDA, out=buffer[..., :V])
    assert out.base is buffer and (out == ours.numpy()).all()
    assert (buffer[..., V:] == 0).all()
    broadcast = numpy.broadcast_to(numpy.float32(-0.5), (2, 20, HV, K))
    with pytest.raises(ValueError, match="g has stride 0 on its last axis"):
        linattn.forward(**{**arrays, "g": broadcast}, **KDA)


def test_scalars_reach_the_library(rng):
    x = kda(rng, 1, 8)
    plain, _ = linattn.forward(**x, **KDA)
    scaled, _ = linattn.forward(**x, **KDA, scale=2 * K**-0.5)
    assert torch.equal(scaled, 2 * plain)
    logits = x["beta"].logit()
    by_logit, _ = linattn.forward(**{**x, "beta": logits}, **{**KDA, "beta_input": "logit"})
    twice, _ = linattn.forward(
        **{**x, "beta": (x["beta"] / 2).logit()}, **{**KDA, "beta_input": "twice_logit"}
    )
    assert_close(by_logit, plain, 1e-5)
    assert_close(twice, plain, 1e-5)
    decay, _ = linattn.forward(**{**x, "g": x["g"].exp()}, **{**KDA, "gate_input": "decay"})
    assert_close(decay, plain, 1e-5)


def test_16_bit_states(rng):
    x = kda(rng, 2, 20, torch.bfloat16)
    for dtype in (torch.bfloat16, torch.float16):
        h0 = pool_of(2, rng, dtype)
        out, state = linattn.forward(**x, **KDA, initial_state=h0, output_final_state=True)
        o, S = expected(x, h0)
        assert state.dtype == dtype
        assert_close(out, o, tolerance(torch.bfloat16))
        assert_close(state, S, tolerance(dtype, "state"))
    _, state = linattn.forward(**x, **KDA, output_final_state=True, state_dtype="bfloat16")
    assert state.dtype == torch.bfloat16


# ---- checkpoints, transition ----------------------------------------------------------------------------------------


def test_checkpoints_into_slots(rng):
    x = kda(rng, 1, 200)
    cu = torch.tensor([0, 130, 200], dtype=torch.int32)
    pool = torch.zeros(5, HV, K, V, dtype=torch.bfloat16)
    linattn.forward(
        **x,
        **KDA,
        cu_seqlens=cu,
        checkpoints=pool,
        checkpoint_offsets=slots(0, 3, 4),
        checkpoint_positions=slots(0, 64, 128, 64),
        checkpoint_slots=slots(3, 1, -1, 0),
    )
    for slot, begin, length in ((1, 0, 64), (0, 130, 64)):
        _, S = expected(rows(x, begin, begin + length))
        assert_close(pool[slot], S[0], tolerance(torch.bfloat16, "state"))
    assert torch.count_nonzero(pool[[2, 3, 4]]) == 0


def test_checkpoints_with_start_positions(rng):
    x = kda(rng, 1, 100)
    h0 = pool_of(1, rng)
    pool = torch.full((3, HV, K, V), 5.0)
    linattn.forward(
        **x,
        **KDA,
        initial_state=h0,
        start_positions=slots(40),
        checkpoints=pool,
        checkpoint_offsets=slots(0, 3),
        checkpoint_positions=slots(0, 64, 128),
        checkpoint_slots=slots(0, 1, 2),
    )
    assert (pool[0] == 5).all()  # before this call's tokens
    for slot, length in ((1, 24), (2, 88)):
        assert_close(pool[slot], expected(rows(x, 0, length), h0)[1][0], 1e-5)


@pytest.mark.parametrize("name", ["kda", "gdn", "gla", "gdn2"])
def test_transition(name, rng):
    """final = M initial + final from zero."""
    x, words = op_inputs(name, rng)
    h0 = torch.randn(2, HV, K, V, generator=rng)
    M = h0.new_empty(2, HV, K, K)
    _, zero = linattn.forward(**x, **words, output_final_state=True, transition=M)
    _, final = linattn.forward(**x, **words, output_final_state=True, initial_state=h0)
    assert_close(M @ h0 + zero, final, 1e-5)


# ---- implementations ------------------------------------------------------------------------------------------------


def test_implementations_and_pinning(rng):
    names = linattn.implementations()
    assert (
        names[-1] == "cpu.recurrent"
        and linattn.implementations("step")
        and linattn.implementations("backward")
    )
    x = kda(rng, 1, 100)
    oracle, _ = linattn.forward(**x, **KDA, implementation="cpu.recurrent")
    assert_close(oracle, expected(x)[0], 1e-6)
    with pytest.raises((ValueError, NotImplementedError), match=r"cpu\.imaginary"):
        linattn.forward(**x, **KDA, implementation="cpu.imaginary")


def test_every_cpu_implementation_agrees(rng):
    x = kda(rng, 2, 150, torch.bfloat16)
    h0 = pool_of(2, rng)
    o, S = expected(x, h0)
    problem = linattn.Problem(
        op="kda",
        max_tokens=512,
        max_sequences=2,
        heads=H,
        value_heads=HV,
        key_dim=K,
        value_dim=V,
        gate_input="log_decay",
        beta_input="value",
        state_layout="key_value",
    )
    lines = linattn.explain(problem).splitlines()
    for name in linattn.implementations():
        (line,) = [line for line in lines if line.split(":")[0].strip() == name]
        try:
            out, state = linattn.forward(
                **x, **KDA, initial_state=h0, output_final_state=True, implementation=name
            )
        except NotImplementedError as error:
            assert name in str(error)
            continue
        assert_close(out, o, tolerance(torch.bfloat16), f"{name} ({line}) out")
        assert_close(state, S, tolerance(torch.bfloat16, "state"), f"{name} state")


def test_explain_says_why_not():
    problem = linattn.Problem(
        op="gla",
        max_tokens=64,
        heads=1,
        key_dim=8,
        value_dim=8,
        gate_input="log_decay",
        state_layout="value_key",
    )
    text = linattn.explain(problem, "cuda:0")
    for name in linattn.implementations():
        assert name in text
    assert "device is cuda:0, not cpu" in text


def test_I06_plan_cache_sees_every_property(rng):
    """Pairs of calls that differ in one property, in both orders."""
    x = kda(rng, 2, 12)
    variants = {
        "plain": (x, KDA),
        "g bf16": ({**x, "g": x["g"].bfloat16()}, KDA),
        "beta fp16": ({**x, "beta": x["beta"].half()}, KDA),
        "bf16": ({n: a.bfloat16() if n in "qkv" else a for n, a in x.items()}, KDA),
        "strided v": ({**x, "v": x["v"].transpose(1, 2).contiguous().transpose(1, 2)}, KDA),
        "norm": (x, {**KDA, "qk_l2norm": True}),
        "layout": (x, {**KDA, "state_layout": "value_key"}),
        "heads": ({**x, "q": x["q"][:, :, :1], "k": x["k"][:, :, :1]}, KDA),
        "decay": ({**x, "g": x["g"].exp()}, {**KDA, "gate_input": "decay"}),
    }

    def result(name):
        tensors, words = variants[name]
        out, state = linattn.forward(**tensors, **words, output_final_state=True)
        return torch.cat([out.float().flatten(), state.flatten()])

    alone = {name: result(name) for name in variants}
    for first in variants:
        for second in variants:
            assert torch.equal(result(first), alone[first])
            assert torch.equal(result(second), alone[second])


def test_many_lengths_share_plans(rng):
    """More lengths and shapes than the cache holds plans."""
    for n in range(1, 300):
        q = torch.ones(1, 1 + n % 7, 1, n)
        out, _ = linattn.forward(op="linear_attention", q=q, k=q, v=q[..., :1])
        assert out[0, 0, 0, 0].item() == pytest.approx(n**0.5)


def test_threads_of_the_caller(rng):
    """C-08: first use of many problems from many threads at once."""
    from concurrent.futures import ThreadPoolExecutor

    x = kda(rng, 1, 30)
    out, _ = linattn.forward(**x, **KDA)

    def call(i):
        again, _ = linattn.forward(**x, **KDA, sm_limit=i % 5)
        return torch.equal(again, out)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(call, range(64)))


def test_error_ratio_sees_nan():
    assert error_ratio(torch.tensor([1.0, float("nan")]), torch.ones(2)) == float("inf")
    assert error_ratio(numpy.array([2.0]), numpy.array([1.0])) == 1.0


def test_groups_in_normalised_linear_attention(rng):
    q, k = (torch.rand(1, 9, H, K, generator=rng) for _ in "qk")
    v = torch.randn(1, 9, HV, V, generator=rng)
    o, _ = linattn.chunk_linear_attn(q, k, v)
    wide = (x.repeat_interleave(HV // H, 2) for x in (q, k))
    assert torch.equal(o, linattn.chunk_linear_attn(*wide, v)[0])
