# SPDX-License-Identifier: Apache-2.0
"""The native doors: every argument of the library, keyword-only. Orders arguments and allocates outputs, no more.

What is chosen, checked and planned is the library's; see bindings/ffi.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import _native
from ._frameworks import Array, dtype_name, float_dtype, framework_of
from ._problem import LAYOUT, STATE_DTYPE, flags_of
from .op import DTYPES, STATE_LAYOUTS, Op

# ---- what the three passes share ----------------------------------------------------------------------------------

INPUTS = (
    "q k v g beta erase write a_log dt_bias initial_state read_slots has_initial_state cu_seqlens"
).split()


def _scale(scale: float | None) -> float:
    """The library's spelling, in which 0 is the default."""
    if scale is None:
        return 0.0
    if scale == 0:
        raise NotImplementedError(
            "scale is 0, which makes every output 0; expected another number, or None for K**-0.5"
        )
    return float(scale)


def state_shape(q: Array, v: Array, cu_seqlens: Array | None, value_key: bool) -> tuple[int, ...]:
    sequences = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    K, V = q.shape[-1], v.shape[-1]
    return (sequences, v.shape[2], *((V, K) if value_key else (K, V)))


@dataclass
class _Call:
    """The arguments of one call, still under their names."""

    framework: Any
    inputs: dict[str, Array]
    flags: list[int]
    numbers: list[Any]  # scale, lower_bound, first_slot, implementation
    out: Array | None
    final_state: Array | None

    def shared(self) -> list[Any]:
        return [*self.inputs.values(), *self.flags, *self.numbers]


def _prepare(
    *,
    op: str | Op,
    inputs: dict[str, Array],
    gate_input: str | None,
    beta_input: str | None,
    lower_bound: float | None,
    scale: float | None,
    qk_l2norm: bool,
    state_layout: str | None,
    pool: Array | None,
    final_state: Array | None,
    state_dtype: Any,
    first_slot: int,
    checkpoint_interval: int,
    batch_invariant: bool,
    sm_limit: int,
    implementation: str | None,
    needs_layout: bool,
    out: Array | None,
) -> _Call:
    q = inputs["q"]
    framework = framework_of(q)
    if pool is not None:
        if inputs["initial_state"] is not None or final_state is not None:
            raise ValueError(
                "pool came with initial_state or final_state; expected pool alone, which is both"
            )
        inputs["initial_state"] = final_state = pool
    for name in "qkv":
        if inputs[name] is None:
            raise ValueError(f"linattn: {name} is absent; expected a [B, T, heads, dim] tensor")
    for name, x in inputs.items():
        inputs[name] = framework.input("A_log" if name == "a_log" else name, x)
    out = framework.output("out", out)
    final_state = framework.output("final_state", final_state)

    given = inputs["initial_state"] if inputs["initial_state"] is not None else final_state
    if state_dtype is not None:
        state_dtype = float_dtype("state_dtype", state_dtype)
    else:
        state_dtype = (
            "float32" if given is None else float_dtype("the state's dtype", dtype_name(given))
        )
    needs_layout = needs_layout or given is not None
    if state_layout is None and not needs_layout:
        state_layout = "key_value"  # no state comes or goes
    flags = flags_of(
        op,
        gate_input,
        beta_input,
        qk_l2norm,
        state_layout,
        state_dtype,
        checkpoint_interval,
        False,
        batch_invariant,
        sm_limit,
    )
    bound = 0.0 if lower_bound is None else float(lower_bound)
    numbers = [_scale(scale), bound, int(first_slot), implementation or ""]
    return _Call(framework, inputs, flags, numbers, out, final_state)


def _allocate(call: _Call, output_final_state: bool) -> None:
    """Outputs that the caller did not bring, unless shapes are so wrong that the binding will say so."""
    q, v, cu_seqlens = (call.inputs[name] for name in ("q", "v", "cu_seqlens"))
    if len(q.shape) != 4 or len(v.shape) != 4:
        return
    if cu_seqlens is not None and len(cu_seqlens.shape) != 1:
        return
    if call.out is None:
        call.out = call.framework.empty(tuple(v.shape), float_dtype("q", q.dtype), q)
    if output_final_state and call.final_state is None:
        value_key = call.flags[LAYOUT] == STATE_LAYOUTS["value_key"]
        dtype = next(name for name, code in DTYPES.items() if code == call.flags[STATE_DTYPE])
        call.final_state = call.framework.empty(state_shape(q, v, cu_seqlens, value_key), dtype, q)


def _plain(call: _Call) -> bool:
    """NumPy arrays and eager torch tensors go straight to the library; tracers need a torch op to see."""
    if call.framework.name == "numpy":
        return True
    torch = call.framework.torch
    if torch.compiler.is_compiling():
        return False
    return all(
        x is None or type(x) is torch.Tensor or type(x) is torch.nn.Parameter
        for x in call.inputs.values()
    )


