# SPDX-License-Identifier: Apache-2.0
"""Fused steps: a convolution before the recurrence, a norm behind it, in one call."""

import linattn
import pytest
import torch
import torch.nn.functional as F
from linattn.testing import assert_close
from problems import HV, KDA, H, K, V, expected, kda, pool_of, slots

WIDTH, CHANNELS = 4, 2 * H * K + HV * V
SPLIT = (H * K, H * K, HV * V)


def conv_of(rng, rows, entries=WIDTH - 1, dtype=torch.float32):
    return {
        "weight": torch.randn(CHANNELS, WIDTH, generator=rng) * 0.5,
        "bias": torch.randn(CHANNELS, generator=rng) * 0.2,
        "state": torch.randn(rows, CHANNELS, entries, generator=rng).to(dtype),
    }


def packed(x):
    """[B, T, channels]."""
    return torch.cat([x[name].flatten(2) for name in "qkv"], dim=-1)


def convolved(x, conv, before, activation=F.silu):
    """Of batches whose rows begin with `before`, [B, channels, WIDTH - 1], in double."""
    inputs = torch.cat([before.double(), packed(x).double().mT], dim=-1)
    y = F.conv1d(inputs, conv["weight"].double()[:, None], conv["bias"].double(), groups=CHANNELS)
    q, k, v = activation(y).mT.split(SPLIT, dim=-1)
    return x | {
        "q": q.unflatten(-1, (H, K)),
        "k": k.unflatten(-1, (H, K)),
        "v": v.unflatten(-1, (HV, V)),
    }


def normalized(o, norm):
    o = o.double()
    y = o / (o.square().mean(-1, keepdim=True) + norm["epsilon"]).sqrt()
    if "weight" in norm:
        y = y * norm["weight"].double()
    gate = {"silu": F.silu, "sigmoid": torch.sigmoid}.get(norm.get("gate", "silu"))
    return y * gate(norm["z"].double()) if gate else y


@pytest.mark.parametrize("gate", ["silu", "sigmoid", "identity"])
@pytest.mark.parametrize("rows_first", [False, True])
def test_decode_equals_its_parts(rng, gate, rows_first):
    x, pool, conv = kda(rng, 3, 1), pool_of(5, rng), conv_of(rng, 6)
    if rows_first:  # a pool [slots, entries, channels]
        conv["state"] = conv["state"].mT.contiguous().mT
    norm = {"weight": torch.randn(V, generator=rng), "epsilon": 1e-5, "gate": gate}
    if gate != "identity":
        norm["z"] = torch.randn(3, 1, HV, V, generator=rng)
    start, rows = pool.clone(), conv["state"].clone()
    read, write = slots(4, 1, 3), slots(4, 0, 3)
    out, _ = linattn.step(
        **x,
        **KDA,
        pool=pool,
        read_slots=read,
        write_slots=write,
        conv=linattn.Conv(**conv, read_slots=slots(5, 2, 0), write_slots=slots(5, 1, 0)),
        norm=linattn.Norm(**norm),
    )
    y = convolved(x, conv, rows[[5, 2, 0]])
    o, states = expected(y, start[[4, 1, 3]])
    assert_close(out, normalized(o, norm), 1e-5)
    assert_close(pool[[4, 0, 3]], states, 1e-5)
    left = torch.cat([rows[[5, 2, 0]][..., 1:], packed(x).mT], dim=-1)
    assert torch.equal(conv["state"][[5, 1, 0]], left)
    assert torch.equal(conv["state"][2:5], rows[2:5])


def test_parts_apart_equal_parts_together(rng):
    x, conv = kda(rng, 2, 2), conv_of(rng, 2)
    apart = {
        name: tuple(t.clone() for t in a.split(SPLIT, dim=0 if name != "state" else 1))
        for name, a in conv.items()
    }
    together, _ = linattn.step(**x, **KDA, conv=linattn.Conv(**conv))
    out, _ = linattn.step(**x, **KDA, conv=linattn.Conv(**apart))
    assert torch.equal(out, together)
    assert torch.equal(torch.cat(apart["state"], dim=1), conv["state"])


def test_drafts_go_on_from_what_was_accepted(rng):
    """Two verifications of three drafts: the second begins behind the two accepted tokens of the first."""
    x, conv = kda(rng, 1, 6), conv_of(rng, 1, WIDTH - 1 + 2)
    pool = torch.zeros(3, HV, K, V)
    rows = conv["state"].clone()
    for first, accepted in ((0, 1), (2, 2)):
        out, _ = linattn.step(
            **{name: t[:, first : first + 3] for name, t in x.items()},
            **KDA,
            pool=pool,
            read_slots=slots(0, 1, 2)[None],
            accepted=slots(accepted),
            write_slots=slots(0, 1, 2)[None],
            conv=linattn.Conv(**conv, accepted=slots(accepted)),
        )
    y = convolved(x, conv, rows[..., : WIDTH - 1])
    assert_close(out, expected(y)[0][:, 2:5], 1e-5)


