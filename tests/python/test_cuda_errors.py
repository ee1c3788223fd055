# SPDX-License-Identifier: Apache-2.0
"""Mistakes on CUDA tensors: each a sentence, and none leaves a trace in later calls."""

import linattn
import numpy
import pytest
import torch
from gpu import HV, check_call, ids, inputs, states, to_gpu
from linattn.testing import assert_close, tolerance


@pytest.fixture(autouse=True)
def later_calls_are_right():
    yield
    torch.cuda.synchronize()
    check_call(*inputs("kda", 2, 40))


def call(door=linattn.forward, **changes):
    x, words = inputs("kda", 2, 6)
    return door(**{**to_gpu(x), **words, **changes})


def tensor(name):
    return inputs("kda", 2, 6)[0][name]


TWO_DEVICES = {
    "k": lambda: {"k": tensor("k")},
    "v": lambda: {"v": tensor("v")},
    "g": lambda: {"g": tensor("g")},
    "beta": lambda: {"beta": tensor("beta")},
    "A_log": lambda: {"gate_input": "softplus", "A_log": torch.zeros(HV)},
    "initial_state": lambda: {"initial_state": states(2)},
    "final_state": lambda: {"final_state": states(2)},
    "cu_seqlens": lambda: {"cu_seqlens": torch.tensor([0, 6])},
    "read_slots": lambda: {"initial_state": states(2).cuda(), "read_slots": ids(0, 1)},
    "write_slots": lambda: {"pool": states(2).cuda(), "write_slots": ids(0, 1)},
    "has_initial_state": lambda: {
        "initial_state": states(2).cuda(),
        "has_initial_state": torch.tensor([True, False]),
    },
    "out": lambda: {"out": torch.empty_like(tensor("v"))},
}


@pytest.mark.parametrize("door", [linattn.forward, linattn.step])
@pytest.mark.parametrize("name", TWO_DEVICES)
def test_tensors_of_two_devices(name, door):
    with pytest.raises(ValueError, match=f"{name} is on cpu; expected cuda:0, where q is"):
        call(door, **TWO_DEVICES[name]())


def test_q_alone_is_on_the_cpu():
    with pytest.raises(ValueError, match="k is on cuda:0; expected cpu, where q is"):
        call(q=tensor("q"))


@pytest.mark.parametrize("door", ["chunk_kda", "fused_recurrent_kda"])
def test_doors_name_the_device(door):
    x, _ = inputs("kda", 1, 6)
    with pytest.raises(ValueError, match="cu_seqlens is on cpu; expected cuda:0"):
        getattr(linattn, door)(**to_gpu(x), cu_seqlens=torch.tensor([0, 6]))


def test_arrays_of_another_library():
    with pytest.raises(TypeError, match=r"k is a numpy\.ndarray; expected a torch\.Tensor as q"):
        call(k=tensor("k").numpy())
    with pytest.raises(TypeError):
        call(q=numpy.ones((2, 6, 2, 64), "float32"))


MISTAKES = {
    "shape": (lambda: {"k": torch.ones(2, 7, 2, 64, device="cuda")}, "k has shape"),
    "dtype": (lambda: {"k": tensor("k").half().cuda()}, "k is float16; expected float32"),
    "stride": (lambda: {"q": torch.ones(2, 6, 2, 128, device="cuda")[..., ::2]}, "q has stride 2"),
    "slots": (
        lambda: {"pool": states(2).cuda(), "read_slots": torch.tensor([0, 1], device="cuda")},
        "read_slots is int64; expected int32",
    ),
    "offsets": (lambda: {"cu_seqlens": ids(0, 6, device="cuda")}, "q has a batch of 2; expected 1"),
    "out": (lambda: {"out": torch.ones(2, 6, HV, 64, device="cuda")}, "out has shape"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(mistake):
    changes, message = MISTAKES[mistake]
    with pytest.raises(ValueError, match=message):
        call(**changes())


def test_unknown_implementations_and_refusals():
    with pytest.raises((ValueError, NotImplementedError), match=r"cpu\.imaginary"):
        call(implementation="cpu.imaginary")
    with pytest.raises(NotImplementedError, match=r"device is cuda:0, not cpu"):
        call(implementation="cpu.recurrent")
    with pytest.raises(NotImplementedError, match="key_dim is 600"):
        q = torch.ones(1, 4, 1, 600, device="cuda")
        linattn.forward(op="linear_attention", q=q, k=q, v=q)


@pytest.mark.no_poison
def test_no_memory_for_the_workspace_or_the_results():
    x, words = inputs("kda", 1, 3000, torch.bfloat16)
    there = to_gpu(x)
    expected, _ = linattn.forward(**there, **words)
    torch.cuda.synchronize()
    expected = expected.cpu()
    torch.cuda.empty_cache()
    held = torch.cuda.memory_reserved() / torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(held)
    try:
        with pytest.raises((torch.OutOfMemoryError, RuntimeError, MemoryError), match="memory"):
            results = [linattn.forward(**there, **words) for _ in range(1000)]
            assert results
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert_close(linattn.forward(**there, **words)[0], expected, tolerance(torch.bfloat16))


def test_garbage_on_the_device_stays_inside():
    """Values that no host check sees: nothing outside the tensors changes, and later calls are right."""
    x, words = inputs("kda", 1, 64)
    pool = states(6)
    guarded = torch.full((10, *pool.shape[1:]), 7.0, device="cuda")
    inside = guarded[2:8]
    most = 2**31 - 1
    for cu in ((5, 3, 1, 0), (0, most, -most, 64), (-1, -1, -1, -1), (0, 64, 0, 64)):
        for slots in ((0, 0, 0), (6, -1, most), (-most, 5, 100)):
            inside.copy_(pool)
            linattn.forward(
                **to_gpu(x),
                **words,
                pool=inside,
                cu_seqlens=ids(*cu, device="cuda"),
                read_slots=ids(*slots, device="cuda"),
                write_slots=ids(*slots[::-1], device="cuda"),
            )
            assert (guarded[:2] == 7).all() and (guarded[8:] == 7).all()
