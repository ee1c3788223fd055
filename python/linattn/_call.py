# SPDX-License-Identifier: Apache-2.0
"""The native doors: every argument of the library, keyword-only. Orders arguments and allocates outputs, no more.

What is chosen, checked and planned is the library's; bindings/inputs.h has the order of the arguments.
"""

from __future__ import annotations

from typing import Any

from . import _native
from ._frameworks import Array, dtype_name, framework_of, new_state
from ._fused import NOTHING, Conv, Norm, fuse
from .op import Op, as_op, float_dtype, problem_code

# ---- what the passes share ----------------------------------------------------------------------------------------

# In the library's order. What `rest` and `counts` hold may be left out.
_ARRAYS = "q k v g beta A_log dt_bias initial_state cu_seqlens out final_state".split()
_REST = "erase write read_slots has_initial_state write_slots".split()
_FORWARD_REST = (
    "start_positions checkpoints checkpoint_offsets checkpoint_positions checkpoint_slots transition saved"
).split()
_CONV_STATES = "conv_state conv_state_k conv_state_v".split()
_STEP_REST = [
    *"accepted parents replay counts picks conv_weight conv_weight_k conv_weight_v".split(),
    *"conv_bias conv_bias_k conv_bias_v".split(),
    *_CONV_STATES,
    *"conv_read_slots conv_write_slots conv_accepted z norm_weight".split(),
]
_COUNTS = (0, 64, 0, None)  # first_slot, checkpoint_interval, sm_limit, implementation
_WRITTEN = {"out", "final_state", "checkpoints", "transition", "replay", *_CONV_STATES}


def _scale(scale: float | None) -> float:
    """The library's spelling, in which 0 is the default."""
    if scale is None:
        return 0.0
    if scale == 0:
        raise NotImplementedError(
            "scale is 0, which makes every output 0; expected another number, or None for K**-0.5"
        )
    return float(scale)


def _only_pool(initial_state: Array | None, final_state: Array | None) -> None:
    if initial_state is not None or final_state is not None:
        raise ValueError(
            "pool came with initial_state or final_state; expected pool alone, which is both"
        )


