# SPDX-License-Identifier: Apache-2.0
"""Every door and every parameter, at values other than its default, against FLA's naive_* references."""

import inspect
import itertools
import zlib
from types import SimpleNamespace

import linattn
import pytest
import torch
from linattn.testing import assert_close, tolerance
from reference import by_sequence, l2norm, naive

B, T, H, HV, K, V = 2, 70, 2, 4, 24, 40
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
OFFSETS = {"int64": [0, 17, 17, 70], "int32": [0, 1, 66, 70], "short": [0, 33, 33, 50]}

# Door: the op of its reference, whether it takes groups of value heads, the tensors that it needs.
DOORS = {
    "chunk_kda": ("kda", True, "q k v g beta"),
    "fused_recurrent_kda": ("kda", True, "q k v g beta"),
    "chunk_gated_delta_rule": ("gdn", True, "q k v g beta"),
    "fused_recurrent_gated_delta_rule": ("gdn", True, "q k v"),
    "chunk_gla": ("gla", False, "q k v g"),
    "fused_recurrent_gla": ("gla", False, "q k v"),
    "chunk_simple_gla": ("simple_gla", False, "q k v"),
    "fused_recurrent_simple_gla": ("simple_gla", False, "q k v"),
    "chunk_lightning_attn": ("simple_gla", False, "q k v"),
    "fused_recurrent_lightning_attn": ("simple_gla", False, "q k v"),
    "chunk_retention": ("simple_gla", False, "q k v"),
    "fused_recurrent_retention": ("simple_gla", False, "q k v"),
    "chunk_delta_rule": ("delta_rule", False, "q k v beta"),
    "fused_recurrent_delta_rule": ("delta_rule", False, "q k v"),
    "chunk_linear_attn": ("linear_attention", False, "q k v"),
    "fused_recurrent_linear_attn": ("linear_attention", False, "q k v"),
    "chunk_gdn2": ("gdn2", False, "q k v g b w"),
    "fused_recurrent_gdn2": ("gdn2", False, "q k v g b w"),
}

# "state": an initial state comes and the final one is asked for. "varlen": a key of OFFSETS. "tensor": one is made.
COMMON = [
    {},
    {"dtype": "fp16"},
    {"dtype": "fp32"},
    {"scale": 0.3},
    {"state": True},
    {"output_final_state": True},
    {"varlen": "int64", "state": True},
    {"varlen": "int32"},
    {"varlen": "short", "state": True},
]
V_FIRST = [
    {"state": True, "state_v_first": True},
    {"output_final_state": True, "state_v_first": True, "varlen": "int64"},
]
OLD_V_FIRST = [{"state": True, "transpose_state_layout": True}]
GATE = {"use_gate_in_kernel": True}
CHANNEL_GATES = [
    {**GATE, "A_log": "tensor"},
    {**GATE, "A_log": "tensor", "dt_bias": "tensor", "state": True},
    {**GATE, "A_log": "tensor", "dt_bias": "tensor", "lower_bound": -5.0},
    {**GATE, "A_log": "tensor", "lower_bound": -0.4, "varlen": "int64"},
    {**GATE, "lower_bound": -20.0},
    {**GATE, "lower_bound": -3.0, "dt_bias": "tensor"},
    {**GATE, "lower_bound": 0.01, "A_log": "tensor", "dt_bias": "tensor"},
    # As in FLA these mean nothing without use_gate_in_kernel.
    {"A_log": "tensor", "dt_bias": "tensor", "lower_bound": -5.0},
]
NORM = [{"use_qk_l2norm_in_kernel": True}, {"use_qk_l2norm_in_kernel": True, "dtype": "fp32"}]
SIGMOID = [
    {"use_beta_sigmoid_in_kernel": True},
    {"use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": True},
]
SAFE = [
    {"safe_gate": True},
    {"safe_gate": True, **GATE, "A_log": "tensor", "lower_bound": -5.0},
    {"disable_recompute": True},
    {"varlen": "int64", "cu_seqlens_cpu": "tensor"},
]
REVERSE = [{"reverse": True, "state": True}, {"reverse": True, "varlen": "short", "state": True}]
LAYER = {"layer_idx": 3, "num_layers": 8}

