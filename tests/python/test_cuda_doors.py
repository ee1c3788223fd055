# SPDX-License-Identifier: Apache-2.0
"""Every door and every parameter once more on CUDA tensors, against the oracle on the CPU."""

import functools
import warnings

import linattn
import pytest
import torch
from gpu import K, V, to_gpu
from linattn import _compat
from linattn.testing import assert_close, tolerance
from test_doors import CASES, arguments, name_of


@pytest.fixture
def oracle(monkeypatch):
    """Calls a door with the oracle pinned."""

    def call(door, arguments):
        with monkeypatch.context() as patch:
            pinned = functools.partial(_compat._call.forward, implementation="cpu.recurrent")
            patch.setattr(_compat._call, "forward", pinned)
            return getattr(linattn, door)(**arguments)

    return call


def flat(results):
    """(o, state), (o, (state, sums)) or (o, state, chunks) as a list without what is absent."""
    if isinstance(results, tuple):
        return [x for one in results for x in flat(one)]
    return [] if results is None else [results]


def check(door, call, oracle):
    call_there = {name: x if name == "cu_seqlens_cpu" else to_gpu(x) for name, x in call.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # test_doors.py expects it
        expected = flat(oracle(door, call))
        before = {n: x.clone() for n, x in call_there.items() if isinstance(x, torch.Tensor)}
        got = flat(getattr(linattn, door)(**call_there))
    assert len(got) == len(expected)
    for i, (x, reference) in enumerate(zip(got, expected)):
        assert x.is_cuda and x.dtype == reference.dtype
        bound = tolerance(call["q"].dtype, "state" if i else "out")
        assert_close(x, reference, bound, f"result {i}")
    for name, x in before.items():
        assert torch.equal(call_there[name], x), f"{name} was written"


@pytest.mark.parametrize(
    ("door", "case"),
    [
        pytest.param(door, case, id=f"{door}-{name_of(case)}")
        for door in CASES
        for case in CASES[door]
    ],
)
def test_door(door, case, oracle):
    check(door, arguments(door, case, K, V).call, oracle)


@pytest.mark.parametrize("door", ["chunk_kda", "chunk_gdn2"])
def test_intermediate_states(door, oracle):
    call = arguments(door, {"varlen": "int64", "state": True}, K, V).call
    with torch.inference_mode():
        check(door, {**call, "return_intermediate_states": True}, oracle)
