# SPDX-License-Identifier: Apache-2.0
"""Properties that need no reference, and faults N whose right value is known."""

import linattn
import pytest
import torch
from linattn.testing import assert_close, error_ratio
from problems import HV, KDA, H, kda, rows

# ---- properties without tolerance -----------------------------------------------------------------------------------


def test_SPLIT_and_L07_both_layouts(rng):
    x = kda(rng, 2, 100)
    whole, final = linattn.forward(**x, **KDA, output_final_state=True)
    value_first = {**KDA, "state_layout": "value_key"}
    for words in (KDA, value_first):
        for s in (1, 37, 64, 99):
            o1, S = linattn.forward(**rows(x, 0, s), **words, output_final_state=True)
            o2, S = linattn.forward(
                **rows(x, s, 100), **words, initial_state=S, output_final_state=True
            )
            assert_close(torch.cat([o1, o2], 1), whole, 1e-5)
            S = S.transpose(2, 3) if words is value_first else S
            assert_close(S, final, 1e-5)


@pytest.mark.parametrize(
    "words", [KDA, {**KDA, "state_layout": "value_key"}], ids=["key_value", "value_key"]
)
@pytest.mark.parametrize("door", [linattn.forward, linattn.step])
def test_L07_one_entry_of_a_square_state(door, words):
    """K = V: only the meaning of the axes tells the layouts apart."""
    D = 16
    state = torch.zeros(1, 1, D, D)
    state[0, 0, 0, 5] = 1.0  # key 0, value 5
    if words["state_layout"] == "value_key":
        state = state.transpose(2, 3).contiguous()
    q = torch.zeros(1, 1, 1, D)
    q[..., 0] = 1.0
    out, _ = door(
        q=q,
        k=q,
        v=torch.ones(1, 1, 1, D),
        g=torch.zeros(1, 1, 1, D),
        beta=torch.zeros(1, 1, 1),
        **words,
        initial_state=state,
    )
    assert out[0, 0, 0, 5] == D**-0.5 and out.count_nonzero() == 1


@pytest.mark.parametrize("implementation", ["cpu.recurrent", "cpu.chunked"])
def test_CAUSAL(rng, implementation):
    x = kda(rng, 1, 100)
    out, _ = linattn.forward(**x, **KDA, implementation=implementation)
    for P in (1, 17, 64):
        changed = {n: a.clone() for n, a in x.items()}
        for n in ("q", "k", "v"):
            changed[n][:, P:] = 3.0
        again, _ = linattn.forward(**changed, **KDA, implementation=implementation)
        # Equal keys send their whole chunk of 32 through double arithmetic (docs/numerics.md).
        same = P // 32 * 32 if implementation == "cpu.chunked" else P
        assert torch.equal(again[:, :same], out[:, :same])
        assert error_ratio(again[:, :P], out[:, :P]) <= 1e-6


def test_C10_L08_rows_and_heads_alone(rng):
    x = kda(rng, 3, 40)
    out, state = linattn.forward(**x, **KDA, output_final_state=True, batch_invariant=True)
    for n in range(3):
        one = {name: a[n : n + 1] for name, a in x.items()}
        o, S = linattn.forward(**one, **KDA, output_final_state=True, batch_invariant=True)
        assert torch.equal(o[0], out[n]) and torch.equal(S[0], state[n])
    for h in range(HV):
        groups = HV // H
        one = {
            name: a[:, :, h // groups : h // groups + 1] if name in "qk" else a[:, :, h : h + 1]
            for name, a in x.items()
        }
        o, S = linattn.forward(**one, **KDA, output_final_state=True)
        assert torch.equal(o[:, :, 0], out[:, :, h]) and torch.equal(S[:, 0], state[:, h])


def test_CONST_closed_form():
    """Equal keys: S^T u follows r = (1 - b) a r + b v, whatever the length."""
    T, D, b, a = 300, 16, 0.9995, -2e-5
    u = torch.zeros(1, T, 1, D)
    u[..., 3] = 1.0
    v = torch.randn(1, 24, 1, D, generator=torch.Generator().manual_seed(3)).repeat(1, 13, 1, 1)[
        :, :T
    ]
    out, _ = linattn.forward(
        q=u, k=u, v=v, g=torch.full((1, T, 1, D), a), beta=torch.full((1, T, 1), b), **KDA
    )
    r, rs = torch.zeros(D, dtype=torch.float64), []
    b = float(torch.tensor(b))
    for t in range(T):
        r = (1 - b) * float(torch.tensor(a).exp()) * r + b * v[0, t, 0].double()
        rs.append(r)
    assert_close(out[0, :, 0], D**-0.5 * torch.stack(rs), 1e-5)


def test_N11_beta_is_not_rounded():
    one = torch.zeros(1, 1, 1, 16, dtype=torch.bfloat16)
    one[..., 0] = 1
    logit = torch.full((1, 1, 1), 0.5, dtype=torch.bfloat16)
    pool = torch.zeros(1, 1, 16, 16)
    words = {
        "op": "gdn",
        "gate_input": "log_decay",
        "beta_input": "logit",
        "state_layout": "key_value",
    }
    linattn.step(
        q=one, k=one, v=torch.ones_like(one), g=torch.zeros(1, 1, 1), beta=logit, **words, pool=pool
    )
    assert abs(pool[0, 0, 0, 0].item() - 0.6224593) < 1e-6


def test_N19_gate_dtype_does_not_matter(rng):
    x = kda(rng, 1, 40)
    g = x["g"].bfloat16()
    a, _ = linattn.forward(**{**x, "g": g}, **KDA)
    b, _ = linattn.forward(**{**x, "g": g.float()}, **KDA)
    assert torch.equal(a, b)
