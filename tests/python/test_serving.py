# SPDX-License-Identifier: Apache-2.0
"""FLA's doors for servers: pools, slots, pads, accepted counts, in place and not, against the token recurrence."""

import linattn
import pytest
import torch
from linattn.testing import assert_close
from problems import HV, H, K, V, expected, kda, pool_of, slots
from reference import bounded_gate, recurrence, softplus_gate

KDA_DOOR = linattn.fused_recurrent_kda_fwd
GDN_DOOR = linattn.fused_recurrent_gated_delta_rule_fwd
DTYPES = [torch.float32, torch.bfloat16]


def gdn(rng, batch, length):
    x = kda(rng, batch, length)
    return {**x, "g": x["g"][..., 0].contiguous()}


def reference(x, h0=None):
    """(o, S) of either door's inputs."""
    return expected(x if x["g"].dim() == 4 else {**x, "g": x["g"][..., None]}, h0)


def packed(x, lengths):
    """The first tokens of each sequence, one after another, and the offsets."""
    rows = {
        name: torch.cat([a[n : n + 1, :length] for n, length in enumerate(lengths)], 1)
        for name, a in x.items()
    }
    return rows, torch.tensor([0, *lengths]).cumsum(0)


BOTH = pytest.mark.parametrize(
    ("door", "make"), [(KDA_DOOR, kda), (GDN_DOOR, gdn)], ids=["kda", "gdn"]
)


# ---- [N] slots ------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("v_first", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("ids_dtype", [torch.int32, torch.int64], ids=str)
def test_slots_in_place(door, make, v_first, dtype, ids_dtype, rng):
    """Permuted slots of a pool with gaps between them; a pad; what nobody names keeps its bits."""
    x = make(rng, 4, 2)
    size = HV * K * V
    memory = torch.randn(6, size + 40, generator=rng).to(dtype)
    shape = (6, HV, V, K) if v_first else (6, HV, K, V)
    pool, before = memory[:, :size].view(shape), memory.clone()
    ids = torch.tensor([4, -1, 0, 3], dtype=ids_dtype)
    out, state = door(**x, initial_state=pool, ssm_state_indices=ids, state_v_first=v_first)
    assert state is pool
    start = before[:, :size].view(shape)[[4, 0, 0, 3]]
    o, S = reference(x, start.mT if v_first else start)
    live = [0, 2, 3]
    assert_close(out[live], o[live], 1e-5)
    assert torch.count_nonzero(out[1]) == 0
    got = pool[[4, 0, 3]]
    assert_close(got.mT if v_first else got, S[live], 1e-5 if dtype == torch.float32 else 4e-3)
    assert torch.equal(memory[[1, 2, 5]], before[[1, 2, 5]])
    assert torch.equal(memory[:, size:], before[:, size:])


@BOTH
@pytest.mark.parametrize("cu_dtype", [torch.int32, torch.int64], ids=str)
def test_packed_sequences(door, make, cu_dtype, rng):
    lengths = [2, 0, 1, 3]
    every = make(rng, 4, 3)
    x, cu = packed(every, lengths)
    x = {name: torch.cat([a, a[:, :2]], 1) for name, a in x.items()}  # rows past the last offset
    pool = pool_of(5, rng)
    before = pool.clone()
    out = torch.full((1, 8, HV, V), 7.0)
    o, _ = door(
        **x,
        initial_state=pool,
        ssm_state_indices=slots(3, 1, 0, -1),
        cu_seqlens=cu.to(cu_dtype),
        out=out,
    )
    assert o is out
    for n, slot in ((0, 3), (2, 0)):
        rows = {name: a[n : n + 1, : lengths[n]] for name, a in every.items()}
        expect, S = reference(rows, before[slot : slot + 1])
        assert_close(out[:, cu[n] : cu[n + 1]], expect, 1e-5)
        assert_close(pool[slot : slot + 1], S, 1e-5)
    assert torch.count_nonzero(out[:, 3:]) == 0
    for slot in (1, 2, 4):
        assert torch.equal(pool[slot], before[slot])


