# SPDX-License-Identifier: Apache-2.0
"""cuLA's doors for decode: shapes, layouts, pools, pads and the verification of drafts, against the recurrence."""

import inspect

import linattn
import pytest
import torch
from linattn.testing import assert_close
from problems import HV, H, K, V, slots
from reference import bounded_gate, l2norm, recurrence, softplus_gate

EMPTY = inspect.Parameter.empty
UPDATE = linattn.fused_sigmoid_gating_delta_rule_update


def tokens(rng, N, T=1, is_kda=True):
    """Inputs of the KDA and GDN doors, by their names; q and k not normalised."""
    heads = (HV, K) if is_kda else (HV,)
    return {
        "q": 2 * torch.randn(N, T, H, K, generator=rng),
        "k": 2 * torch.randn(N, T, H, K, generator=rng),
        "v": torch.randn(N, T, HV, V, generator=rng),
        "a": torch.randn(N, T, *heads, generator=rng),
        "b": torch.randn(N, T, HV, generator=rng),
        "A_log": torch.randn(HV, generator=rng),
        "dt_bias": torch.randn(*heads, generator=rng),
    }


def pool_of(count, rng, layout="vk", dtype=torch.float32):
    shape = (count, HV, V, K) if layout == "vk" else (count, HV, K, V)
    return torch.randn(shape, generator=rng).to(dtype)


def by_key(state, layout="vk"):
    return state.mT if layout == "vk" else state


def expected(x, h0=None, *, softplus_beta=1.0, lower_bound=None, norm=True, scale=None):
    """(o, S [N, HV, K, V]) of tokens [N, T, ...]."""
    d = {name: None if a is None else a.double() for name, a in x.items()}
    if lower_bound is not None:
        decay = bounded_gate(d["a"], d["A_log"], d["dt_bias"], lower_bound)
    else:
        rate = d["A_log"] - torch.tensor(softplus_beta).double().log()
        decay = softplus_gate(softplus_beta * d["a"], rate, softplus_beta * d["dt_bias"])
    q, k = (l2norm(d[name]) if norm else d[name] / 8 for name in "qk")
    return recurrence(
        q,
        k,
        d["v"],
        decay if decay.dim() == 4 else decay[..., None],
        beta=d["b"].sigmoid(),
        scale=scale,
        initial_state=None if h0 is None else h0.double(),
    )


def flat(x):
    """[N, 1, ...] as [1, N, ...], the parameters as they are."""
    return {n: a if n in ("A_log", "dt_bias") else a.transpose(0, 1) for n, a in x.items()}


# ---- signatures -----------------------------------------------------------------------------------------------------

MTP = {"disable_state_update": False, "intermediate_states_buffer": None, "lower_bound": None}
SIGNATURES = {
    "kda_decode": (
        "A_log dt_bias q k v a b initial_state_source initial_state_indices",
        {
            "cu_seqlens": None,
            "scale": None,
            "use_qk_l2norm_in_kernel": True,
            "softplus_beta": 1.0,
            "softplus_threshold": 20.0,
            "out": None,
            "state_layout": "vk",
        },
    ),
    "fused_sigmoid_gating_delta_rule_update": (
        "A_log a dt_bias softplus_beta softplus_threshold q k v b initial_state_source initial_state_indices",
        {
            "scale": None,
            "use_qk_l2norm_in_kernel": False,
            "cu_seqlens": None,
            "is_kda": False,
            "out": None,
            "state_layout": "vk",
        },
    ),
    "kda_decode_mtp": (
        "A_log dt_bias q k v a b initial_state_source initial_state_indices",
        {
            "scale": None,
            "use_qk_l2norm_in_kernel": True,
            "softplus_beta": 1.0,
            "softplus_threshold": 20.0,
            "out": None,
            "state_layout": "vk",
            **MTP,
        },
    ),
    "linear_attention_decode": (
        "q k v s out softmax_scale stride_q stride_k stride_v stride_s stride_o s_offsets decay_scales "
        "HEAD_DIM K_SPLIT_DIM V_SPLIT_DIM",
        {},
    ),
}