CASES = {
    "chunk_kda": [
        *COMMON,
        *V_FIRST,
        *OLD_V_FIRST,
        *CHANNEL_GATES,
        *NORM,
        *SIGMOID,
        *SAFE,
        {"chunk_size": 32},
        {"use_graph": True},
        {"use_graph": True, "max_num_seqs": 3, "varlen": "int64"},
    ],
    "fused_recurrent_kda": [*COMMON, *V_FIRST, *OLD_V_FIRST, *CHANNEL_GATES, *NORM, *SIGMOID],
    "chunk_gated_delta_rule": [
        *COMMON,
        *V_FIRST,
        *OLD_V_FIRST,
        *NORM,
        *SIGMOID,
        {**GATE, "A_log": "tensor"},
        {**GATE, "A_log": "tensor", "dt_bias": "tensor", "state": True},
        {"A_log": "tensor", "dt_bias": "tensor"},
        {"chunk_size": 16},
        {"varlen": "int64", "cu_seqlens_cpu": "tensor", "chunk_indices": "tensor"},
    ],
    "fused_recurrent_gated_delta_rule": [
        *({"g": "tensor", "beta": "tensor", **case} for case in [*COMMON, *V_FIRST, *OLD_V_FIRST]),
        *({"g": "tensor", "beta": "tensor", **case} for case in [*NORM, *SIGMOID]),
        {},
        {"state": True, "use_beta_sigmoid_in_kernel": True},
        {"beta": "tensor"},
        {"gk": "tensor", "beta": "tensor", "state": True},
        {"g": "tensor", "gk": "tensor", "beta": "tensor"},
        {"g": "tensor", "beta": "tensor", **GATE, "A_log": "tensor", "dt_bias": "tensor"},
        {"g": "tensor", "gk": "tensor", **GATE, "A_log": "tensor", "dt_bias": "tensor"},
        {"g": "tensor", "gk": "tensor", **GATE, "A_log": "tensor"},
    ],
    "chunk_gla": [*COMMON, *V_FIRST, {"varlen": "int64", "cu_seqlens_cpu": "tensor"}],
    "fused_recurrent_gla": [
        *({"gk": "tensor", **case} for case in [*COMMON, *V_FIRST, *OLD_V_FIRST, *REVERSE]),
        {},
    ],
    "chunk_simple_gla": [
        *({"g": "tensor", **case} for case in [*COMMON, *V_FIRST]),
        {},
        {"g_gamma": "tensor", "state": True},
        {"g": "tensor", "g_gamma": "tensor"},
        {"g": "tensor", "chunk_size": 128},
        {"varlen": "int64", "cu_seqlens_cpu": "tensor"},
    ],
    "fused_recurrent_simple_gla": [
        *({"g": "tensor", **case} for case in [*COMMON, *V_FIRST, *OLD_V_FIRST, *REVERSE]),
        {},
        {"g_gamma": "tensor", "state": True},
        {"g_gamma": "tensor", "reverse": True},
        {"g": "tensor", "g_gamma": "tensor"},
    ],
    "chunk_lightning_attn": [*({**LAYER, **case} for case in [*COMMON, {"chunk_size": 32}])],
    "fused_recurrent_lightning_attn": [*({**LAYER, **case} for case in [*COMMON, *REVERSE])],
    "chunk_retention": [*COMMON, {"chunk_size": 32}],
    "fused_recurrent_retention": [*COMMON, *V_FIRST, *OLD_V_FIRST, *REVERSE],
    "chunk_delta_rule": [
        *(case for case in COMMON if case.get("dtype") != "fp32"),
        NORM[0],
        {"chunk_size": 16},
        {"varlen": "int64", "cu_seqlens_cpu": "tensor"},
    ],
    "fused_recurrent_delta_rule": [*({"beta": "tensor", **case} for case in [*COMMON, *NORM]), {}],
    "chunk_linear_attn": [
        *COMMON,
        *({**case, "normalize": False} for case in COMMON),
        {"state": True, "initial_sum": True},
        {"state": True, "initial_sum": True, "varlen": "short"},
    ],
    "fused_recurrent_linear_attn": [
        *COMMON,
        *REVERSE,
        *({**case, "normalize": True} for case in [*COMMON, *REVERSE]),
        {"state": True, "initial_sum": True, "normalize": True, "reverse": True},
    ],
    "chunk_gdn2": [
        *COMMON,
        *V_FIRST,
        *OLD_V_FIRST,
        *CHANNEL_GATES,
        *NORM,
        *SAFE,
        {"chunk_size": 64},
    ],
    "fused_recurrent_gdn2": [*COMMON, *V_FIRST, *OLD_V_FIRST, *CHANNEL_GATES, *NORM],
}


