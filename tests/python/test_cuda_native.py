# SPDX-License-Identifier: Apache-2.0
"""The native doors on CUDA tensors: ops, layouts, pools, streams, devices, memory."""

import linattn
import pytest
import torch
from gpu import HV, K, V, check_call, ids, inputs, states, to_gpu
from linattn.testing import assert_close, tolerance

DTYPES = [torch.bfloat16, torch.float16, torch.float32]


@pytest.mark.parametrize("layout", ["key_value", "value_key"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", linattn.OPS)
def test_every_op(name, dtype, layout):
    x, words = inputs(name, 2, 70, dtype)
    check_call(x, {**words, "state_layout": layout})


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", linattn.OPS)
def test_every_op_steps(name, dtype):
    x, words = inputs(name, 3, 4, dtype)
    pool = states(3)
    there = pool.cuda()
    o, _ = linattn.step(**x, **words, pool=pool)
    out, same = linattn.step(**to_gpu(x), **words, pool=there)
    assert same is there
    assert_close(out, o, tolerance(dtype), "out")
    assert_close(there, pool, tolerance(dtype, "state"), "pool")


@pytest.mark.parametrize("layout", ["key_value", "value_key"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("door", [linattn.forward, linattn.step])
def test_pool_with_slots(door, dtype, layout):
    """Ragged sequences, null ids, a pad, a first slot, flags; slots that nobody names keep their bits."""
    lengths = [0, 3, 0, 1, 8, 5] if door is linattn.step else [0, 70, 0, 1, 64, 5]
    cu = torch.tensor(lengths).cumsum(0).to(torch.int32)
    x, words = inputs("kda", 1, sum(lengths) + 3, dtype)
    words["state_layout"] = layout
    pool = states(9, layout)
    index = {
        "cu_seqlens": torch.cat([cu[:1] * 0, cu[1:]]),
        "read_slots": ids(4, 0, -1, 7, 3),
        "write_slots": ids(4, 5, 0, 6, -2),
        "has_initial_state": torch.tensor([True, True, True, False, True]),
        "first_slot": 1,
    }
    before, there = pool.clone(), pool.cuda()
    o, _ = door(**x, **words, pool=pool, **index, implementation="cpu.recurrent")
    out, _ = door(**to_gpu(x), **words, pool=there, **to_gpu(index))
    assert_close(out, o, tolerance(dtype), "out")
    assert_close(there, pool, tolerance(dtype, "state"), "pool")
    assert torch.count_nonzero(out[:, sum(lengths) :]) == 0
    for slot in (0, 1, 2, 3, 7, 8):
        assert torch.equal(there[slot].cpu(), before[slot])


def test_C03_another_current_device():
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    x, words = inputs("kda", 2, 40)
    expected, _ = linattn.forward(**x, **words)
    for current, of_tensors in ((0, 1), (1, 0)):
        there = {name: a.to(f"cuda:{of_tensors}") for name, a in x.items()}
        with torch.cuda.device(current):
            out, state = linattn.forward(**there, **words, output_final_state=True)
            linattn.step(**{n: a[:, :3] for n, a in there.items()}, **words, pool=state)
            assert torch.cuda.current_device() == current
        assert out.device.index == state.device.index == of_tensors
        assert_close(out, expected, tolerance(torch.float32))
    mixed = {name: a.to("cuda:1" if name == "k" else "cuda:0") for name, a in x.items()}
    with pytest.raises(ValueError, match="k is on cuda:1; expected cuda:0, where q is"):
        linattn.forward(**mixed, **words)


@pytest.mark.parametrize("door", [linattn.forward, linattn.step])
def test_C04_side_stream(door):
    """Inputs that a stream makes late are waited for by a call in that stream, and only by that."""
    x, words = inputs("gdn", 2, 6)
    there = to_gpu(x)
    expected, _ = door(**there, **words)
    side = torch.cuda.Stream()
    for _ in range(3):
        late = {name: torch.full_like(a, float("nan")) for name, a in there.items()}
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(50_000_000)
            for name, a in there.items():
                late[name].copy_(a)
            out, _ = door(**late, **words)
        side.synchronize()
        assert torch.equal(out, expected)


@pytest.mark.no_poison
def test_C04_memory_of_a_side_stream():
    """The workspace of a call may be taken by the next one in the same stream, and by no other stream."""
    x, words = inputs("kda", 1, 5000, torch.bfloat16)
    there = to_gpu(x)
    expected, _ = linattn.forward(**there, **words)
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    results = []
    for _ in range(5):
        for stream in streams:
            with torch.cuda.stream(stream):
                results.append(linattn.forward(**there, **words)[0])
    torch.cuda.synchronize()
    assert all(torch.equal(out, expected) for out in results)


@pytest.mark.no_poison
def test_P05_memory_comes_from_torch():
    """Results and workspace are torch's; nothing else takes memory of the device."""
    x, words = inputs("kda", 1, 5000, torch.bfloat16)
    there = to_gpu(x)

    def call():
        return linattn.forward(**there, **words, output_final_state=True)

    del_me = call()
    torch.cuda.synchronize()
    del del_me
    free, reserved = torch.cuda.mem_get_info()[0], torch.cuda.memory_reserved()
    before = torch.cuda.memory_allocated()
    for _ in range(20):
        out, state = call()
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated() - before
    assert out.nbytes + state.nbytes <= held <= out.nbytes + state.nbytes + 2048
    assert torch.cuda.memory_reserved() == reserved and torch.cuda.mem_get_info()[0] == free


def test_I02_autocast():
    x, words = inputs("kda", 2, 40, torch.bfloat16)
    there = to_gpu(x)
    out, state = linattn.forward(**there, **words, output_final_state=True)
    with torch.autocast("cuda", torch.float16):
        again, same = linattn.forward(**there, **words, output_final_state=True)
    assert again.dtype == torch.bfloat16 and same.dtype == torch.float32
    assert torch.equal(again, out) and torch.equal(same, state)


def test_I03_modes_give_the_same_bits():
    x, words = inputs("kda", 2, 40, torch.bfloat16)
    there = to_gpu(x)
    out, _ = linattn.forward(**there, **words)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert torch.equal(linattn.forward(**there, **words)[0], out)
            again, _ = linattn.step(**{n: a[:, :5] for n, a in there.items()}, **words)
        assert_close(again, out[:, :5], 2 * tolerance(torch.bfloat16))


def test_a_state_that_is_not_named_stays():
    x, words = inputs("gdn", 2, 70)
    pool = torch.full((6, HV, K, V), 7.0, device="cuda")
    read, write = ids(-1, -1, device="cuda"), ids(4, 1, device="cuda")
    linattn.forward(**to_gpu(x), **words, pool=pool, read_slots=read, write_slots=write)
    assert (pool[[0, 2, 3, 5]] == 7).all() and (pool[[1, 4]] != 7).any()
