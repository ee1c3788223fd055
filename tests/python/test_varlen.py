# SPDX-License-Identifier: Apache-2.0
"""Packed sequences: entries V of the fault catalogue."""

import linattn
import pytest
import torch
from linattn.testing import assert_close, tolerance
from reference import l2norm

H, HV, K, V = 2, 4, 16, 24


def tensors(T, rng, dtype=torch.bfloat16):
    return {
        "q": l2norm(torch.randn(1, T, H, K, generator=rng)).to(dtype),
        "k": l2norm(torch.randn(1, T, H, K, generator=rng)).to(dtype),
        "v": torch.randn(1, T, HV, V, generator=rng).to(dtype),
        "g": -torch.rand(1, T, HV, K, generator=rng),
        "beta": torch.rand(1, T, HV, generator=rng),
    }


def offsets(*lengths, dtype=torch.int64):
    return torch.tensor([0, *lengths]).cumsum(0).to(dtype)


def alone(x, cu, h0, n):
    b, e = cu[n], cu[n + 1]
    piece = {name: a[:, b:e] for name, a in x.items()}
    return linattn.chunk_kda(**piece, initial_state=h0[n : n + 1], output_final_state=True)


LENGTHS = [(0, 70, 0, 0, 1, 64, 0), (130, 0), (1, 1, 1), (0, 0)]


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_V01_empty_sequences(lengths, rng):
    cu = offsets(*lengths)
    x = tensors(int(cu[-1]), rng)
    h0 = torch.arange(1.0, len(lengths) + 1).view(-1, 1, 1, 1).expand(-1, HV, K, V).contiguous()
    leaves = [a.requires_grad_() for a in (*x.values(), h0)]
    o, state = linattn.chunk_kda(**x, initial_state=h0, output_final_state=True, cu_seqlens=cu)
    for n, length in enumerate(lengths):
        if length == 0:
            assert torch.equal(state[n], h0[n])
            continue
        expected, S = alone(x, cu, h0, n)
        assert torch.equal(o[:, cu[n] : cu[n + 1]], expected)
        assert torch.equal(state[n : n + 1], S)
    w = torch.randn(state.shape, generator=rng)
    (o.float().square().sum() + (state * w).sum()).backward()
    for n, length in enumerate(lengths):
        if length == 0:
            assert torch.equal(h0.grad[n], w[n])
    assert all(torch.isfinite(a.grad).all() for a in leaves)


def test_V01_without_initial_state(rng):
    cu = offsets(0, 5, 0)
    _, state = linattn.chunk_kda(**tensors(5, rng), output_final_state=True, cu_seqlens=cu)
    assert torch.count_nonzero(state[[0, 2]]) == 0 and torch.count_nonzero(state[1]) > 0


def test_V02_rows_past_the_last_offset(rng):
    """Zero, in outputs and in every gradient, whatever was in memory (conftest.py poisons allocations)."""
    cu = torch.tensor([0, 20, 50])
    x = {name: a.requires_grad_() for name, a in tensors(64, rng).items()}
    with torch.no_grad():
        for a in x.values():
            a[:, 50:] = float("nan")
    o, state = linattn.chunk_kda(**x, output_final_state=True, cu_seqlens=cu)
    assert torch.count_nonzero(o[:, 50:]) == 0
    (o.float().square().sum() + state.sum()).backward()
    for name, a in x.items():
        assert torch.count_nonzero(a.grad[:, 50:]) == 0, name
        assert torch.isfinite(a.grad).all(), name


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_V03_both_offset_dtypes(dtype, rng):
    x = tensors(100, rng)
    o, _ = linattn.chunk_kda(**x, cu_seqlens=torch.tensor([0, 33, 100], dtype=dtype))
    expected, _ = linattn.chunk_kda(**x, cu_seqlens=torch.tensor([0, 33, 100]))
    assert torch.equal(o, expected)


BAD = {
    "float": (torch.tensor([0.0, 8.0]), "cu_seqlens is float32; expected int32 or int64"),
    "int16": (torch.tensor([0, 8], dtype=torch.int16), "cu_seqlens is int16"),
    "strided": (torch.tensor([0, 9, 4, 9, 8, 9])[::2], "cu_seqlens has strides"),
    "one entry": (torch.tensor([0]), r"cu_seqlens has shape \[1\]; expected \[N \+ 1\]"),
    "two axes": (torch.tensor([[0, 8]]), r"cu_seqlens has shape \[1, 2\]"),
    "not from zero": (torch.tensor([5, 8]), r"cu_seqlens\[0\] is 5; expected 0"),
    "falling": (torch.tensor([0, 7, 3, 8]), r"cu_seqlens\[2\] is 3; expected at least 7"),
    "too long": (torch.tensor([0, 9]), r"cu_seqlens\[1\] is 9; expected at most tokens, 8"),
    "negative": (torch.tensor([0, -1, 8]), r"cu_seqlens\[1\] is -1"),
}


