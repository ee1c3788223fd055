# SPDX-License-Identifier: Apache-2.0
"""Strides and alignment: entries L of the fault catalogue."""

import linattn
import pytest
import torch
from reference import l2norm

B, T, H, D = 2, 40, 2, 16


def tensors(rng, dtype=torch.bfloat16):
    return {
        "q": l2norm(torch.randn(B, T, H, D, generator=rng)).to(dtype),
        "k": l2norm(torch.randn(B, T, H, D, generator=rng)).to(dtype),
        "v": torch.randn(B, T, H, D, generator=rng).to(dtype),
        "g": -torch.rand(B, T, H, D, generator=rng),
        "beta": torch.rand(B, T, H, generator=rng),
    }


def gradients(call, x, do):
    leaves = {name: a.detach().requires_grad_() for name, a in x.items()}
    o, _ = call(**leaves)
    o.backward(do(o))
    return [o.detach(), *(a.grad for a in leaves.values())]


def test_L01_noncontiguous_grad(rng):
    x = tensors(rng)
    do = torch.randn(B, T, H, D, generator=rng).bfloat16()
    wide = torch.zeros(B, T, H, 3 * D).bfloat16()
    wide[..., D : 2 * D] = do
    plain = gradients(linattn.chunk_kda, x, lambda o: do)
    for strided in (
        wide[..., D : 2 * D],
        do.transpose(1, 2).contiguous().transpose(1, 2),  # head-major
        do.transpose(2, 3).contiguous().transpose(2, 3),  # the last axis is strided
    ):
        assert strided.stride() != do.stride()
        for a, b in zip(plain, gradients(linattn.chunk_kda, x, lambda o, d=strided: d)):
            assert torch.equal(a, b)


def test_L01_expanded_grad(rng):
    """The gradient of a sum has stride 0 everywhere."""
    x = tensors(rng)
    ones = gradients(linattn.chunk_kda, x, lambda o: torch.ones_like(o))
    expanded = gradients(
        linattn.chunk_kda, x, lambda o: torch.ones((), dtype=o.dtype).expand(o.shape)
    )
    assert all(torch.equal(a, b) for a, b in zip(ones, expanded))


@pytest.mark.parametrize("head_major", [False, True])
def test_L03_packed_qkv(head_major, rng):
    x = tensors(rng)
    names = ("q", "k", "v")
    if head_major:
        packed = torch.stack([x[n].transpose(1, 2) for n in names])  # [3, B, H, T, D]
        views = {n: packed[i].transpose(1, 2) for i, n in enumerate(names)}
    else:
        pad = torch.zeros(B, T, 5).bfloat16()
        packed = torch.cat([*(x[n].flatten(2) for n in names), x["beta"].bfloat16(), pad], -1)
        views = {
            n: packed[..., i * H * D : (i + 1) * H * D].unflatten(-1, (H, D))
            for i, n in enumerate(names)
        }
        views["beta"] = packed[..., 3 * H * D : 3 * H * D + H]
    views = {**x, **views}
    contiguous = {n: a.contiguous() for n, a in views.items()}
    assert not views["q"].is_contiguous()
    do = torch.randn(B, T, H, D, generator=rng).bfloat16()
    plain = gradients(linattn.chunk_kda, contiguous, lambda o: do)
    for a, b in zip(plain, gradients(linattn.chunk_kda, views, lambda o: do)):
        assert torch.equal(a, b)


def test_L05_unaligned_pointers(rng):
    """Every tensor one element off its allocation."""
    x = tensors(rng)
    h0 = torch.randn(B, H, D, D, generator=rng)
    expected = linattn.chunk_kda(**x, initial_state=h0, output_final_state=True)

    def shifted(a):
        buffer = torch.zeros(a.numel() + 1, dtype=a.dtype)
        buffer[1:] = a.flatten()
        return buffer[1:].view(a.shape)

    for name in x:
        moved = {**x, name: shifted(x[name])}
        o, state = linattn.chunk_kda(**moved, initial_state=h0, output_final_state=True)
        assert torch.equal(o, expected[0]) and torch.equal(state, expected[1]), name
    o, _ = linattn.chunk_kda(**x, initial_state=shifted(h0), output_final_state=True)
    assert torch.equal(o, expected[0])


def test_L10_gate_layouts(rng):
    x = tensors(rng)
    expected = linattn.chunk_kda(**x)[0]
    head_major = x["g"].transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(linattn.chunk_kda(**{**x, "g": head_major})[0], expected)
    one = x["g"][..., :1]
    expanded = gradients(linattn.chunk_kda, {**x, "g": one.expand(-1, -1, -1, D)}, torch.ones_like)
    repeated = gradients(linattn.chunk_kda, {**x, "g": one.repeat(1, 1, 1, D)}, torch.ones_like)
    assert all(torch.equal(a, b) for a, b in zip(expanded, repeated))


def test_L08_heads_alone(rng):
    x = tensors(rng)
    x["g"][:, :, 1] *= 10
    whole = gradients(linattn.chunk_kda, x, torch.ones_like)
    for h in range(H):
        one = {n: a[:, :, h : h + 1] for n, a in x.items()}
        for a, b in zip(whole, gradients(linattn.chunk_kda, one, torch.ones_like)):
            assert torch.equal(a[:, :, h : h + 1], b)


def test_slice_of_a_longer_buffer(rng):
    x = tensors(rng)
    longer = {n: torch.cat([a, a], 1)[:, :T] for n, a in x.items()}
    assert longer["q"].stride(0) == 2 * T * H * D
    assert torch.equal(linattn.chunk_kda(**longer)[0], linattn.chunk_kda(**x)[0])


def test_transposed_state(rng):
    """FLA copies what is not contiguous; so do its doors here, the native ones refuse."""
    x = tensors(rng)
    h0 = torch.randn(B, H, D, D, generator=rng)
    o, _ = linattn.chunk_kda(**x, initial_state=h0)
    view = h0.transpose(2, 3).contiguous().transpose(2, 3)
    assert torch.equal(linattn.chunk_kda(**x, initial_state=view)[0], o)
