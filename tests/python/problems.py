# SPDX-License-Identifier: Apache-2.0
"""Inputs of the native doors and what they should give: KDA with groups of value heads, and every op by name."""

import linattn
import torch
from reference import l2norm, recurrence

H, HV, K, V = 2, 4, 16, 24
KDA = {"op": "kda", "gate_input": "log_decay", "beta_input": "value", "state_layout": "key_value"}


def kda(rng, batch, length, dtype=torch.float32):
    return {
        "q": l2norm(torch.randn(batch, length, H, K, generator=rng)).to(dtype),
        "k": l2norm(torch.randn(batch, length, H, K, generator=rng)).to(dtype),
        "v": torch.randn(batch, length, HV, V, generator=rng).to(dtype),
        "g": -torch.rand(batch, length, HV, K, generator=rng),
        "beta": torch.rand(batch, length, HV, generator=rng),
    }


def rows(x, begin, end):
    return {name: a[:, begin:end] for name, a in x.items()}


def expected(x, h0=None):
    x = {name: a.double() for name, a in x.items()}
    return recurrence(
        x["q"],
        x["k"],
        x["v"],
        x["g"],
        beta=x["beta"],
        initial_state=None if h0 is None else h0.double(),
    )


def pool_of(slots, rng, dtype=torch.float32):
    return torch.randn(slots, HV, K, V, generator=rng).to(dtype)


def slots(*ids):
    return torch.tensor(ids, dtype=torch.int32)


def op_inputs(name, rng):
    op = linattn.OPS[name]
    x = {
        "q": l2norm(torch.randn(2, 9, H, K, generator=rng)),
        "k": l2norm(torch.randn(2, 9, H, K, generator=rng)),
        "v": torch.randn(2, 9, HV, V, generator=rng),
    }
    shapes = {"head": (2, 9, HV), "head_constant": (HV,), "channel": (2, 9, HV, K)}
    if op.gate in shapes:
        x["g"] = -torch.rand(shapes[op.gate], generator=rng)
    if op.update == "delta":
        x["beta"] = torch.rand(2, 9, HV, generator=rng)
    if op.update == "erase_write":
        x["erase"] = torch.rand(2, 9, HV, K, generator=rng)
        x["write"] = torch.rand(2, 9, HV, V, generator=rng)
    words = {
        "op": name,
        "gate_input": None if op.gate == "none" else "log_decay",
        "beta_input": None if op.update == "add" else "value",
        "state_layout": "key_value",
    }
    return x, words


def op_expected(x):
    d = {name: a.double() for name, a in x.items()}
    g = d.pop("g", None)
    if g is not None and g.dim() == 1:
        g = g.expand(*d["v"].shape[:3])
    return recurrence(decay=g if g is None or g.dim() == 4 else g[..., None], **d)