def test_one_part_alone_and_half_precision(rng):
    x = {name: t.bfloat16() for name, t in kda(rng, 2, 2).items()}
    norm = {"epsilon": 1e-6, "z": torch.randn(2, 2, HV, V, generator=rng).bfloat16()}
    out, _ = linattn.step(**x, **KDA, norm=linattn.Norm(**norm))
    assert_close(out, normalized(expected(x)[0], norm), 6e-3)
    conv = conv_of(rng, 2, dtype=torch.bfloat16)
    rows = conv["state"].clone()
    out, _ = linattn.step(**x, **KDA, conv=linattn.Conv(**conv, activation="identity"))
    y = convolved(x, conv, rows, activation=lambda y: y)
    assert_close(out, expected(y)[0], 6e-3)


def test_pads_are_left_alone(rng):
    x, pool, conv = kda(rng, 2, 1), pool_of(2, rng), conv_of(rng, 2)
    pool_before, rows = pool.clone(), conv["state"].clone()
    ids = slots(1, -1)
    out, _ = linattn.step(
        **x,
        **KDA,
        pool=pool,
        read_slots=ids,
        write_slots=ids,
        conv=linattn.Conv(**conv, read_slots=ids, write_slots=ids),
        norm=linattn.Norm(gate="identity"),
    )
    assert torch.count_nonzero(out[1]) == 0 and torch.count_nonzero(out[0]) > 0
    assert torch.equal(pool[0], pool_before[0]) and torch.equal(conv["state"][0], rows[0])


def test_numpy(rng):
    x, conv = kda(rng, 2, 1), conv_of(rng, 2)
    expected_out, _ = linattn.step(
        **x, **KDA, conv=linattn.Conv(**{name: a.clone() for name, a in conv.items()})
    )
    out, _ = linattn.step(
        **{name: a.numpy() for name, a in x.items()},
        **KDA,
        conv=linattn.Conv(**{name: a.numpy() for name, a in conv.items()}),
    )
    assert (out == expected_out.numpy()).all()


def test_compiled(rng):
    x, conv = kda(rng, 2, 1), conv_of(rng, 2)
    z = torch.randn(2, 1, HV, V, generator=rng)

    def decode(state, pool):
        more = {"state": state, "weight": conv["weight"], "bias": conv["bias"]}
        return linattn.step(
            **x, **KDA, pool=pool, conv=linattn.Conv(**more), norm=linattn.Norm(z=z)
        )[0]

    pools = [pool_of(2, torch.Generator().manual_seed(1)) for _ in range(2)]
    states = [conv["state"].clone() for _ in range(2)]
    eager = decode(states[0], pools[0])
    compiled = torch.compile(decode, fullgraph=True, backend="aot_eager")(states[1], pools[1])
    assert torch.equal(eager, compiled)
    assert torch.equal(states[0], states[1]) and not torch.equal(states[0], conv["state"])
    assert torch.equal(pools[0], pools[1])


@pytest.mark.parametrize(
    "conv, norm, words",
    [
        ({"weight": torch.zeros(3, WIDTH)}, None, "conv_weight has shape [3, 4]; expected"),
        ({"weight": torch.zeros(CHANNELS, 5)}, None, "conv_width is 5; expected"),
        ({"weight": torch.zeros(CHANNELS)}, None, "conv_weight has shape"),
        ({"weight": (torch.zeros(H * K, WIDTH),) * 2 + (None,)}, None, "came with one of"),
        ({"bias": torch.zeros(7)}, None, "conv_bias has shape [7]"),
        ({"bias": torch.zeros(CHANNELS).half()}, None, "conv_bias is float16; expected float32"),
        ({"state": torch.zeros(2, 7, WIDTH - 1)}, None, "conv_state has shape [2, 7, 3]"),
        ({"state": torch.zeros(2, CHANNELS, 2)}, None, "conv_entries is 2; expected"),
        ({"read_slots": slots(0, 1, 2)}, None, "conv_read_slots has shape [3]"),
        ({"activation": "tanh"}, None, "conv.activation is 'tanh'; expected one of"),
        ({"activation": "sigmoid"}, None, "conv_activation is 3; expected identity or silu"),
        (None, {"gate": "silu"}, "z is absent"),
        (None, {"gate": "identity", "weight": torch.zeros(3)}, "norm_weight has shape [3]"),
        (None, {"z": torch.zeros(2, 1, HV, 3)}, "z has shape"),
        (None, {"gate": "identity", "epsilon": -1.0}, "norm_epsilon is -1"),
    ],
)
def test_refusals_name_the_argument(rng, conv, norm, words):
    x = kda(rng, 2, 1)
    if conv is not None:
        conv = linattn.Conv(**(conv_of(rng, 2) | conv))
    with pytest.raises(ValueError) as error:
        linattn.step(**x, **KDA, conv=conv, norm=norm and linattn.Norm(**norm))
    assert words in str(error.value)


def test_trees_and_gradients_are_refused(rng):
    x, conv = kda(rng, 1, 3), linattn.Conv(**conv_of(rng, 1))
    with pytest.raises(ValueError, match="parents is given"):
        linattn.step(**x, **KDA, conv=conv, parents=slots(-1, 0, 0))
    weight = torch.nn.Parameter(conv.weight)
    with pytest.raises(NotImplementedError, match="requires a gradient"):
        linattn.step(**x, **KDA, conv=linattn.Conv(weight))
