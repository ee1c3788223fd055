# SPDX-License-Identifier: Apache-2.0
"""What bench_peers.py compares: the cases with their inputs, and one class per library that says how it is called.

Each library is called as its own benchmark calls it, with everything that a model needs done inside the call: gate
activation, l2norm, sigmoid of beta, states in and out. docs/benchmarks.md has the rules.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

LOWER_BOUND = -5.0
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}

# FLA hands calls over to FlashKDA, FlashQLA and others when they are installed; here FLA is FLA's own kernels.
os.environ["FLA_DISABLE_BACKEND_DISPATCH"] = "1"
# What autotuning found is kept in Triton's cache, so that a second run need not search again.
os.environ.setdefault("TRITON_CACHE_AUTOTUNING", "1")


class Declines(Exception):
    """A library does not take a case; the text says why."""


@dataclass(frozen=True)
class Case:
    """A case as `linattn-bench --list --json` describes it."""

    case: str
    op: str
    # `pass` is a keyword of Python.
    kind: str
    gates: str
    device: str
    lengths: tuple[int, ...]
    heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    layout: str
    drafts: str
    scattered: int
    fused: int
    dtype: str
    state_dtype: str
    floor_bytes: int

    @classmethod
    def read(cls, fields: dict[str, Any]) -> Case:
        fields = dict(fields)
        return cls(kind=fields.pop("pass"), lengths=tuple(fields.pop("lengths")), **fields)

    @property
    def step(self) -> bool:
        return self.kind == "step"

    @property
    def plain(self) -> bool:
        """Dense states [V, K] and a new one for each sequence; the rest is linattn-bench's alone."""
        special = self.scattered or self.fused
        return self.layout == "value_key" and self.drafts == "none" and not special

    @property
    def tokens(self) -> int:
        return sum(self.lengths)

    @property
    def channel_gate(self) -> bool:
        return self.op in ("kda", "gla")

    @property
    def delta(self) -> bool:
        return self.op in ("kda", "gdn")

    @property
    def activation(self) -> str | None:
        """How g becomes the log decay: "bounded", "softplus", or None, when it is one."""
        if self.gates == "unbounded":
            return "softplus"
        return "bounded" if self.op == "kda" and self.gates == "forget" else None


Tensors = dict[str, Any]


def make_inputs(case: Case, seed: int, device: str) -> Tensors:
    """Inputs by the rules of bench/call.cpp, from another generator: [B, T, heads, dim], states [V, K]."""
    import torch

    random = torch.Generator(device).manual_seed(seed)
    dtype = getattr(torch, DTYPES[case.dtype])
    batch = len(case.lengths) if case.step else 1
    rows = (batch, case.tokens // batch)
    H, HV, K, V = case.heads, case.value_heads, case.key_dim, case.value_dim

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random, device=device)

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=random, device=device)

    x: Tensors = {
        "q": normal(*rows, H, K).to(dtype),
        "k": normal(*rows, H, K).to(dtype),
        "v": normal(*rows, HV, V).to(dtype),
        "state": (0.1 * normal(len(case.lengths), HV, V, K)).to(
            getattr(torch, DTYPES[case.state_dtype])
        ),
        "beta": normal(*rows, HV).to(dtype) if case.delta else None,
        "A_log": uniform(HV) if case.activation else None,
        "dt_bias": uniform(HV, K) if case.activation else None,
    }
    shape = (*rows, HV, K) if case.channel_gate else (*rows, HV)
    if case.op == "lightning":
        x["g"] = -8 / HV * torch.arange(HV, dtype=torch.float32, device=device)
    elif case.activation:
        x["g"] = normal(*shape)
    elif case.gates == "forget":
        x["g"] = -uniform(*shape)
    elif case.channel_gate:  # twice the mean decay of a channel, log-uniform in 0.001 .. 0.1
        x["g"] = -2 * uniform(*shape) * 10 ** (2 * uniform(HV, K) - 3)
    else:
        x["g"] = -0.02 * uniform(*shape)
    if case.channel_gate:
        x["g"] = x["g"].to(dtype)
    offsets = torch.tensor([0, *case.lengths]).cumsum(0).to(device)
    packed = len(case.lengths) > 1 and not case.step
    x["cu_seqlens"] = offsets if packed else None  # int64, as FLA's callers have it
    x["cu_seqlens_int32"] = offsets.int() if packed else None
    return x


