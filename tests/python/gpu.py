# SPDX-License-Identifier: Apache-2.0
"""What the tests on a GPU share: inputs on it, and the oracle on the CPU. Where there is none, to import this skips."""

import linattn
import pytest
import torch
from linattn.testing import assert_close, tolerance
from reference import l2norm

H, HV, K, V = 2, 4, 64, 48


def _missing():
    if not torch.cuda.is_available():
        return "PyTorch sees no GPU"
    if not any(name.startswith("cuda.") for name in linattn.implementations()):
        return "linattn is built without CUDA: make device"
    return ""


if MISSING := _missing():
    pytest.skip(MISSING, allow_module_level=True)


def to_gpu(x):
    """Tensors, also inside of dicts and tuples; the rest as it is."""
    if isinstance(x, dict):
        return {name: to_gpu(a) for name, a in x.items()}
    if isinstance(x, tuple):
        return tuple(map(to_gpu, x))
    return x.cuda() if isinstance(x, torch.Tensor) else x


def inputs(name, batch, length, dtype=torch.float32, seed=1):
    """Tensors of one op on the CPU, and the words that go with them."""
    rng = torch.Generator().manual_seed(seed)
    op = linattn.OPS[name]
    rows = (batch, length)

    def uniform(*shape):
        return torch.rand(shape, generator=rng)

    x = {
        "q": l2norm(torch.randn(*rows, H, K, generator=rng)).to(dtype),
        "k": l2norm(torch.randn(*rows, H, K, generator=rng)).to(dtype),
        "v": torch.randn(*rows, HV, V, generator=rng).to(dtype),
    }
    shapes = {"head": (*rows, HV), "head_constant": (HV,), "channel": (*rows, HV, K)}
    if op.gate in shapes:
        x["g"] = -uniform(*shapes[op.gate])
    if op.update == "delta":
        x["beta"] = uniform(*rows, HV)
    if op.update == "erase_write":
        x["erase"], x["write"] = uniform(*rows, HV, K), uniform(*rows, HV, V)
    words = {
        "op": name,
        "gate_input": None if op.gate == "none" else "log_decay",
        "beta_input": None if op.update == "add" else "value",
        "state_layout": "key_value",
    }
    return x, words


def states(count, layout="key_value", seed=2):
    shape = (count, HV, K, V) if layout == "key_value" else (count, HV, V, K)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def ids(*values, device="cpu"):
    return torch.tensor(values, dtype=torch.int32, device=device)


def check_call(x, words):
    """A call with states on the GPU against the oracle."""
    dtype = x["q"].dtype
    batch = x["q"].shape[0]
    h0 = states(batch, words["state_layout"])
    o, S = linattn.forward(
        **x, **words, initial_state=h0, output_final_state=True, implementation="cpu.recurrent"
    )
    out, state = linattn.forward(
        **to_gpu(x), **words, initial_state=h0.cuda(), output_final_state=True
    )
    assert out.is_cuda and state.is_cuda and out.dtype == dtype
    assert_close(out, o, tolerance(dtype), "out")
    assert_close(state, S, tolerance(dtype, "state"), "state")