def name_of(case):
    return ",".join(f"{name}={value}" for name, value in case.items()) or "defaults"


class Inputs:
    """Tensors by name, of what a door expects under it."""

    def __init__(self, door, case, K=K, V=V):
        op, groups, _ = DOORS[door]
        self.K, self.V = K, V
        self.batch = 1 if "varlen" in case else B
        self.heads = HV if groups else H
        self.dtype = DTYPES[case.get("dtype", "bf16")]
        self.rng = torch.Generator().manual_seed(zlib.crc32(f"{door} {name_of(case)}".encode()))
        self.channel_gate = op in ("kda", "gla", "gdn2")
        # Raw keys only where nothing amplifies them: the delta rule diverges for long ones.
        self.unit_keys = op in ("kda", "gdn", "delta_rule", "gdn2") and not case.get(
            "use_qk_l2norm_in_kernel"
        )
        self.positive = op == "linear_attention"
        self.case = case

    def normal(self, *shape):
        return torch.randn(shape, generator=self.rng)

    def uniform(self, low, high, *shape):
        return low + (high - low) * torch.rand(shape, generator=self.rng)

    def make(self, name):
        K, V = self.K, self.V
        rows = (self.batch, T)
        if name in ("q", "k"):
            x = self.normal(*rows, H, K)
            if self.positive:  # a normalised row is divided by q^T z, which must not vanish
                x = x.abs()
            return (l2norm(x) if self.unit_keys else x).to(self.dtype)
        if name == "v":
            return self.normal(*rows, self.heads, V).to(self.dtype)
        if name in ("g", "gk"):
            channels = (K,) if name == "gk" or self.channel_gate else ()
            shape = (*rows, self.heads, *channels)
            if name == "g" and self.case.get("use_gate_in_kernel"):
                return self.normal(*shape).to(self.dtype)
            return self.uniform(-1.0, -0.01, *shape)
        if name == "g_gamma":
            return self.uniform(-0.5, 0.0, self.heads)
        if name == "beta":
            x = self.normal(*rows, self.heads)
            return x if self.case.get("use_beta_sigmoid_in_kernel") else x.sigmoid()
        if name == "b":
            return self.normal(*rows, self.heads, K).sigmoid().to(self.dtype)
        if name == "w":
            return self.normal(*rows, self.heads, V).sigmoid().to(self.dtype)
        if name == "A_log":
            return self.uniform(-1.0, 1.0, self.heads)
        if name == "dt_bias":
            return self.normal(self.heads * (K if self.channel_gate else 1))
        raise KeyError(name)