@pytest.mark.parametrize("door", SIGNATURES)
def test_signature(door):
    required, optional = SIGNATURES[door]
    ours = inspect.signature(getattr(linattn, door)).parameters.values()
    assert [(p.name, p.default) for p in ours] == [
        *((name, EMPTY) for name in required.split()),
        *optional.items(),
    ]
    assert {p.kind for p in ours} == {inspect.Parameter.POSITIONAL_OR_KEYWORD}


# ---- one token ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("layout", ["vk", "kv"])
@pytest.mark.parametrize("is_kda", [True, False])
@pytest.mark.parametrize("given_out", [False, True])
def test_pool_in_place(packed, layout, is_kda, given_out, rng):
    N = 4
    x = tokens(rng, N, is_kda=is_kda)
    pool = pool_of(7, rng, layout)
    before = pool.clone()
    ids = torch.tensor([5, 0, -1, 3])
    y = flat(x) if packed else x
    out = torch.full(y["v"].shape, 7.0) if given_out else None
    o = UPDATE(
        softplus_beta=1.0,
        softplus_threshold=20.0,
        **y,
        initial_state_source=pool,
        initial_state_indices=ids,
        use_qk_l2norm_in_kernel=True,
        is_kda=is_kda,
        out=out,
        state_layout=layout,
    )
    assert o.shape == y["v"].shape
    if given_out:
        assert_close(out, o, 0.0)
    o = o.transpose(0, 1) if packed else o
    expect, S = expected(x, by_key(before[[5, 0, 0, 3]], layout))
    live = [0, 1, 3]
    assert_close(o[live], expect[live], 1e-5)
    assert torch.count_nonzero(o[2]) == 0
    assert_close(by_key(pool[[5, 0, 3]], layout), S[live], 1e-5)
    assert torch.equal(pool[[1, 2, 4, 6]], before[[1, 2, 4, 6]])


@pytest.mark.parametrize("form", ["rows", "rows flat", "tokens flat", "strided"])
@pytest.mark.parametrize("packed", [False, True])
def test_shapes_of_a_and_b(form, packed, rng):
    N = 3
    x = tokens(rng, N)
    y = flat(x) if packed else dict(x)
    a = x["a"]
    lead = (1, N) if packed else (N, 1)
    if form == "rows":
        y["a"], y["b"] = a.view(N, HV, K), x["b"].view(N, HV)
    elif form == "rows flat":
        y["a"] = a.view(N, HV * K)
    elif form == "tokens flat":
        y["a"] = a.view(*lead, HV * K)
    else:  # a slice of a wider projection
        wide = torch.randn(N, HV * K + 5, generator=rng)
        wide[:, : HV * K] = a.view(N, HV * K)
        y["a"] = wide[:, : HV * K]
    y["dt_bias"] = x["dt_bias"].view(1, HV * K)
    y["A_log"] = x["A_log"].view(1, 1, HV, 1)
    pool = pool_of(N, rng)
    before = pool.clone()
    o = linattn.kda_decode(**y, initial_state_source=pool, initial_state_indices=None)
    expect, S = expected(x, before.mT)
    assert_close(o.transpose(0, 1) if packed else o, expect, 1e-5)
    assert_close(pool.mT, S, 1e-5)


def test_offsets(rng):
    """Packed sequences of 1, 0 and 2 tokens, and a row past them."""
    x = tokens(rng, 4)
    pool = pool_of(4, rng)
    before = pool.clone()
    o = linattn.kda_decode(
        **flat(x),
        initial_state_source=pool,
        initial_state_indices=slots(2, 1, 0),
        cu_seqlens=slots(0, 1, 1, 3),
    )
    for slot, begin, end in ((2, 0, 1), (0, 1, 3)):
        rows = {
            name: a if name in ("A_log", "dt_bias") else a[begin:end].transpose(0, 1)
            for name, a in x.items()
        }
        expect, S = expected(rows, before[slot : slot + 1].mT)
        assert_close(o[:, begin:end], expect, 1e-5)
        assert_close(pool[slot : slot + 1].mT, S, 1e-5)
    assert torch.count_nonzero(o[:, 3:]) == 0
    assert torch.equal(pool[[1, 3]], before[[1, 3]])