Call = Callable[[], tuple[Any, Any]]


class Peer:
    """A library. `prepare` returns a call without arguments that gives (out, final state [N, HV, V, K])."""

    name: str
    module: str  # what must be importable
    package: str  # whose version is reported

    def absent(self) -> str | None:
        """Why it cannot be used here; None: it can."""
        try:
            importlib.import_module(self.module)
        except Exception as error:  # a peer may fail in any way while it is imported
            return f"{type(error).__name__}: {error}".splitlines()[0]
        return None

    def version(self) -> str:
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version(self.package)
        except PackageNotFoundError:
            return "unknown"

    def prepare(self, case: Case, x: Tensors) -> Call:
        raise NotImplementedError

    def only(self, condition: bool, what: str) -> None:
        if not condition:
            raise Declines(f"only {what}")


def native_arguments(case: Case, x: Tensors) -> dict[str, Any]:
    """What linattn.forward and linattn.step both take."""
    return {
        "op": case.op,
        **{name: x[name] for name in ("q", "k", "v", "g", "beta", "A_log", "dt_bias")},
        "gate_input": case.activation or "log_decay",
        "beta_input": "logit" if case.delta else None,
        "lower_bound": LOWER_BOUND if case.activation == "bounded" else None,
        "qk_l2norm": case.delta,
        "state_layout": "value_key",
    }


class Linattn(Peer):
    name, module, package = "linattn", "linattn", "linattn"

    def __init__(self, implementation: str | None = None):
        self.implementation = implementation

    def version(self) -> str:
        return importlib.import_module("linattn").__version__

    def prepare(self, case: Case, x: Tensors) -> Call:
        import linattn

        if self.implementation not in (None, *linattn.implementations(case.kind)):
            raise Declines(f"{self.implementation} has no {case.kind}")
        arguments = native_arguments(case, x) | {"implementation": self.implementation}
        if case.step:
            state = x["state"].clone()
            return lambda: linattn.step(**arguments, pool=state)
        arguments |= {"initial_state": x["state"], "cu_seqlens": x["cu_seqlens_int32"]}
        return lambda: linattn.forward(**arguments, output_final_state=True)


class Fla(Peer):
    name, module, package = "FLA", "fla", "fla-core"

    def prepare(self, case: Case, x: Tensors) -> Call:
        import fla.ops as ops

        arguments = {name: x[name] for name in ("q", "k", "v", "cu_seqlens")}
        arguments["output_final_state"] = True
        if case.op == "lightning":
            state = x["state"].mT.contiguous()  # this door has [K, V] only
            arguments |= {"layer_idx": 0, "num_layers": 1}

            def lightning():
                out, final = ops.lightning_attn.chunk_lightning_attn(
                    **arguments, initial_state=state
                )
                return out, final.mT

            return lightning
        arguments |= {"g": x["g"], "initial_state": x["state"], "state_v_first": True}
        if case.op == "gla":
            return lambda: ops.gla.chunk_gla(**arguments)
        arguments |= {
            "beta": x["beta"],
            "use_qk_l2norm_in_kernel": True,
            "use_beta_sigmoid_in_kernel": True,
        }
        if case.op == "gdn":
            door = "fused_recurrent" if case.step else "chunk"
            run = getattr(ops.gated_delta_rule, f"{door}_gated_delta_rule")
            return lambda: run(**arguments)
        if case.activation:
            arguments |= {
                "use_gate_in_kernel": True,
                "A_log": x["A_log"],
                "dt_bias": x["dt_bias"].flatten(),
                "lower_bound": LOWER_BOUND if case.activation == "bounded" else None,
            }
        if case.step:
            return lambda: ops.kda.fused_recurrent_kda(**arguments)
        # The fast path, for gates that are bounded.
        arguments["safe_gate"] = case.activation != "softplus"
        return lambda: ops.kda.chunk_kda(**arguments)