def reference(door, x, case, cu_seqlens, h0, z0):
    """FLA's naive function, fed with what the door's flags mean. States are [N, HV, K, V]."""
    op = DOORS[door][0]
    t = {name: None if x.get(name) is None else x[name].float() for name in "qkvbw"}
    heads = t["v"].shape[2]
    if case.get("use_qk_l2norm_in_kernel"):
        t["q"], t["k"] = l2norm(t["q"]), l2norm(t["k"])

    g = x.get("g") if x.get("g") is not None else x.get("gk")
    if case.get("use_gate_in_kernel"):
        from fla.ops.gated_delta_rule.gate import naive_gdn_gate
        from fla.ops.kda.gate import naive_kda_gate, naive_kda_lowerbound_gate

        A_log, dt_bias, bound = x.get("A_log"), x.get("dt_bias"), case.get("lower_bound")
        if op == "gdn":
            g = naive_gdn_gate(x["g"], A_log, dt_bias)
        elif bound is None:
            g = naive_kda_gate(x["g"], A_log, dt_bias)
        else:
            g = naive_kda_lowerbound_gate(x["g"], A_log, dt_bias, bound)
    if x.get("g") is not None and x.get("gk") is not None:
        g = g[..., None] + x["gk"]
    if op == "gdn" and g is not None and g.dim() == 4:
        op = "kda"
    if x.get("g_gamma") is not None:
        g = x["g_gamma"].expand(*t["v"].shape[:3]) + (0 if g is None else g)
    if "lightning" in door:
        slope = -8 / heads * (1 - case["layer_idx"] / case["num_layers"])
        g = (slope * torch.arange(heads)).expand(*t["v"].shape[:3])
    if "retention" in door:
        g = (1 - 2.0 ** (-5 - torch.arange(heads).double())).log().float().expand(*t["v"].shape[:3])
    if op in ("gdn", "simple_gla") and g is None:
        op = "delta_rule" if op == "gdn" else "linear_attention"
    if op == "gla" and g is None:
        op = "linear_attention"
    t["g"] = None if g is None else g.float()

    beta = x.get("beta")
    if op in ("kda", "gdn", "delta_rule"):
        beta = torch.ones(t["v"].shape[:3]) if beta is None else beta.float()
        if case.get("use_beta_sigmoid_in_kernel"):
            beta = beta.sigmoid() * (2 if case.get("allow_neg_eigval") else 1)
        if op in ("delta_rule", "gdn"):
            groups = heads // H
            t["q"], t["k"] = (t[n].repeat_interleave(groups, 2) for n in "qk")
        t["beta"] = beta

    run = naive(op)
    reverse, scale = case.get("reverse"), case.get("scale")
    normalize = case.get("normalize", door == "chunk_linear_attn")

    def one(tensors, state, z=None):
        if reverse:
            tensors = {n: None if a is None else a.flip(1) for n, a in tensors.items()}
        o, S = run(**tensors, scale=scale, h0=state)
        if "linear_attn" in door and normalize:
            sums = tensors["k"].cumsum(1) + (0 if z is None else z)
            factor = K**-0.5 if scale is None else scale
            o = o / ((tensors["q"] * factor * sums).sum(-1, keepdim=True) + 1e-10)
        return o.flip(1) if reverse else o, S

    if cu_seqlens is None:
        return one(t, h0, z0)
    pairs = iter([None] * 99 if z0 is None else [z0[n : n + 1] for n in range(len(z0))])
    skip = [a == b for a, b in zip(cu_seqlens.tolist()[:-1], cu_seqlens.tolist()[1:])]
    sums = [z for z, empty in zip(pairs, skip) if not empty]
    sums = iter(sums)
    return by_sequence(lambda piece, state: one(piece, state, next(sums)), t, cu_seqlens, h0)


def arguments(door, case, K=K, V=V):
    """What a case means: `call` is the door's keywords, the rest what its result is compared with."""
    inputs = Inputs(door, case, K, V)
    names = DOORS[door][2].split()
    optional = [
        n
        for n, value in case.items()
        if value == "tensor" and n in "g gk g_gamma beta A_log dt_bias".split()
    ]
    x = {name: inputs.make(name) for name in [*names, *optional]}
    literal = {
        name: value
        for name, value in case.items()
        if name not in ("dtype", "state", "varlen", "initial_sum") and value != "tensor"
    }
    cu_seqlens = h0 = z0 = None
    call = {**x, **literal}
    if "varlen" in case:
        dtype = torch.int32 if case["varlen"] == "int32" else torch.int64
        cu_seqlens = torch.tensor(OFFSETS[case["varlen"]], dtype=dtype)
        call["cu_seqlens"] = cu_seqlens
    if case.get("cu_seqlens_cpu"):
        call["cu_seqlens_cpu"] = cu_seqlens
    if case.get("chunk_indices"):
        call["chunk_indices"] = torch.zeros(4, 2, dtype=torch.int64)
    sequences = inputs.batch if cu_seqlens is None else len(cu_seqlens) - 1
    value_first = case.get("state_v_first") or case.get("transpose_state_layout")
    if case.get("state"):
        h0 = inputs.normal(sequences, inputs.heads, K, V)
        call["initial_state"] = h0.transpose(2, 3).contiguous() if value_first else h0
        call["output_final_state"] = True
    if case.get("initial_sum"):
        z0 = inputs.uniform(0.0, 1.0, sequences, 1, H, K)
        call["initial_state"] = (call["initial_state"], z0)
    return SimpleNamespace(
        call=call,
        x=x,
        dtype=inputs.dtype,
        cu_seqlens=cu_seqlens,
        h0=h0,
        z0=z0,
        sequences=sequences,
        value_first=value_first,
    )