def test_no_state_and_no_indices(rng):
    x = tokens(rng, 3)
    o = linattn.kda_decode(**x, initial_state_source=None, initial_state_indices=None)
    assert_close(o, expected(x)[0], 1e-5)
    pad = linattn.kda_decode(
        **x, initial_state_source=None, initial_state_indices=torch.tensor([8, -1, 8])
    )
    assert torch.equal(pad[[0, 2]], o[[0, 2]]) and torch.count_nonzero(pad[1]) == 0
    pool = pool_of(5, rng)
    before = pool.clone()
    o = linattn.kda_decode(**x, initial_state_source=pool, initial_state_indices=None)
    expect, S = expected(x, before[:3].mT)
    assert_close(o, expect, 1e-5)
    assert_close(pool[:3].mT, S, 1e-5)
    assert torch.equal(pool[3:], before[3:])


@pytest.mark.parametrize("is_kda", [True, False])
@pytest.mark.parametrize("softplus_beta", [0.5, 3.0])
def test_softplus_beta(is_kda, softplus_beta, rng):
    """And no threshold beyond which the softplus is a line."""
    x = tokens(rng, 2, is_kda=is_kda)
    pool = pool_of(2, rng)
    before = pool.clone()
    o = UPDATE(
        softplus_beta=softplus_beta,
        softplus_threshold=0.1,
        **x,
        initial_state_source=pool,
        initial_state_indices=slots(0, 1),
        scale=0.2,
        use_qk_l2norm_in_kernel=True,
        is_kda=is_kda,
    )
    more = {"softplus_beta": softplus_beta, "scale": 0.2}
    expect, S = expected(x, before.mT, **more)
    assert_close(o, expect, 1e-5)
    assert_close(pool.mT, S, 1e-5)
    plain, _ = expected(x, before.mT, scale=0.2)
    assert (plain - expect).abs().max() > 1e-2  # the option counts


