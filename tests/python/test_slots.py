# SPDX-License-Identifier: Apache-2.0
"""Pools of states, slots and pads, decode and the verification of drafts."""

import linattn
import pytest
import torch
from linattn.testing import assert_close
from problems import HV, KDA, K, V, expected, kda, pool_of, rows, slots

# ---- pools and slots ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("door", [linattn.forward, linattn.step])
def test_L06_padded_pool_is_written_in_place(door, rng):
    x = kda(rng, 3, 4)
    memory = torch.full((6, HV * K * V + 100), 7.0)
    pool = memory[:, : HV * K * V].view(6, HV, K, V)
    pool.copy_(pool_of(6, rng))
    before = memory.clone()
    out, state = door(**x, **KDA, pool=pool, read_slots=slots(4, 1, 3), write_slots=slots(4, 0, 3))
    assert state is pool
    o, S = expected(x, before[:, : HV * K * V].view(6, HV, K, V)[[4, 1, 3]])
    assert_close(out, o, 1e-5)
    assert_close(pool[[4, 0, 3]], S, 1e-5)
    assert torch.equal(memory[[1, 2, 5]], before[[1, 2, 5]])
    assert (memory[:, HV * K * V :] == 7).all()


@pytest.mark.parametrize("door", [linattn.forward, linattn.step])
def test_V08_pads_and_null_slots(door, rng):
    """Null read: from zero. Null write: not stored. Both: nothing computed, rows zero."""
    x = kda(rng, 4, 3)
    pool = pool_of(4, rng)
    before = pool.clone()
    out, _ = door(
        **x, **KDA, pool=pool, read_slots=slots(-1, 2, -1, 0), write_slots=slots(1, -1, -1, 0)
    )
    start = torch.stack([torch.zeros(HV, K, V), before[2], torch.zeros(HV, K, V), before[0]])
    o, S = expected(x, start)
    assert_close(out[[0, 1, 3]], o[[0, 1, 3]], 1e-5)
    assert torch.count_nonzero(out[2]) == 0
    assert_close(pool[1], S[0], 1e-5)
    assert_close(pool[0], S[3], 1e-5)
    assert torch.equal(pool[2:], before[2:])
    # Ids start at one where slot 0 is the null block of a server.
    again = before.clone()
    door(
        **x,
        **KDA,
        pool=again,
        read_slots=slots(0, 2, 1, 3),
        write_slots=slots(0, 0, 1, 3),
        first_slot=1,
    )
    assert torch.equal(again[0], before[0])


def test_T02_recycled_slot_of_a_new_request(rng):
    x = kda(rng, 2, 1)
    pool = torch.full((2, HV, K, V), 1e4)
    flag = torch.tensor([False, True])
    out, _ = linattn.step(
        **x,
        **KDA,
        pool=pool,
        read_slots=slots(0, 1),
        write_slots=slots(0, 1),
        has_initial_state=flag,
    )
    o, S = expected(x, torch.stack([torch.zeros(HV, K, V), torch.full((HV, K, V), 1e4)]))
    assert_close(out[0], o[0], 1e-5)
    assert_close(pool[0], S[0], 1e-5)
    assert_close(out[1], o[1], 1e-4)


@pytest.mark.parametrize("door", [linattn.forward, linattn.step])
def test_T08_duplicate_write_slots_are_refused(door, rng):
    x = kda(rng, 2, 2)
    with pytest.raises(
        ValueError, match=r"write_slots\[1\] is 1; expected a slot that no other entry"
    ):
        door(**x, **KDA, pool=pool_of(3, rng), read_slots=slots(0, 2), write_slots=slots(1, 1))
    with pytest.raises(ValueError, match="slot"):  # another sequence's read slot
        door(**x, **KDA, pool=pool_of(3, rng), read_slots=slots(0, 1), write_slots=slots(1, 2))


def test_T08_states_in_place(rng):
    x = kda(rng, 2, 5)
    h0 = pool_of(2, rng)
    out, state = linattn.forward(**x, **KDA, initial_state=h0, output_final_state=True)
    in_place = h0.clone()
    again, same = linattn.forward(**x, **KDA, initial_state=in_place, final_state=in_place)
    assert same is in_place
    assert torch.equal(again, out) and torch.equal(in_place, state)


def test_T11_index_tensors_are_checked(rng):
    x = kda(rng, 2, 2)
    pool = pool_of(3, rng)
    for door in (linattn.forward, linattn.step):
        for bad, message in (
            (torch.tensor([0, 1]), "read_slots is int64; expected int32"),
            (torch.tensor([0.0, 1.0]), "read_slots is float32; expected int32"),
            (slots(0, 1, 2), r"read_slots has shape \[3\]; expected \[2\]"),
            (slots(0, 9, 1, 9)[::2], "read_slots has strides"),
            (slots(0, 3), r"read_slots\[1\] is 3; expected under"),
        ):
            with pytest.raises(ValueError, match=message):
                door(**x, **KDA, pool=pool, read_slots=bad, write_slots=slots(0, 1))


# ---- verification of drafts -----------------------------------------------------------------------------------------


def test_states_per_token(rng):
    """write_slots [N, T]: the state after each token; then `accepted` chooses where the next call starts."""
    x = kda(rng, 2, 6)
    first, rest = rows(x, 0, 3), rows(x, 3, 6)
    pool = torch.zeros(8, HV, K, V)
    table = torch.tensor([[0, 1, 2], [5, 4, 3]], dtype=torch.int32)
    out, _ = linattn.step(**first, **KDA, pool=pool, read_slots=slots(-1, -1), write_slots=table)
    for t in range(3):
        _, S = expected(rows(first, 0, t + 1))
        assert_close(pool[table[:, t].long()], S, 1e-5, f"state after token {t}")
    o, _ = expected(first)
    assert_close(out, o, 1e-5)
    accepted = slots(2, 3)
    start = pool[[1, 3]].clone()
    out, _ = linattn.step(
        **rest, **KDA, pool=pool, read_slots=table, accepted=accepted, write_slots=slots(6, 7)
    )
    o, S = expected(rest, start)
    assert_close(out, o, 1e-5)
    assert_close(pool[[6, 7]], S, 1e-5)


def test_draft_tree(rng):
    x = kda(rng, 1, 4)
    h0 = pool_of(1, rng)
    out, _ = linattn.step(**x, **KDA, initial_state=h0, parents=slots(-1, 0, 0, 1))
    for path in ([0, 1, 3], [0, 2]):
        o, _ = expected({n: a[:, path] for n, a in x.items()}, h0)
        assert_close(out[:, path[-1]], o[:, -1], 1e-5)


def test_N13_state_stays_fp32_inside_a_call(rng):
    x = kda(rng, 1, 8)
    pool = (100 * pool_of(1, rng)).bfloat16()
    out, _ = linattn.step(**x, **KDA, initial_state=pool)
    o, _ = expected(x, pool)
    assert_close(out[:, -1], o[:, -1], 1e-5)