@pytest.mark.parametrize(
    ("door", "case"),
    [
        pytest.param(door, case, id=f"{door}-{name_of(case)}")
        for door in CASES
        for case in CASES[door]
    ],
)
def test_door(door, case):
    a = arguments(door, case)
    call, x = a.call, a.x
    before = {
        name: value.clone() for name, value in call.items() if isinstance(value, torch.Tensor)
    }
    if "transpose_state_layout" in case:
        with pytest.warns(DeprecationWarning):
            o, state = getattr(linattn, door)(**call)
    else:
        o, state = getattr(linattn, door)(**call)
    for name, value in before.items():
        assert torch.equal(call[name], value), f"{name} was written"

    expected_o, expected_state = reference(door, x, case, a.cu_seqlens, a.h0, a.z0)
    assert o.dtype == a.dtype and o.shape == x["v"].shape
    assert_close(o, expected_o, tolerance(a.dtype), "o")
    if case.get("normalize", door == "chunk_linear_attn"):
        state, sums = state
        assert sums.shape == (a.sequences, 1, H, K) and sums.dtype == x["k"].dtype
        check_sums(sums, x["k"].float(), a.z0, a.cu_seqlens, tolerance(a.dtype))
    if not call.get("output_final_state"):
        assert state is None
        return
    assert state.dtype == torch.float32
    state = state.transpose(2, 3) if a.value_first else state
    assert_close(state, expected_state, tolerance(a.dtype, "state"), "final_state")


def check_sums(sums, k, z0, cu_seqlens, bound):
    if cu_seqlens is None:
        expected = k.sum(1, keepdim=True)
    else:
        offsets = cu_seqlens.tolist()
        expected = torch.stack([k[:, b:e].sum(1) for b, e in itertools.pairwise(offsets)])
    assert_close(sums, expected + (0 if z0 is None else z0), bound, "sum of keys")


# Parameters that no result depends on are in the cases all the same; these are refused instead.
REFUSED_ANYWHERE = {"cp_context", "gv"}
SEPARATE = {"return_intermediate_states"}  # test_intermediate_states


@pytest.mark.parametrize("door", CASES)
def test_every_parameter_is_tried(door):
    tried = {name for case in CASES[door] for name in case} | set(DOORS[door][2].split())
    if any("state" in case for case in CASES[door]):
        tried |= {"initial_state", "output_final_state"}
    if any("varlen" in case for case in CASES[door]):
        tried.add("cu_seqlens")
    parameters = set(inspect.signature(getattr(linattn, door)).parameters) - {"kwargs"}
    assert parameters - REFUSED_ANYWHERE - SEPARATE <= tried


@pytest.mark.parametrize(
    ("door", "chunk_size"), [("chunk_kda", 64), ("chunk_kda", 32), ("chunk_gdn2", 64)]
)
@pytest.mark.parametrize("state_v_first", [False, True])
@pytest.mark.parametrize("varlen", [None, "int64"])
def test_intermediate_states(door, state_v_first, varlen, chunk_size):
    case = {"varlen": varlen} if varlen else {}
    inputs = Inputs(door, case)
    x = {name: inputs.make(name) for name in DOORS[door][2].split()}
    cu_seqlens = torch.tensor(OFFSETS[varlen]) if varlen else None
    offsets = OFFSETS[varlen] if varlen else [0, T]
    sequences = len(offsets) - 1 if varlen else B
    h0 = inputs.normal(sequences, inputs.heads, K, V)
    with torch.inference_mode():
        _, state, chunks = getattr(linattn, door)(
            **x,
            initial_state=h0.transpose(2, 3).contiguous() if state_v_first else h0,
            output_final_state=True,
            state_v_first=state_v_first,
            cu_seqlens=cu_seqlens,
            return_intermediate_states=True,
            chunk_size=chunk_size,
        )
    if state_v_first:
        state, chunks = state.transpose(2, 3), chunks.transpose(3, 4)
    assert chunks.dtype == x["k"].dtype
    run = naive(DOORS[door][0])
    expected, states = [], []
    for n, (begin, end) in enumerate(itertools.pairwise(offsets)):
        rows = h0[n : n + 1] if varlen else h0
        S = rows
        for at in range(begin, end, chunk_size):
            expected.append(S)
            stop = min(at + chunk_size, end)
            piece = {name: a[:, at:stop].float() for name, a in x.items()}
            _, S = run(**piece, h0=S)
        states.append(S)
    expected = torch.cat(expected)[None] if varlen else torch.stack(expected, 1)
    assert chunks.shape == expected.shape
    assert_close(chunks, expected, tolerance(chunks.dtype), "intermediate states")
    assert_close(state, torch.cat(states), tolerance(chunks.dtype, "state"), "final_state")
