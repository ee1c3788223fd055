# SPDX-License-Identifier: Apache-2.0
"""Serving with a pool of states: a packed prefill of three requests, then decode steps in place. NumPy only."""

import linattn
import numpy as np

H, K, V = 4, 64, 64
rng = np.random.default_rng(0)
gdn = {
    "op": "gdn",
    "gate_input": "softplus",
    "A_log": np.zeros(H, "float32"),
    "beta_input": "logit",
    "qk_l2norm": True,
}
pool = np.zeros((8, H, V, K), "float32")  # a slot per live request; [V, K]


def tokens(batch: int, length: int) -> dict[str, np.ndarray]:
    shapes = {"q": (H, K), "k": (H, K), "v": (H, V), "g": (H,), "beta": (H,)}
    return {
        name: rng.standard_normal((batch, length, *shape), "float32")
        for name, shape in shapes.items()
    }


# Prefill: requests of 100, 7 and 33 tokens, one after another in one row. Slot -1 reads nothing: they start from zero.
slots = np.array([5, 0, 2], "int32")
out, _ = linattn.forward(
    **tokens(1, 140),
    **gdn,
    state_layout="value_key",
    cu_seqlens=np.array([0, 100, 107, 140], "int32"),
    pool=pool,
    read_slots=np.full(3, -1, "int32"),
    write_slots=slots,
)
print("prefill", out.shape, "slots in use", np.flatnonzero(pool.any((1, 2, 3))).tolist())

# Decode: a batch of four rows of one token; the last row is padding, both of its slots are null.
batch = np.append(slots, -1).astype("int32")
for _ in range(3):
    out, _ = linattn.step(
        **tokens(4, 1),
        **gdn,
        state_layout="value_key",
        pool=pool,
        read_slots=batch,
        write_slots=batch,
    )
print("decode", out.shape, "padded row is zero:", not out[3].any())
