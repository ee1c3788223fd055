# SPDX-License-Identifier: Apache-2.0
"""The doors of servers on CUDA tensors: the CPU's results, slots and pads, and no wait for the device."""

import linattn
import pytest
import torch
from gpu import to_gpu
from linattn.testing import assert_close, tolerance
from problems import HV, K, kda, slots
from problems import pool_of as pool_by_key
from test_decode import UPDATE, decode, lightning, pool_of, tokens
from test_serving import gdn

IDS = torch.tensor([4, -1, 0])
TABLE = torch.tensor([[3, 1, 7], [-1, -1, -1], [2, 6, 5]])


def fla(door, make, **more):
    def call(rng):
        call = {**make(rng, 3, 2), "initial_state": pool_by_key(8, rng), **more}
        return door, call, "initial_state"

    return call


def cula(door, T=1, heads=(HV, K), **more):
    def call(rng):
        source = {"initial_state_source": pool_of(5, rng), "initial_state_indices": IDS}
        return (
            door,
            {**tokens(rng, 3, T, len(heads) == 2), **source, **more},
            "initial_state_source",
        )

    return call


SOFTPLUS = {"softplus_beta": 2.0, "softplus_threshold": 20.0}
FLA_DOORS = [
    (linattn.fused_recurrent_kda_fwd, kda),
    (linattn.fused_recurrent_gated_delta_rule_fwd, gdn),
]
CALLS = {
    **{
        f"{door.__name__}-{name}": fla(door, make, **more)
        for door, make in FLA_DOORS
        for name, more in {
            "slots": {"ssm_state_indices": IDS},
            "table": {"ssm_state_indices": TABLE},
            "accepted": {"ssm_state_indices": TABLE, "num_accepted_tokens": slots(2, 1, 0)},
            "new": {"ssm_state_indices": IDS, "inplace_final_state": False},
        }.items()
    },
    "kda_decode": cula(linattn.kda_decode),
    "update-kda": cula(UPDATE, heads=(HV, K), is_kda=True, **SOFTPLUS),
    "update-gdn": cula(UPDATE, heads=(HV,), is_kda=False, **SOFTPLUS),
    "kda_decode_mtp": cula(linattn.kda_decode_mtp, 3),
    "kda_decode_mtp-verify": cula(linattn.kda_decode_mtp, 3, disable_state_update=True),
}


@pytest.mark.parametrize("name", CALLS)
def test_door(name, rng):
    door, call, pool = CALLS[name](rng)
    there = to_gpu(call)
    before = call[pool].clone()
    expected = door(**call)
    door(**{**there, pool: there[pool].clone()})  # what is made once may wait
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        got = door(**there)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    pairs = zip(got, expected) if isinstance(expected, tuple) else [(got, expected)]
    for x, reference in pairs:
        if reference is not None:
            assert_close(x, reference, tolerance(torch.float32), "result")
    assert_close(there[pool], call[pool], tolerance(torch.float32), "pool")
    for slot in range(len(before)):
        if torch.equal(call[pool][slot], before[slot]):
            assert torch.equal(there[pool][slot].cpu(), before[slot])


def test_states_of_every_token(rng):
    door, call, _ = cula(linattn.kda_decode_mtp, 3)(rng)
    source = call["initial_state_source"]
    call["intermediate_states_buffer"] = torch.full((3, 3, *source.shape[1:]), 7.0)
    there = to_gpu(call)
    o = door(**call)
    assert_close(door(**there), o, tolerance(torch.float32), "out")
    for name in ("initial_state_source", "intermediate_states_buffer"):
        assert_close(there[name], call[name], tolerance(torch.float32), name)
    assert (there["intermediate_states_buffer"][1] == 7).all()


def test_lightning(rng):
    x, decay, pool = lightning(rng, 3), torch.tensor([0.0, 0.1, 0.5, 2.0]), pool_of(5, rng)
    there = pool.cuda()
    out = torch.empty_like(x["v"], device="cuda")
    expected = decode(x, pool, decay, s_offsets=IDS)
    got = decode(to_gpu(x), there, decay.cuda(), s_offsets=IDS.cuda(), out=out)
    assert_close(got, expected, tolerance(torch.float32), "out")
    assert_close(there, pool, tolerance(torch.float32), "pool")


def test_a_graph_follows_the_ids(rng):
    x, pool = to_gpu(tokens(rng, 3)), pool_of(5, rng).cuda()
    ids = slots(0, 1, 2).cuda()

    def call(pool):
        return linattn.kda_decode(**x, initial_state_source=pool, initial_state_indices=ids)

    start = pool.clone()
    call(pool)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call(pool)
    ids.copy_(slots(4, -1, 0))
    pool.copy_(start)
    graph.replay()
    eager = start.clone()
    assert torch.equal(call(eager), out) and torch.equal(pool, eager)
    assert torch.equal(pool[1:4], start[1:4])