@BOTH
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_new_final_state(door, make, dtype, rng):
    x = make(rng, 3, 2)
    pool = pool_of(5, rng, dtype)
    before = pool.clone()
    more = {"output_final_state": True} if door is KDA_DOOR else {}
    out, state = door(
        **x,
        initial_state=pool,
        ssm_state_indices=slots(4, -1, 2),
        inplace_final_state=False,
        **more,
    )
    o, S = reference(x, before[[4, 0, 2]])
    assert state.dtype == torch.float32 and state.shape == (3, HV, K, V)
    assert_close(out[[0, 2]], o[[0, 2]], 1e-5)
    assert_close(state[[0, 2]], S[[0, 2]], 1e-5)
    assert torch.count_nonzero(out[1]) == torch.count_nonzero(state[1]) == 0
    assert torch.equal(pool, before)


@BOTH
def test_without_slots(door, make, rng):
    x = make(rng, 2, 3)
    h0 = pool_of(2, rng, torch.bfloat16)
    before = h0.clone()
    more = {"output_final_state": True} if door is KDA_DOOR else {}
    o, S = reference(x, before)
    out, state = door(**x, initial_state=h0, inplace_final_state=False, **more)
    assert_close(out, o, 1e-5)
    assert_close(state, S, 1e-5)
    assert state.dtype == torch.float32 and torch.equal(h0, before)
    zero, _ = door(**x, inplace_final_state=False)
    assert_close(zero, reference(x)[0], 1e-5)
    out, state = door(**x, initial_state=h0)
    assert state is h0
    assert_close(h0, S, 4e-3)


def test_no_final_state(rng):
    """Read slots, nothing stored: pads are pads there too."""
    x = kda(rng, 3, 2)
    pool = pool_of(4, rng)
    before = pool.clone()
    out, state = KDA_DOOR(
        **x, initial_state=pool, ssm_state_indices=slots(3, -1, 3), inplace_final_state=False
    )
    o, _ = expected(x, before[[3, 0, 3]])
    assert state is None and torch.equal(pool, before)
    assert_close(out[[0, 2]], o[[0, 2]], 1e-5)
    assert torch.count_nonzero(out[1]) == 0


# ---- [N, columns] slots ---------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("accepted", [None, [3, 1, 2, 0]])
def test_a_slot_per_token(door, make, accepted, rng):
    """Sequence 2 is a pad by its ids, sequence 3 (with counts) by its count."""
    T = 3
    x = make(rng, 4, T)
    pool = pool_of(12, rng)
    before = pool.clone()
    wide = torch.tensor([[7, 0, 5, 9], [2, 11, 4, 9], [-1, -1, -1, 9], [1, 3, 6, 9]])
    ids = wide[:, :T]  # int64, and rows with a stride
    counts = None if accepted is None else torch.tensor(accepted)
    out, state = door(**x, initial_state=pool, ssm_state_indices=ids, num_accepted_tokens=counts)
    assert state is pool
    live = [0, 1, 3] if accepted is None else [0, 1]
    starts = [7, 2, 0, 1] if accepted is None else [5, 2, 0, 0]
    untouched = {8, 9, 10} if accepted is None else {1, 3, 6, 8, 9, 10}
    o, _ = reference(x, before[starts])
    assert_close(out[live], o[live], 1e-5)
    pads = [n for n in range(4) if n not in live]
    assert torch.count_nonzero(out[pads]) == 0
    for t in range(T):
        _, S = reference({name: a[:, : t + 1] for name, a in x.items()}, before[starts])
        assert_close(pool[ids[live, t]], S[live], 1e-5, f"state after token {t}")
    for slot in untouched:
        assert torch.equal(pool[slot], before[slot])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("final", [False, True])
def test_accepted_counts_not_in_place(dtype, final, rng):
    x = kda(rng, 3, 2)
    pool = pool_of(8, rng, dtype)
    before = pool.clone()
    out, state = KDA_DOOR(
        **x,
        initial_state=pool,
        ssm_state_indices=torch.tensor([[5, 1], [0, 7], [2, 3]]),
        num_accepted_tokens=slots(2, 1, 3),
        inplace_final_state=False,
        output_final_state=final,
    )
    o, S = expected(x, before[[1, 0, 0]])
    assert_close(out[:2], o[:2], 1e-5)
    assert torch.count_nonzero(out[2]) == 0
    assert torch.equal(pool, before)
    if final:
        assert_close(state[:2], S[:2], 1e-5)
        assert torch.count_nonzero(state[2]) == 0
    else:
        assert state is None