def test_update_does_not_normalise_by_default(rng):
    x = tokens(rng, 2, is_kda=False)
    x["q"], x["k"] = x["q"] / 8, x["k"] / 8
    pool = pool_of(2, rng)
    before = pool.clone()
    o = UPDATE(
        softplus_beta=1.0,
        softplus_threshold=20.0,
        **x,
        initial_state_source=pool,
        initial_state_indices=slots(0, 1),
    )
    expect, S = expected({**x, "q": 8 * x["q"], "k": 8 * x["k"]}, before.mT, norm=False)
    assert_close(o, expect, 1e-5)
    assert_close(pool.mT, S, 1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_16_bits(dtype, rng):
    x = tokens(rng, 3)
    for name in ("q", "k", "v", "a"):
        x[name] = x[name].to(dtype)
    pool = pool_of(4, rng, dtype=dtype)
    before = pool.clone()
    o = linattn.kda_decode(**x, initial_state_source=pool, initial_state_indices=slots(3, 1, 0))
    expect, S = expected(x, before[[3, 1, 0]].mT)
    assert o.dtype == dtype
    assert_close(o, expect, 4e-3)
    assert_close(pool[[3, 1, 0]].mT, S, 4e-3)


@pytest.mark.parametrize("given_out", [False, True])
def test_packed_projection(given_out, rng):
    """Rows with a stride, as a view of a wider buffer."""
    N, width = 3, 2 * H * K + HV * V
    x = tokens(rng, N)
    wide = torch.full((N, width + 11), float("nan"))
    mixed = wide[:, :width]
    mixed.copy_(torch.cat([x[name].flatten(1) for name in "qkv"], 1))
    pool = pool_of(5, rng)
    before = pool.clone()
    out = torch.full((N, 1, HV, V), 7.0) if given_out else None
    o = linattn.kda_packed_decode(
        mixed,
        x["a"].view(N, HV * K),
        x["b"].view(N, HV),
        A_log=x["A_log"],
        dt_bias=x["dt_bias"],
        state=pool,
        state_indices=torch.tensor([4, -1, 0]),
        out=out,
        scale=0.3,
    )
    assert o.shape == (N, 1, HV, V)
    if given_out:
        assert_close(out, o, 0.0)
    expect, S = expected(x, before[[4, 0, 0]].mT, scale=0.3)
    assert_close(o[[0, 2]], expect[[0, 2]], 1e-5)
    assert torch.count_nonzero(o[1]) == 0
    assert_close(pool[[4, 0]].mT, S[[0, 2]], 1e-5)
    assert torch.equal(pool[1:4], before[1:4])


# ---- drafts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["vk", "kv"])
@pytest.mark.parametrize("update", [True, False])
@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("ids", [None, [3, -1, 1]])
def test_several_tokens(layout, update, buffered, ids, rng):
    N, T = 3, 4
    x = tokens(rng, N, T)
    pool = pool_of(5, rng, layout)
    before = pool.clone()
    buffer = None
    if buffered:
        buffer = torch.full((N, T, HV, *pool.shape[2:]), 7.0)
    o = linattn.kda_decode_mtp(
        **x,
        initial_state_source=pool,
        initial_state_indices=None if ids is None else torch.tensor(ids),
        state_layout=layout,
        disable_state_update=not update,
        intermediate_states_buffer=buffer,
    )
    rows = [0, 1, 2] if ids is None else ids
    live = [n for n in range(N) if rows[n] >= 0]
    start = by_key(before[[max(row, 0) for row in rows]], layout)
    expect, S = expected(x, start)
    assert_close(o[live], expect[live], 1e-5)
    assert torch.count_nonzero(o) == len(live) * T * HV * V
    named = [rows[n] for n in live]
    if update:
        assert_close(by_key(pool[named], layout), S[live], 1e-5)
        if buffered:
            assert torch.equal(pool[named], buffer[live, -1])
    else:
        assert torch.equal(pool[named], before[named])
    rest = [slot for slot in range(5) if slot not in named]
    assert torch.equal(pool[rest], before[rest])
    if buffered:
        for t in range(T):
            part = {n: a if n in ("A_log", "dt_bias") else a[:, : t + 1] for n, a in x.items()}
            _, S = expected(part, start)
            assert_close(by_key(buffer[live, t], layout), S[live], 1e-5, f"after token {t}")
        assert all((buffer[n] == 7).all() for n in range(N) if n not in live)


@pytest.mark.parametrize("rate", [True, False])
def test_bounded_gate(rate, rng):
    x = tokens(rng, 2, 3)
    if not rate:
        x["A_log"] = None
    o = linattn.kda_decode_mtp(
        **x, initial_state_source=None, initial_state_indices=None, lower_bound=-5.0
    )
    assert_close(o, expected(x, lower_bound=-5.0)[0], 1e-5)


# ---- Lightning Attention --------------------------------------------------------------------------------------------


def lightning(rng, B, heads=HV):
    return {
        "q": torch.randn(B, heads, K, generator=rng),
        "k": torch.randn(B, heads, K, generator=rng),
        "v": torch.randn(B, HV, V, generator=rng),
    }


def decode(x, s, decay, **changes):
    out = torch.full((len(x["q"]), HV, V), 7.0)
    s_stride = 0 if s is None else s.stride(0)
    call = {
        **x,
        "s": s,
        "out": out,
        "softmax_scale": 0.3,
        **{f"stride_{name}": x[name].stride(0) for name in "qkv"},
        "stride_s": s_stride,
        "stride_o": out.stride(0),
        "s_offsets": None,
        "decay_scales": decay,
        "HEAD_DIM": K,
        "K_SPLIT_DIM": K,
        "V_SPLIT_DIM": V,
    }
    return linattn.linear_attention_decode(**{**call, **changes})


def lightning_expected(x, decay, h0):
    x = {name: a[:, None].double() for name, a in x.items()}
    decay = -decay.double().view(1, 1, HV, 1)
    return recurrence(**x, decay=decay, scale=0.3, initial_state=h0.double())


@pytest.mark.parametrize("heads", [HV, H])
@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("ids", [None, [4, -1, 1]])
def test_lightning(heads, rank, ids, rng):
    x = lightning(rng, 3, heads)
    decay = torch.tensor([0.0, 0.1, 0.5, 2.0])
    pool = pool_of(6, rng)
    before = pool.clone()
    s = pool if rank == 4 else pool.view(6 * HV, V, K)
    out = torch.full((3, HV, V), 7.0)
    o = decode(x, s, decay, s_offsets=None if ids is None else torch.tensor(ids), out=out)
    assert o is out
    rows = [0, 1, 2] if ids is None else ids
    live = [n for n in range(3) if rows[n] >= 0]
    expect, S = lightning_expected(x, decay, before[[max(row, 0) for row in rows]].mT)
    assert_close(out[live], expect[live, 0], 1e-5)
    assert torch.count_nonzero(out) == len(live) * HV * V
    named = [rows[n] for n in live]
    assert_close(pool[named].mT, S[live], 1e-5)
    rest = [slot for slot in range(6) if slot not in named]
    assert torch.equal(pool[rest], before[rest])


def test_lightning_takes_strided_inputs(rng):
    x = lightning(rng, 3)
    wide = torch.cat([x["q"], x["k"]], 2)
    decay = torch.rand(HV, generator=rng)
    pool, again = pool_of(3, rng), None
    again = pool.clone()
    o = decode(x, pool, decay)
    views = {"q": wide[..., :K], "k": wide[..., K:], "v": x["v"]}
    assert torch.equal(decode(views, again, decay), o) and torch.equal(pool, again)


# ---- mistakes -------------------------------------------------------------------------------------------------------

MISTAKES = {
    "a": ({"a": torch.zeros(2, 1, K)}, r"a has shape \[2, 1, 16\]; expected \[2, 1, 4, 16\] or"),
    "b": ({"b": torch.zeros(2, H)}, r"b has shape \[2, 2\]; expected \[2, 1, 4\] or \[2, 4\]"),
    "A_log": ({"A_log": torch.zeros(3)}, "A_log has shape .*; expected 4"),
    "no A_log": ({"A_log": None}, "A_log is None"),
    "dt_bias": ({"dt_bias": torch.zeros(HV)}, "dt_bias has shape .*; expected 64"),
    "layout": ({"state_layout": "kk"}, "state_layout is 'kk'; expected 'vk' or 'kv'"),
    "state of the other layout": (
        {"state_layout": "kv"},
        r"initial_state_source has shape \[3, 4, 24, 16\]; expected \[slots, 4, 16, 24\]",
    ),
    "a small pool": (
        {"initial_state_source": torch.zeros(1, HV, V, K), "initial_state_indices": None},
        "initial_state_source has 1 slots; expected at least 2",
    ),
    "indices": (
        {"initial_state_indices": slots(0, 1, 2)},
        r"initial_state_indices has shape \[3\]; expected \[2\], \[N\]",
    ),
    "indices of floats": (
        {"initial_state_indices": torch.zeros(2)},
        "initial_state_indices is float32; expected int32 or int64",
    ),
    "an index past the pool": (
        {"initial_state_indices": slots(0, 3)},
        r"initial_state_indices\[1\] is 3; expected under initial_state_source.slots, 3",
    ),
    "an index twice": ({"initial_state_indices": slots(1, 1)}, r"initial_state_indices\[1\] is 1"),
    "out": (
        {"out": torch.zeros(2, HV, V)},
        r"out has shape \[2, 4, 24\]; expected \[2, 1, 4, 24\]",
    ),
    "out of another dtype": ({"out": torch.zeros(2, 1, HV, V).half()}, "out is float16"),
    "a in a dtype": ({"a": torch.zeros(2, 1, HV, K).double()}, "a is float64; expected bfloat16"),
    "q": ({"q": torch.zeros(2, H, K)}, r"q has shape \[2, 2, 16\]; expected 4 axes"),
    "k": ({"k": torch.zeros(2, 1, HV, K)}, r"k has shape .*; expected \[2, 1, 2, 16\]"),
    "offsets": ({"cu_seqlens": slots(0, 1, 2)}, "q has a batch of 2; expected 1 with cu_seqlens"),
    "softplus_beta": ({"softplus_beta": 0.0}, "softplus_beta is 0.0; expected a positive number"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(mistake, rng):
    changes, text = MISTAKES[mistake]
    pool = pool_of(3, rng)
    before = pool.clone()
    call = {**tokens(rng, 2), "initial_state_source": pool, "initial_state_indices": slots(2, 0)}
    with pytest.raises(ValueError, match=f"kda_decode: {text}"):
        linattn.kda_decode(**{**call, **changes})
    assert torch.equal(pool, before)


def test_mistakes_of_several_tokens(rng):
    x = {**tokens(rng, 2, 3), "initial_state_indices": slots(2, 0)}
    pool = pool_of(3, rng)
    with pytest.raises(ValueError, match=r"expected one token per sequence, \[N, 1, H, K\] or"):
        linattn.kda_decode(**x, initial_state_source=pool)
    buffer = torch.zeros(2, 3, HV, V, K)
    for changes, text in (
        ({"intermediate_states_buffer": buffer[:, :2]}, r"buffer has shape .*; expected \[2, 3, 4"),
        ({"intermediate_states_buffer": buffer.half()}, "buffer is float16; expected float32"),
        (
            {"intermediate_states_buffer": torch.zeros(2, 4, HV, V, K)[:, :3]},
            "buffer has stride 6144 on its first axis; expected 4608",
        ),
        (
            {"intermediate_states_buffer": buffer, "initial_state_indices": slots(1, 1)},
            r"initial_state_indices is \[1, 1\]; expected each slot once",
        ),
        (
            {"intermediate_states_buffer": buffer, "initial_state_indices": slots(1, 7)},
            r"initial_state_indices\[1\] is 7; expected under",
        ),
        ({"A_log": None}, "A_log is None"),
    ):
        with pytest.raises(ValueError, match=text):
            linattn.kda_decode_mtp(**{**x, "initial_state_source": pool, **changes})
        assert torch.count_nonzero(buffer) == 0


def test_mistakes_of_a_packed_projection(rng):
    x = tokens(rng, 2)
    rest = {name: x[name] for name in ("a", "b", "A_log", "dt_bias")}
    width = 2 * H * K + HV * V
    for mixed, state, text in (
        (torch.zeros(2, width + 1), pool_of(2, rng), f"rows of {width + 1}; expected 2 H K"),
        (torch.zeros(2, HV * V), pool_of(2, rng), f"rows of {HV * V}; expected 2 H K"),
        (torch.zeros(2, 1, width), pool_of(2, rng), r"mixed_qkv has shape \[2, 1, "),
        (torch.zeros(2, width).double(), pool_of(2, rng), "mixed_qkv is float64"),
        (torch.zeros(2, width), None, "state is None; expected a pool"),
    ):
        with pytest.raises(ValueError, match=text):
            linattn.kda_packed_decode(mixed, **rest, state=state, state_indices=None, scale=None)


def test_mistakes_of_lightning(rng):
    x = lightning(rng, 2)
    pool = pool_of(3, rng)
    before = pool.clone()
    decay = torch.rand(HV, generator=rng)
    for changes, text in (
        ({"stride_q": 5}, f"stride_q is 5; expected {HV * K}"),
        ({"stride_s": 5}, f"stride_s is 5; expected {HV * V * K}"),
        ({"stride_o": 5}, f"stride_o is 5; expected {HV * V}"),
        ({"HEAD_DIM": V}, f"HEAD_DIM is {V}; expected {K}"),
        ({"s": torch.zeros(5, V, K)}, r"s is of shape \[5, 24, 16\]; expected \[slots, HV"),
        ({"s": None}, "s is None; expected"),
        ({"s": torch.zeros(3, HV, K, V)}, r"s has shape .*; expected \[slots, 4, 24, 16\]"),
        ({"s_offsets": slots(0, 3)}, r"s_offsets\[1\] is 3; expected under s.slots, 3"),
        ({"s_offsets": slots(0)}, r"s_offsets has shape \[1\]; expected \[2\]"),
        ({"decay_scales": decay[:2]}, "decay_scales has shape .*; expected 4"),
        ({"out": torch.zeros(2, HV, K)}, r"out has shape .*; expected \[2, 4, 24\]"),
        ({"q": torch.zeros(2, 1, HV, K)}, r"q has shape .*; expected \[B, heads, dim\]"),
    ):
        with pytest.raises(ValueError, match=text):
            decode(**{"x": x, "s": pool, "decay": decay, **changes})
        assert torch.equal(pool, before)
    with pytest.raises(NotImplementedError, match="`scale` of exactly 0"):
        decode(x, pool, decay, softmax_scale=0.0)
