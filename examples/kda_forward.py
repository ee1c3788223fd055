# SPDX-License-Identifier: Apache-2.0
"""KDA as in flash-linear-attention, then a decoded token from its state.

The lines between the marks stand in README.md.
"""

# [readme]
import linattn
import torch

B, T, H, D = 1, 1000, 4, 128
q, k, v = (torch.randn(B, T, H, D, dtype=torch.bfloat16, requires_grad=True) for _ in "qkv")
g, beta = -torch.rand(B, T, H, D), torch.rand(B, T, H)  # log decay, write strength
options = {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
o, state = linattn.chunk_kda(q, k, v, g, beta, **options)  # FLA's signature, FLA's results
o.float().square().mean().backward()

kda = {"op": "kda", "gate_input": "log_decay", "beta_input": "value", "qk_l2norm": True}
token = {"q": q[:, -1:], "k": k[:, -1:], "v": v[:, -1:], "g": g[:, -1:], "beta": beta[:, -1:]}
with torch.no_grad():  # decode: `state` is read and written in place
    o, _ = linattn.step(**kda, **token, pool=state, state_layout="key_value")
# [readme]

print(o.shape, q.grad.shape, state.shape)