class Cudnn(Peer):
    """cuDNN's CUDA engine for Hopper. Its gate is fp32, made outside the call."""

    name, module, package = "cuDNN", "cudnn.linear_attention.ops", "nvidia-cudnn-frontend"

    def prepare(self, case: Case, x: Tensors) -> Call:
        import torch
        from cudnn.linear_attention.ops import kimi_delta_attention

        self.only(case.op == "kda" and not case.step, "KDA forward")
        self.only(case.activation != "softplus", "bounded gates")
        offsets = x["cu_seqlens_int32"]
        if offsets is None:
            offsets = torch.tensor([0, case.tokens], dtype=torch.int32, device=x["q"].device)
        arguments = {name: x[name][0] for name in ("q", "k", "v")}
        arguments |= {
            "g": x["g"][0].float(),
            "beta": x["beta"][0].float(),
            "cu_seqlens": offsets,
            "initial_state": x["state"],
            "output_final_state": True,
            "use_qk_l2norm_in_kernel": True,
            "use_beta_sigmoid_in_kernel": True,
            "plan_name": "kda_hopper_cuda",
        }
        if case.activation == "bounded":
            arguments |= {
                "safe_gate": True,
                "gate_lower_bound": LOWER_BOUND,
                "a_log": x["A_log"],
                "dt_bias": x["dt_bias"],
            }

        def run():
            out, state = kimi_delta_attention(**arguments)
            return out[None], state

        return run


class FlashQla(Peer):
    name, module, package = "FlashQLA", "flash_qla", "flash-qla"

    def prepare(self, case: Case, x: Tensors) -> Call:
        from flash_qla import chunk_gated_delta_rule

        self.only(case.op == "gdn" and not case.step, "GDN forward")
        arguments = {name: x[name] for name in ("q", "k", "v", "g", "cu_seqlens")}
        arguments |= {
            "initial_state": x["state"],
            "output_final_state": True,
            "use_qk_l2norm_in_kernel": True,
            "state_v_first": True,
        }
        beta = x["beta"]
        return lambda: chunk_gated_delta_rule(**arguments, beta=beta.sigmoid())


class BoundedKda(Peer):
    """What FlashKDA's and cuLA's kernels of KDA have in common."""

    def raw_kda(self, case: Case, x: Tensors) -> Tensors:
        self.only(case.op == "kda" and not case.step, "KDA forward")
        self.only(case.activation == "bounded", "gates that its kernel activates and bounds")
        self.only(case.heads == case.value_heads, "as many value heads as heads")
        return {name: x[name] for name in ("q", "k", "v", "g", "beta", "A_log", "dt_bias")}


class FlashKda(BoundedKda):
    name, module, package = "FlashKDA", "flash_kda", "flash-kda"

    def prepare(self, case: Case, x: Tensors) -> Call:
        import flash_kda
        import torch

        arguments = self.raw_kda(case, x)
        arguments |= {
            "scale": case.key_dim**-0.5,
            "lower_bound": LOWER_BOUND,
            "initial_state": x["state"],
            "cu_seqlens": x["cu_seqlens"],
        }

        def run():
            out, state = torch.empty_like(x["v"]), torch.empty_like(x["state"])
            flash_kda.fwd(**arguments, out=out, final_state=state)
            return out, state

        return run


class Cula(BoundedKda):
    name, module, package = "cuLA", "cula.kda.flashkda", "cuda-linear-attention"

    def prepare(self, case: Case, x: Tensors) -> Call:
        from cula.kda.flashkda import cula_kda_prefill

        arguments = self.raw_kda(case, x)
        arguments |= {
            "initial_state": x["state"],
            "output_final_state": True,
            "use_qk_l2norm_in_kernel": True,
            "use_beta_sigmoid_in_kernel": True,
            "use_gate_in_kernel": True,
            "safe_gate": True,
            "lower_bound": LOWER_BOUND,
            "cu_seqlens": x["cu_seqlens_int32"],
            "use_intracard_cp": "auto",
        }
        return lambda: cula_kda_prefill(**arguments)


def all_peers(implementation: str | None) -> list[Peer]:
    """linattn first: the others are compared with it."""
    return [Linattn(implementation), Fla(), Cudnn(), FlashQla(), FlashKda(), Cula()]
