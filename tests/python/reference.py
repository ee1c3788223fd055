# SPDX-License-Identifier: Apache-2.0
"""References: the recurrence in double with PyTorch's own autograd, and FLA's naive_* functions."""

from __future__ import annotations

import importlib
import itertools

import torch
import torch.nn.functional as F


def l2norm(x: torch.Tensor) -> torch.Tensor:
    return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def recurrence(
    q, k, v, decay=None, *, beta=None, erase=None, write=None, scale=None, initial_state=None
):
    """Token by token: [B, T, heads, dim] in, (o, final state [B, HV, K, V]) out, in the inputs' dtype (use double).

    decay: log decay that broadcasts to [B, T, HV, K]. beta: [B, T, HV]; erase, write as in gdn2; none of them: add.
    """
    B, T, H, K = q.shape
    HV, V = v.shape[2:]
    q, k = (x.repeat_interleave(HV // H, 2) for x in (q, k))
    scale = K**-0.5 if scale is None else scale
    S = q.new_zeros(B, HV, K, V) if initial_state is None else initial_state.to(q.dtype)
    outputs = []
    for t in range(T):
        if decay is not None:
            S = S * decay[:, t].exp()[..., None]
        kt, vt = k[:, t], v[:, t]
        if erase is not None:
            e = write[:, t] * vt - torch.einsum("bhkv,bhk->bhv", S, erase[:, t] * kt)
        elif beta is not None:
            e = beta[:, t, :, None] * (vt - torch.einsum("bhkv,bhk->bhv", S, kt))
        else:
            e = vt
        S = S + kt[..., None] * e[..., None, :]
        outputs.append(scale * torch.einsum("bhkv,bhk->bhv", S, q[:, t]))
    return torch.stack(outputs, 1) if outputs else v.new_zeros(v.shape), S


def by_sequence(run, tensors, cu_seqlens, initial_state):
    """Runs `run(tensors of one sequence, its state)` over packed sequences; rows past the last offset are zero."""
    o = torch.zeros_like(tensors["v"], dtype=torch.float32)
    states = []
    offsets = cu_seqlens.tolist()
    for n, (begin, end) in enumerate(itertools.pairwise(offsets)):
        piece = {
            name: x[:, begin:end] if x is not None and x.dim() > 2 else x
            for name, x in tensors.items()
        }
        h0 = None if initial_state is None else initial_state[n : n + 1]
        if begin == end:
            B, _, HV, V = tensors["v"].shape
            states.append(torch.zeros(B, HV, tensors["k"].shape[-1], V) if h0 is None else h0)
            continue
        o[:, begin:end], S = run(piece, h0)
        states.append(S)
    return o, torch.cat(states)


def naive(op: str):
    """FLA's token-by-token reference of an op, behind one signature; None where a tensor is not used."""
    modules = {
        "kda": "kda",
        "gdn": "gated_delta_rule",
        "gla": "gla",
        "simple_gla": "simple_gla",
        "delta_rule": "delta_rule",
        "linear_attention": "linear_attn",
        "gdn2": "gdn2",
    }
    module = importlib.import_module(f"fla.ops.{modules[op]}.naive")

    def run(q, k, v, g=None, beta=None, b=None, w=None, scale=None, h0=None):
        q, k, v = q.float(), k.float(), v.float()
        K, groups = q.shape[-1], v.shape[2] // q.shape[2]
        scale = K**-0.5 if scale is None else scale
        state = {"initial_state": h0, "output_final_state": True}
        if op == "kda":
            return module.naive_recurrent_kda(q, k, v, g, beta, scale, **state)
        q, k = (x.repeat_interleave(groups, 2) for x in (q, k))  # the others know no groups
        if op == "gdn":
            return module.naive_recurrent_gated_delta_rule(q, k, v, beta, g, scale, **state)
        if op == "gla":
            return module.naive_recurrent_gla(q * scale * K**0.5, k, v, g, **state)
        if op == "simple_gla":
            return module.naive_recurrent_simple_gla(q, k, v, g, scale, **state)
        if op == "delta_rule":
            head_first = [x.transpose(1, 2) for x in (q * scale * K**0.5, k, v, beta)]
            o, S = module.delta_rule_recurrence(*head_first, h0, True)
            return o.transpose(1, 2), S
        if op == "linear_attention":
            return module.naive_recurrent_linear_attn(q, k, v, scale, **state)
        return module.naive_recurrent_gdn2(q, k, v, g, b, w, scale, **state)

    return run


def softplus_gate(g, A_log, dt_bias=None):
    """-exp(A_log) softplus(g + dt_bias); A_log [HV], dt_bias broadcasts."""
    x = g if dt_bias is None else g + dt_bias
    shape = (-1, 1) if g.dim() == 4 else (-1,)
    return -A_log.view(shape).exp() * F.softplus(x)


def bounded_gate(g, A_log, dt_bias, lower_bound):
    x = g if dt_bias is None else g + dt_bias
    rate = 1.0 if A_log is None else A_log.view(-1, 1).exp()
    return lower_bound * torch.sigmoid(rate * x)