def test_drafts_are_verified_and_the_accepted_ones_go_on(rng):
    """Three calls of two tokens, of which 1 and 2 are kept, equal the kept tokens in one sequence."""
    x = kda(rng, 2, 6)
    pool = torch.zeros(4, HV, K, V)
    ids = torch.tensor([[3, 1], [0, 2]])
    accepted = torch.tensor([1, 1])
    kept = [[], []]
    for call in range(3):
        tokens = {name: a[:, 2 * call : 2 * call + 2] for name, a in x.items()}
        out, _ = KDA_DOOR(
            **tokens,
            initial_state=pool,
            ssm_state_indices=ids,
            num_accepted_tokens=accepted,
        )
        accepted = torch.tensor([1, 2]) if call % 2 == 0 else torch.tensor([2, 1])
        for n in range(2):
            kept[n] += range(2 * call, 2 * call + accepted[n])
    for n in range(2):
        path = {name: a[n : n + 1, kept[n]] for name, a in x.items()}
        o, S = expected(path)
        assert_close(pool[ids[n, accepted[n] - 1]], S[0], 1e-5)
        assert_close(out[n, accepted[n] - 1], o[0, -1], 1e-5)


# ---- options --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lower_bound", [None, -5.0])
@pytest.mark.parametrize("negative", [False, True])
def test_gate_and_sigmoid_in_the_kernel(lower_bound, negative, rng):
    x = kda(rng, 2, 3)
    x["q"], x["k"] = 3 * x["q"], 2 * x["k"]
    g = torch.randn(2, 3, HV, K, generator=rng)
    logits = torch.randn(2, 3, HV, generator=rng)
    A_log = torch.randn(HV, generator=rng)
    dt_bias = torch.randn(HV * K, generator=rng)
    pool = pool_of(2, rng)
    before = pool.clone()
    out, _ = KDA_DOOR(
        x["q"],
        x["k"],
        x["v"],
        g,
        logits,
        A_log.view(1, 1, HV, 1),
        dt_bias,
        pool,
        0.3,
        use_qk_l2norm_in_kernel=True,
        use_gate_in_kernel=True,
        use_beta_sigmoid_in_kernel=True,
        allow_neg_eigval=negative,
        lower_bound=lower_bound,
    )
    bias = dt_bias.view(HV, K).double()
    if lower_bound is None:
        decay = softplus_gate(g.double(), A_log.double(), bias)
    else:
        decay = bounded_gate(g.double(), A_log.double(), bias, lower_bound)
    q, k = (
        a.double() / (a.double().square().sum(-1, keepdim=True) + 1e-6).sqrt()
        for a in (x["q"], x["k"])
    )
    beta = logits.double().sigmoid() * (2 if negative else 1)
    o, S = recurrence(
        q, k, x["v"].double(), decay, beta=beta, scale=0.3, initial_state=before.double()
    )
    assert_close(out, o, 1e-5)
    assert_close(pool, S, 1e-5)


def test_gdn_without_beta(rng):
    x = gdn(rng, 2, 3)
    del x["beta"]
    pool = pool_of(2, rng)
    before = pool.clone()
    out, _ = GDN_DOOR(**x, initial_state=pool)
    o, S = reference({**x, "beta": torch.ones(2, 3, HV)}, before)
    assert_close(out, o, 1e-5)
    assert_close(pool, S, 1e-5)


def test_keywords(rng):
    x = kda(rng, 2, 1)
    pool = pool_of(2, rng).mT.contiguous()
    again = pool.clone()
    KDA_DOOR(**x, initial_state=pool, state_v_first=True)
    with pytest.warns(DeprecationWarning, match="state_v_first"):
        KDA_DOOR(**x, initial_state=again, transpose_state_layout=True)
    assert torch.equal(pool, again)
    with pytest.raises(ValueError, match="came both"):
        KDA_DOOR(**x, initial_state=pool, state_v_first=True, transpose_state_layout=True)
    with pytest.raises(TypeError, match="unexpected keyword argument 'ssm_state_index'"):
        KDA_DOOR(**x, initial_state=pool, ssm_state_index=None)


# ---- mistakes -------------------------------------------------------------------------------------------------------