@pytest.mark.parametrize("bad", BAD)
def test_V03_V04_offsets_that_are_not_sane(bad, rng):
    cu, message = BAD[bad]
    words = {"op": "kda", "gate_input": "log_decay", "beta_input": "value"}
    with pytest.raises(ValueError, match=message):
        linattn.forward(**tensors(8, rng), **words, cu_seqlens=cu)


def test_V03_scalar_offsets(rng):
    words = {"op": "kda", "gate_input": "log_decay", "beta_input": "value"}
    with pytest.raises(ValueError, match="cu_seqlens has shape"):
        linattn.forward(**tensors(8, rng), **words, cu_seqlens=torch.tensor(8))
    x = {name: a.requires_grad_() for name, a in tensors(8, rng).items()}
    with pytest.raises(ValueError, match="cu_seqlens has shape"):
        linattn.chunk_kda(**x, cu_seqlens=torch.tensor([0]), output_final_state=True)
    with pytest.raises(TypeError, match="cu_seqlens is a list"):
        linattn.forward(**tensors(8, rng), **words, cu_seqlens=[0, 8])


def test_V05_offsets_edited_in_place(rng):
    x = tensors(128, rng)
    cu = torch.tensor([0, 64, 128])
    linattn.chunk_kda(**x, cu_seqlens=cu)
    cu.copy_(torch.tensor([0, 100, 128]))
    o, _ = linattn.chunk_kda(**x, cu_seqlens=cu)
    expected, _ = linattn.chunk_kda(**x, cu_seqlens=torch.tensor([0, 100, 128]))
    assert torch.equal(o, expected)


def test_V07_S03_neighbours_do_not_leak(rng):
    x = tensors(240, rng)
    cu = torch.tensor([0, 40, 240])
    o, state = linattn.chunk_kda(**x, cu_seqlens=cu, output_final_state=True)
    for poison in (1e4, float("nan")):
        dirty = {name: a.clone() for name, a in x.items()}
        for a in dirty.values():
            a[:, 40:] = poison
        again, same = linattn.chunk_kda(**dirty, cu_seqlens=cu, output_final_state=True)
        assert torch.equal(again[:, :40], o[:, :40]) and torch.equal(same[0], state[0])


def test_V06_gradients_of_a_wide_key(rng):
    """K = 256, uneven sequences: dg of every channel against each sequence alone."""
    T, K = 328, 256
    lengths = (37, 91, 200)
    cu = offsets(*lengths)
    x = {
        "q": l2norm(torch.randn(1, T, 1, K, generator=rng)),
        "k": l2norm(torch.randn(1, T, 1, K, generator=rng)),
        "v": torch.randn(1, T, 1, 8, generator=rng),
        "g": -torch.rand(1, T, 1, K, generator=rng),
    }
    x = {name: a.requires_grad_() for name, a in x.items()}
    do = torch.randn(1, T, 1, 8, generator=rng)
    linattn.chunk_gla(**x, cu_seqlens=cu)[0].backward(do)
    packed = {name: a.grad.clone() for name, a in x.items()}
    for a in x.values():
        a.grad = None
    for n in range(3):
        rows = slice(int(cu[n]), int(cu[n + 1]))
        linattn.chunk_gla(**{name: a[:, rows] for name, a in x.items()})[0].backward(do[:, rows])
    for name, a in x.items():
        assert_close(packed[name], a.grad, tolerance(torch.float32), name)


def test_S05_nothing_at_all(rng):
    for cu in (offsets(0), offsets(0, 0)):
        x = tensors(0, rng)
        h0 = torch.randn(len(cu) - 1, HV, K, V, generator=rng)
        o, state = linattn.chunk_kda(**x, initial_state=h0, output_final_state=True, cu_seqlens=cu)
        assert o.shape == (1, 0, HV, V) and torch.equal(state, h0)


def test_T10_split_at_70(rng):
    x = tensors(150, rng, torch.float32)
    whole, final = linattn.chunk_kda(**x, output_final_state=True)
    first, S = linattn.chunk_kda(**{n: a[:, :70] for n, a in x.items()}, output_final_state=True)
    second, S = linattn.chunk_kda(
        **{n: a[:, 70:] for n, a in x.items()}, initial_state=S, output_final_state=True
    )
    assert_close(torch.cat([first, second], 1), whole, 1e-5)
    assert_close(S, final, 1e-5)


def test_V07_gradients_do_not_cross_documents(rng):
    x = {name: a.requires_grad_() for name, a in tensors(100, rng).items()}
    o, _ = linattn.chunk_kda(**x, cu_seqlens=torch.tensor([0, 45, 100]))
    o[:, 45:].float().square().sum().backward()
    for name, a in x.items():
        assert torch.count_nonzero(a.grad[:, :45]) == 0, name
        assert torch.count_nonzero(a.grad[:, 45:]) > 0, name
