# SPDX-License-Identifier: Apache-2.0
"""Replay records: a draft that leaves states alone, and the commit of what was accepted."""

import linattn
import pytest
import torch
from linattn.testing import assert_close
from problems import HV, KDA, H, K, V, expected, kda, pool_of, slots


def record_of(tokens):
    return torch.full((linattn.replay_size("kda", tokens, H, HV, K, V),), float("nan"))


def commit(records, states, lengths, /, **more):
    """Of KDA; more: other arguments, or others in their place."""
    call = {
        "op": "kda",
        "heads": H,
        "replay": records,
        "pool": states,
        "state_layout": "key_value",
        "counts": lengths,
    }
    linattn.commit(**call | more)


def first(x, n, count):
    """The first tokens of sequence n, as a batch of one."""
    return {name: t[n : n + 1, :count] for name, t in x.items()}


def states_after(x, start, counts):
    return torch.cat(
        [
            expected(first(x, n, count), start[n : n + 1])[1] if count else start[n : n + 1]
            for n, count in enumerate(counts)
        ]
    )


def test_draft_then_commit_equals_the_steps(rng):
    x = kda(rng, 3, 4)
    pool = pool_of(5, rng)
    before = pool.clone()
    record = record_of(12)
    out, state = linattn.step(
        **x,
        **KDA,
        initial_state=pool,
        read_slots=slots(4, 1, 3),
        replay=record,
    )
    assert state is None and torch.equal(pool, before)
    assert_close(out, expected(x, before[[4, 1, 3]])[0], 1e-5)
    counts = [2, 0, 4]
    commit(
        record,
        pool,
        slots(*counts),
        read_slots=slots(4, 1, 3),
        write_slots=slots(4, 1, 0),
    )
    assert_close(pool[[4, 1, 0]], states_after(x, before[[4, 1, 3]], counts), 1e-5)
    assert torch.equal(pool[[2, 3]], before[[2, 3]])


def test_commit_of_a_tree_and_of_two_layers(rng):
    parents, path = [-1, 0, 0, 2], [0, 2, 3]
    layers = [kda(rng, 1, 4) for _ in range(2)]
    pools = [pool_of(1, rng) for _ in range(2)]
    before = [pool.clone() for pool in pools]
    records = torch.stack([record_of(4), record_of(4)])
    for x, pool, record in zip(layers, pools, records):
        linattn.step(**x, **KDA, initial_state=pool, parents=slots(*parents), replay=record)
    commit(
        records,
        pools[0],
        slots(3),
        picks=slots(*path)[None],
        pools=torch.tensor([pool.data_ptr() for pool in pools]),
    )
    for x, pool, start in zip(layers, pools, before):
        taken = {name: t[:, path] for name, t in x.items()}
        assert_close(pool, expected(taken, start)[1], 1e-5)


def test_counts_limit_a_draft(rng):
    x = kda(rng, 2, 3)
    pool = pool_of(2, rng)
    start = pool.clone()
    out, _ = linattn.step(**x, **KDA, pool=pool, counts=slots(1, 3))
    assert_close(out[0, :1], expected(first(x, 0, 1), start[:1])[0][0], 1e-5)
    assert torch.count_nonzero(out[0, 1:]) == 0
    assert_close(pool, states_after(x, start, [1, 3]), 1e-5)


def test_compiled_commit(rng):
    x, pool = kda(rng, 2, 3), pool_of(2, rng)
    record = record_of(6)
    linattn.step(**x, **KDA, initial_state=pool, replay=record)
    counts, eager, compiled = slots(2, 1), pool.clone(), pool.clone()

    def fold(states):
        commit(record, states, counts)

    fold(eager)
    # aot_eager makes a functional program first.
    torch.compile(fold, fullgraph=True, backend="aot_eager")(compiled)
    assert torch.equal(eager, compiled) and not torch.equal(eager, pool)


def test_what_a_compiler_or_a_gradient_would_lose_is_refused(rng):
    record, pool = torch.zeros(linattn.replay_size("kda", 2, H, HV, K, V)), pool_of(2, rng)
    with pytest.raises(NotImplementedError, match="an input requires a gradient"):
        commit(record.clone().requires_grad_(), pool, slots(1, 1))
    addresses = torch.tensor([pool.data_ptr()])

    def fold(states):
        commit(record[None], states, slots(1, 1), pools=addresses)

    with pytest.raises(Exception, match="pools is given"):
        torch.compile(fold, fullgraph=True, backend="aot_eager")(pool)
    fold(pool)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"replay": torch.zeros(7)}, "replay has shape [7]; expected [a multiple of"),
        ({"counts": torch.zeros(2, 2, dtype=torch.int32)}, "counts has shape [2, 2]; expected [N]"),
        ({"counts": torch.zeros(2)}, "counts is float32; expected int32"),
        ({"pool": torch.zeros(2, HV, K)}, "pool has shape"),
        (
            {"picks": torch.zeros(3, 2, dtype=torch.int32)},
            "picks has shape [3, 2]; expected [2, 2]",
        ),
        ({"pools": torch.zeros(1, dtype=torch.int64)}, "expected [layers, a multiple of"),
        ({"state_layout": "rows"}, "state_layout is 'rows'"),
        ({"heads": 0}, "heads is 0; expected at least 1"),
        ({"pool": torch.zeros(2, HV, 0, 0)}, "expected at least 1 of HV, K and V"),
    ],
)
def test_refusals_name_the_argument(change, words):
    with pytest.raises(ValueError) as error:
        commit(record_of(6), torch.zeros(2, HV, K, V), slots(1, 1), **change)
    assert words in str(error.value)