def _wants_gradient(call: _Call) -> bool:
    if call.framework.name == "numpy" or not call.framework.torch.is_grad_enabled():
        return False
    return any(x is not None and x.requires_grad for x in call.inputs.values())


# ---- the doors ----------------------------------------------------------------------------------------------------


def forward(
    *,
    op: str | Op,
    q: Array,
    k: Array,
    v: Array,
    g: Array | None = None,
    beta: Array | None = None,
    erase: Array | None = None,
    write: Array | None = None,
    A_log: Array | None = None,
    dt_bias: Array | None = None,
    gate_input: str | None = None,
    beta_input: str | None = None,
    lower_bound: float | None = None,
    scale: float | None = None,
    qk_l2norm: bool = False,
    state_layout: str | None = None,
    initial_state: Array | None = None,
    has_initial_state: Array | None = None,
    read_slots: Array | None = None,
    write_slots: Array | None = None,
    first_slot: int = 0,
    pool: Array | None = None,
    final_state: Array | None = None,
    output_final_state: bool = False,
    state_dtype: Any = None,
    cu_seqlens: Array | None = None,
    start_positions: Array | None = None,
    checkpoints: Array | None = None,
    checkpoint_offsets: Array | None = None,
    checkpoint_positions: Array | None = None,
    checkpoint_slots: Array | None = None,
    checkpoint_interval: int = 64,
    transition: Array | None = None,
    out: Array | None = None,
    batch_invariant: bool = False,
    sm_limit: int = 0,
    implementation: str | None = None,
    backward_implementation: str | None = None,
) -> tuple[Array, Array | None]:
    """A whole call of one recurrence over all tokens: prefill or training.

    Tensors are torch tensors or NumPy arrays (float16, float32; torch also bfloat16), all of one framework and device,
    of any strides as long as the last axis is dense. B batch, T tokens, H query and key heads, HV value heads (a
    multiple of H), K and V dims, N sequences: B, or the intervals of `cu_seqlens` (then B is 1).

    Args:
        op: "kda", "gdn", "gla", "lightning", "simple_gla", "retention", "delta_rule", "linear_attention", "gdn2",
            or an `Op`.
        q, k: [B, T, H, K].  v: [B, T, HV, V].
        g: [B, T, HV, K] (channel gates), [B, T, HV] (head gates) or [HV] (constants).
        gate_input: "log_decay" (g is the natural log of the decay), "decay", "softplus" (-exp(A_log)
            softplus(g + dt_bias)) or "bounded" (lower_bound sigmoid(exp(A_log)(g + dt_bias))). Required with a gate.
        beta: [B, T, HV], for a delta update.  erase, write: [B, T, HV, K], [B, T, HV, V], for gdn2.
        beta_input: "one" (no tensor), "value", "logit" (sigmoid) or "twice_logit". Required with those.
        A_log: float32 [HV].  dt_bias: float32 [HV], channel gates [HV, K].
        scale: on q; None: K**-0.5.  qk_l2norm: q and k over sqrt(sum of squares + 1e-6).
        state_layout: "key_value" or "value_key", the last two axes of every state. Required when a state is involved.
        initial_state: [N, HV, ., .], or with `read_slots` a pool [slots, HV, ., .]. None: zero.
        has_initial_state: bool [N]; False starts from zero whatever the slot holds.
        read_slots, write_slots: int32 [N] into the pools; ids below `first_slot` are null.
        pool: one tensor that is read and written, instead of initial_state and final_state.
        final_state: where final states go; or output_final_state=True to get a new tensor of `state_dtype` (None: as
            the initial state, else float32).
        cu_seqlens: int32 or int64 [N + 1], first 0, last at most T; rows past it are zero.
        start_positions: int32 [N], tokens that the initial states already hold.
        checkpoints, checkpoint_offsets, checkpoint_positions, checkpoint_slots: states inside the sequences, by slot;
            positions are multiples of checkpoint_interval (include/linattn/c.h).
        transition: float32 [N, HV, K, K] that receives M of `final = M initial + final from zero`.
        out: [B, T, HV, V]; None: a new tensor.
        implementation, backward_implementation: a row by name (see `implementations`); None: the best that takes it.

    Returns:
        (out, final_state), final_state None unless asked for. Differentiable in torch when nothing is written into
        tensors of the caller.

    Raises:
        ValueError, NotImplementedError, RuntimeError: a sentence that names the argument, what came, what was expected.
    """
    call = _prepare(
        op=op,
        inputs={
            "q": q,
            "k": k,
            "v": v,
            "g": g,
            "beta": beta,
            "erase": erase,
            "write": write,
            "a_log": A_log,
            "dt_bias": dt_bias,
            "initial_state": initial_state,
            "read_slots": read_slots,
            "has_initial_state": has_initial_state,
            "cu_seqlens": cu_seqlens,
        },
        gate_input=gate_input,
        beta_input=beta_input,
        lower_bound=lower_bound,
        scale=scale,
        qk_l2norm=qk_l2norm,
        state_layout=state_layout,
        pool=pool,
        final_state=final_state,
        state_dtype=state_dtype,
        first_slot=first_slot,
        checkpoint_interval=checkpoint_interval,
        batch_invariant=batch_invariant,
        sm_limit=sm_limit,
        implementation=implementation,
        needs_layout=checkpoints is not None or output_final_state,
        out=out,
    )
    written = {
        "out": out,
        "pool": pool,
        "final_state": final_state,
        "write_slots": write_slots,
        "read_slots": read_slots,
        "start_positions": start_positions,
        "checkpoints": checkpoints,
        "transition": transition,
    }
    wants_gradient = _wants_gradient(call)
    plain = _plain(call)
    if wants_gradient or (not plain and all(x is None for x in written.values())):
        for name, x in written.items():
            if x is not None:
                raise NotImplementedError(
                    f"{name} is given and an input requires a gradient; expected one of the two "
                    "(torch.no_grad() for serving)"
                )
        from . import _ops

        return _ops.forward(call, output_final_state, wants_gradient, backward_implementation or "")

    _allocate(call, output_final_state)
    check = call.framework.input
    outputs = [
        call.out,
        call.final_state,
        check("write_slots", write_slots),
        check("start_positions", start_positions),
        call.framework.output("checkpoints", checkpoints),
        check("checkpoint_offsets", checkpoint_offsets),
        check("checkpoint_positions", checkpoint_positions),
        check("checkpoint_slots", checkpoint_slots),
        call.framework.output("transition", transition),
    ]
    if plain:
        _native.forward(*call.shared(), *outputs, None)
    else:
        from . import _ops

        _ops.forward_into(call, outputs)
    return call.out, call.final_state