def run_long(
    which: str,
    numbers: tuple[int, float, float],
    inputs: tuple,
    out: Array | None,
    final_state: Array | None,
    output_final_state: bool,
    rest: tuple,
    counts: tuple,
    backward_implementation: str | None = None,
) -> tuple[Array, Array | None]:
    """Where a framework's `run` does not go: libraries that lend their arrays, and ops that PyTorch has to see."""
    names = [*_ARRAYS, *_REST, *(_FORWARD_REST if which == "forward" else _STEP_REST)]
    named = dict.fromkeys(names) | dict(zip(names, (*inputs, out, final_state, *rest)))
    # A step's have norm_epsilon before them.
    counts = counts or (_COUNTS if which == "forward" else (0.0, *_COUNTS))
    q, v = named["q"], named["v"]
    framework = framework_of(q)
    for name in "qkv":
        if named[name] is None:
            raise ValueError(f"linattn: {name} is absent; expected a [B, T, heads, dim] tensor")
    for name, x in named.items():
        check = framework.output if name in _WRITTEN else framework.input
        check(name, x)
    if framework.name == "torch":
        from . import _ops

        if _ops.is_functional(which, named):
            return _ops.forward(numbers, named, counts, output_final_state, backward_implementation)
    if named["out"] is None and len(v.shape) == 4:
        named["out"] = framework.empty(v.shape, float_dtype("q", dtype_name(q)), q)
    if output_final_state and named["final_state"] is None:
        named["final_state"] = new_state(framework.empty, numbers[0], inputs)
    framework.call(which, q, [*numbers, *named.values(), *counts])
    return named["out"], named["final_state"]


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

    Tensors are torch tensors, NumPy, CuPy or eager JAX arrays (float16, float32, bfloat16 where there is one), all of
    one framework and device, of any strides as long as the last axis is dense. JAX arrays cannot be written (no pool,
    no out), and with them a call waits for its result. B batch, T tokens, H query and key heads, HV value heads (a
    multiple of H), K and V dims, N sequences: B, or the intervals of `cu_seqlens` (then B is 1).

    Args:
        op: "kda", "gdn", "gla", "lightning", "simple_gla", "retention", "delta_rule", "linear_attention", "gdn2",
            "comba", or an `Op`.
        q, k: [B, T, H, K].  v: [B, T, HV, V].
        g: [B, T, HV, K] (channel gates), [B, T, HV] (head gates) or [HV] (constants).
        gate_input: "log_decay" (g is the natural log of the decay), "decay", "softplus" (-exp(A_log)
            softplus(g + dt_bias)) or "bounded" (lower_bound sigmoid(exp(A_log)(g + dt_bias))). Required with a gate.
        beta: [B, T, HV], for a delta update.  erase, write: [B, T, HV, K], [B, T, HV, V], for gdn2 and comba.
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
    if pool is not None:
        _only_pool(initial_state, final_state)
        initial_state = final_state = pool
    if (
        state_layout is initial_state is final_state is checkpoints is None
        and not output_final_state
    ):
        state_layout = "key_value"  # no state comes or goes
    numbers = (
        problem_code(
            op, gate_input, beta_input, qk_l2norm, state_layout, state_dtype, batch_invariant
        ),
        _scale(scale),
        0.0 if lower_bound is None else float(lower_bound),
    )
    rest = counts = ()
    if not (
        erase is write is read_slots is has_initial_state is write_slots is start_positions is None
        and checkpoints is checkpoint_offsets is checkpoint_positions is checkpoint_slots is None
        and transition is implementation is None
        and first_slot == sm_limit == 0
        and checkpoint_interval == 64
    ):
        rest = (
            erase,
            write,
            read_slots,
            has_initial_state,
            write_slots,
            start_positions,
            checkpoints,
            checkpoint_offsets,
            checkpoint_positions,
            checkpoint_slots,
            transition,
            None,  # saved
        )
        counts = (int(first_slot), int(checkpoint_interval), int(sm_limit), implementation)
    inputs = (q, k, v, g, beta, A_log, dt_bias, initial_state, cu_seqlens)
    call = (numbers, inputs, out, final_state, output_final_state, rest, counts)
    return framework_of(q).run(_native.forward, *call) or run_long(
        "forward", *call, backward_implementation
    )


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
    replay: Array | None = None,
    counts: Array | None = None,
    picks: Array | None = None,
    conv: Conv | None = None,
    norm: Norm | None = None,
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
        replay: float32 [replay_size(...)], written: what `commit` needs to fold these tokens into the states later.
        counts: int32 [N]: only so many tokens of each sequence are taken; the others' rows are zero. None: all.
        picks: int32 [N, columns]: which tokens of the sequence those are, in order, each at most once. None: the first.
        conv: a `Conv`: q, k and v go through a causal convolution first.  norm: a `Norm` of the output. Both in the
            one launch; then a sequence has at most 8 tokens, and there are no parents and picks.

    `pool=state` decodes in place. Nothing is differentiable.
    """

    if pool is not None:
        _only_pool(initial_state, final_state)
        initial_state = final_state = pool
    code = problem_code(
        op, gate_input, beta_input, qk_l2norm, state_layout, state_dtype, batch_invariant
    )
    fused, epsilon = NOTHING, 0.0
    if conv is not None or norm is not None:
        words, fused, epsilon = fuse(conv, norm)
        code |= words
    numbers = (code, _scale(scale), 0.0 if lower_bound is None else float(lower_bound))
    rest = last = ()
    if not (
        erase is write is read_slots is has_initial_state is write_slots is accepted is None
        and parents is replay is counts is picks is implementation is conv is norm is None
        and first_slot == sm_limit == 0
    ):
        rest = (
            *(erase, write, read_slots, has_initial_state, write_slots),
            *(accepted, parents, replay, counts, picks),
            *fused,
        )
        last = (epsilon, int(first_slot), 64, int(sm_limit), implementation)
    inputs = (q, k, v, g, beta, A_log, dt_bias, initial_state, cu_seqlens)
    call = (numbers, inputs, out, final_state, output_final_state, rest, last)
    return framework_of(q).run(_native.step, *call) or run_long("step", *call)


def replay_size(
    op: str | Op, tokens: int, heads: int, value_heads: int, key_dim: int, value_dim: int
) -> int:
    """Elements of a record of so many tokens: the float32 tensor that `step` writes as `replay` and `commit` reads.

    It holds keys [T, H, K], what each token writes along its key [T, HV, V], and log decays, [T, HV, K] or [T, HV] by
    the op's gate (none without one).
    """
    gate = {"none": 0, "channel": key_dim}.get(as_op(op).gate, 1)
    return tokens * (heads * key_dim + value_heads * (value_dim + gate))


def commit(
    *,
    op: str | Op,
    heads: int,
    replay: Array,
    pool: Array,
    state_layout: str,
    counts: Array,
    picks: Array | None = None,
    read_slots: Array | None = None,
    write_slots: Array | None = None,
    has_initial_state: Array | None = None,
    first_slot: int = 0,
    cu_seqlens: Array | None = None,
    pools: Array | None = None,
    sm_limit: int = 0,
    implementation: str | None = None,
) -> None:
    """Folds the accepted tokens of a draft into the states: those that `step` gave, or would have given, after them.

    op, heads, state_layout, cu_seqlens: as in the draft's `step`.
    replay: its record, float32 [replay_size(...)]; of many layers [layers, replay_size(...)].
    pool: [slots, HV, K, V] (or [.., V, K]), read and written, as `step(pool=...)`; slots as there.
    counts: int32 [N], accepted tokens of each sequence, 0 to its length (clamped).
    picks: int32 [N, columns], the accepted path of a draft tree: its tokens in order. None: the first ones.
    pools: int64 [layers], on the device: the addresses of the layers' pools, all like `pool` and as well aligned
        (`pool` is one of them). One launch serves all layers. Keep them alive; nothing here does. Not under
        torch.compile, which cannot see what an address stands for.
    """
    framework = framework_of(replay)
    arrays = {
        "replay": replay,
        "pool": pool,
        "counts": counts,
        "read_slots": read_slots,
        "write_slots": write_slots,
        "has_initial_state": has_initial_state,
        "picks": picks,
        "cu_seqlens": cu_seqlens,
        "pools": pools,
    }
    for name, x in arrays.items():
        (framework.output if name == "pool" else framework.input)(name, x)
    op = as_op(op)
    gate_input = None if op.gate == "none" else "log_decay"
    beta_input = None if op.update == "add" else "value"
    code = problem_code(op, gate_input, beta_input, False, state_layout)
    numbers = (int(heads), int(first_slot), int(sm_limit), implementation)
    framework.commit(replay, [code, *arrays.values(), *numbers], pools)