TWO = torch.tensor([[0, 1], [2, 3]])
MISTAKES = {
    "no state": ({"initial_state": None}, AssertionError, "initial_state is None; expected a pool"),
    "slots without a pool": (
        {"initial_state": None, "inplace_final_state": False, "ssm_state_indices": slots(0, 1)},
        ValueError,
        "initial_state is None and ssm_state_indices is given",
    ),
    "ids of floats": (
        {"ssm_state_indices": torch.zeros(2)},
        ValueError,
        "ssm_state_indices is float32; expected int32 or int64",
    ),
    "ids of another length": (
        {"ssm_state_indices": slots(0, 1, 2)},
        ValueError,
        r"ssm_state_indices has shape \[3\]; expected \[N\] or \[N, columns\] with N = 2",
    ),
    "too few columns": (
        {"ssm_state_indices": TWO[:, :1]},
        ValueError,
        "ssm_state_indices has 1 columns; expected at least 2, one per token",
    ),
    "an id past the pool": (
        {"ssm_state_indices": torch.tensor([0, 2**32])},
        ValueError,
        r"ssm_state_indices\[1\] is 2147483647; expected under initial_state.slots, 4",
    ),
    "a slot twice": (
        {"ssm_state_indices": slots(1, 1)},
        ValueError,
        r"ssm_state_indices\[1\] is 1; expected a slot that no other entry writes",
    ),
    "counts without ids": (
        {"num_accepted_tokens": slots(1, 1)},
        ValueError,
        "ssm_state_indices is None and num_accepted_tokens is given",
    ),
    "counts with one column": (
        {"ssm_state_indices": slots(0, 1), "num_accepted_tokens": slots(1, 1)},
        ValueError,
        r"ssm_state_indices has shape \[2\] and num_accepted_tokens is given",
    ),
    "counts of another length": (
        {"ssm_state_indices": TWO, "num_accepted_tokens": slots(1)},
        ValueError,
        r"num_accepted_tokens has shape \[1\]; expected \[2\], \[N\]",
    ),
    "pool without ids": ({}, ValueError, r"initial_state has shape .*; expected \[2, 4, 16, 24\]"),
    "pool of 64 bits": (
        {"initial_state": torch.zeros(2, HV, K, V).double()},
        ValueError,
        "initial_state is float64; expected bfloat16, float16 or float32",
    ),
    "out of another shape": (
        {"out": torch.zeros(2, 2, HV, K)},
        AssertionError,
        "out has shape .*; expected v's",
    ),
    "beta per channel": (
        {"beta": torch.zeros(2, 2, HV, V)},
        NotImplementedError,
        "`beta` per value channel",
    ),
    "64 bits": (
        {"v": torch.zeros(2, 2, HV, V).double()},
        NotImplementedError,
        "v is float64",
    ),
    "scale of 0": ({"scale": 0.0}, NotImplementedError, "`scale` of exactly 0"),
    "a gradient": (
        {"v": torch.zeros(2, 2, HV, V, requires_grad=True), "ssm_state_indices": slots(0, 1)},
        NotImplementedError,
        r"torch.no_grad\(\)",
    ),
}


@BOTH
@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(door, make, mistake, rng):
    changes, error, text = MISTAKES[mistake]
    pool = pool_of(4, rng)
    before = pool.clone()
    with pytest.raises(error, match=text):
        door(**{**make(rng, 2, 2), "initial_state": pool, **changes})
    assert torch.equal(pool, before)


def test_mistakes_of_the_gate(rng):
    x = {**kda(rng, 2, 2), "initial_state": pool_of(2, rng)}
    with pytest.raises(ValueError, match="A_log is None"):
        KDA_DOOR(**x, use_gate_in_kernel=True)
    with pytest.raises(ValueError, match="allow_neg_eigval is True"):
        KDA_DOOR(**x, allow_neg_eigval=True)
    with pytest.raises(ValueError, match=rf"dt_bias has shape \[3\].*; expected {HV * K}"):
        KDA_DOOR(**x, use_gate_in_kernel=True, A_log=torch.zeros(HV), dt_bias=torch.zeros(3))
    assert x["q"].shape[2] == H != HV
    with pytest.raises(ValueError, match="ssm_state_indices holds 9; expected under 2"):
        KDA_DOOR(
            **{**x, "initial_state": x["initial_state"].bfloat16()},
            ssm_state_indices=slots(0, 9),
            inplace_final_state=False,
            output_final_state=True,
        )
    with pytest.raises(ValueError, match="columns of ssm_state_indices is 1; expected at least 2"):
        KDA_DOOR(
            **{name: a[:1] for name, a in x.items()},
            ssm_state_indices=slots(0)[None],
            cu_seqlens=slots(0, 2),
        )