def step(
    *,
    op: str | Op,
    q: Array,
    k: Array,
    v: Array,
    g: Array | None = None,
    beta: Array | None = None,
    erase: Array | None = None,
    write: Array | None = None,
    A_log: Array | None = None,
    dt_bias: Array | None = None,
    gate_input: str | None = None,
    beta_input: str | None = None,
    lower_bound: float | None = None,
    scale: float | None = None,
    qk_l2norm: bool = False,
    state_layout: str | None = None,
    initial_state: Array | None = None,
    has_initial_state: Array | None = None,
    read_slots: Array | None = None,
    write_slots: Array | None = None,
    first_slot: int = 0,
    accepted: Array | None = None,
    parents: Array | None = None,
    pool: Array | None = None,
    final_state: Array | None = None,
    output_final_state: bool = False,
    state_dtype: Any = None,
    cu_seqlens: Array | None = None,
    out: Array | None = None,
    batch_invariant: bool = False,
    sm_limit: int = 0,
    implementation: str | None = None,
) -> tuple[Array, Array | None]:
    """One or a few tokens per sequence from a state: decode, and verification of drafts. Arguments as `forward`, and

        read_slots: [N], or [N, columns] with `accepted`: sequence n starts from column accepted[n] - 1.
        write_slots: [N], the slot of the last token's state; or [N, columns]: the state after token t goes to column t.
        accepted: int32 [N].  parents: int32 [B * T], a draft tree (-1: the initial state; None: a chain).

    `pool=state` decodes in place. Nothing is differentiable.
    """

    def split(slots: Array | None) -> tuple[Array | None, Array | None]:
        return (None, slots) if slots is not None and len(slots.shape) == 2 else (slots, None)

    read_slots, read_table = split(read_slots)
    write_slots, write_table = split(write_slots)
    call = _prepare(
        op=op,
        inputs={
            "q": q,
            "k": k,
            "v": v,
            "g": g,
            "beta": beta,
            "erase": erase,
            "write": write,
            "a_log": A_log,
            "dt_bias": dt_bias,
            "initial_state": initial_state,
            "read_slots": read_slots,
            "has_initial_state": has_initial_state,
            "cu_seqlens": cu_seqlens,
        },
        gate_input=gate_input,
        beta_input=beta_input,
        lower_bound=lower_bound,
        scale=scale,
        qk_l2norm=qk_l2norm,
        state_layout=state_layout,
        pool=pool,
        final_state=final_state,
        state_dtype=state_dtype,
        first_slot=first_slot,
        checkpoint_interval=64,
        batch_invariant=batch_invariant,
        sm_limit=sm_limit,
        implementation=implementation,
        needs_layout=True,
        out=out,
    )
    if _wants_gradient(call):
        raise NotImplementedError(
            "an input requires a gradient; step has none: use forward, or torch.no_grad()"
        )
    _allocate(call, output_final_state)
    check = call.framework.input
    outputs = [
        call.out,
        call.final_state,
        check("write_slots", write_slots),
        check("read_slots", read_table),
        check("write_slots", write_table),
        check("accepted", accepted),
        check("parents", parents),
    ]
    if _plain(call):
        _native.step(*call.shared(), *outputs)
    else:
        from . import _ops

        _ops.step_into(call, outputs)
    return call.out, call.final_state
