# SPDX-License-Identifier: Apache-2.0
"""Mistakes: each a sentence that names the argument, what came and what was expected, before anything runs."""

import types

import linattn
import pytest
import torch
from linattn import _compat

H, HV, K, V, T = 2, 4, 16, 24, 8
KDA = {"op": "kda", "gate_input": "log_decay", "beta_input": "value", "state_layout": "key_value"}


def native(**changes):
    x = dict(
        q=torch.ones(2, T, H, K),
        k=torch.ones(2, T, H, K),
        v=torch.ones(2, T, HV, V),
        g=torch.zeros(2, T, HV, K),
        beta=torch.ones(2, T, HV),
        **KDA,
    )
    x.update(changes)
    return {name: value for name, value in x.items() if value is not ...}


def state(n=2, *, shape=(HV, K, V), dtype=torch.float32):
    return torch.zeros(n, *shape, dtype=dtype)


MISTAKES = {
    "q with 3 axes": ({"q": torch.ones(T, H, K)}, r"q has shape \[8, 2, 16\]; expected 4 axes"),
    "k shape": (
        {"k": torch.ones(2, T, H, K + 1)},
        r"k has shape \[2, 8, 2, 17\]; expected \[2, 8, 2, 16\]",
    ),
    "v tokens": ({"v": torch.ones(2, T + 1, HV, V)}, "v has shape .* T = 8"),
    "heads": ({"v": torch.ones(2, T, 3, V)}, r"3.*2|beta|g "),
    "g shape": (
        {"g": torch.zeros(2, T, HV)},
        r"g has shape \[2, 8, 4\]; expected \[2, 8, 4, 16\]",
    ),
    "beta shape": (
        {"beta": torch.ones(2, T, H)},
        r"beta has shape .*expected \[2, 8, 4\], \[B, T, HV\]",
    ),
    "q dtype": (
        {"q": torch.ones(2, T, H, K).double()},
        "q is float64; expected bfloat16, float16",
    ),
    "k dtype": ({"k": torch.ones(2, T, H, K).half()}, "k is float16; expected float32 as q"),
    "g dtype": (
        {"g": torch.zeros(2, T, HV, K, dtype=torch.int32)},
        "g is int32; expected bfloat16",
    ),
    "absent g": ({"g": None}, "g is absent"),
    "absent beta": ({"beta": None}, "beta is absent"),
    "absent v": ({"v": None}, "v is absent"),
    "beta that op has not": (
        {"op": "gla", "beta_input": None},
        "beta is given; expected none",
    ),
    "gate_input unset": ({"gate_input": None}, "gate_input"),
    "gate_input word": (
        {"gate_input": "alpha"},
        "gate_input is 'alpha'; expected one of log_decay",
    ),
    "op word": ({"op": "mamba"}, "op is 'mamba'; expected an Op or one of kda"),
    "beta_input unset": ({"beta_input": None}, "beta_input"),
    "state_layout unset": ({"state_layout": None, "output_final_state": True}, "state_layout"),
    "A_log missing": ({"gate_input": "softplus"}, "a_log is absent"),
    "A_log shape": (
        {"gate_input": "softplus", "A_log": torch.zeros(H)},
        r"A_log has shape \[2\]; expected \[4\], \[HV\]",
    ),
    "A_log dtype": (
        {"gate_input": "softplus", "A_log": torch.zeros(HV).half()},
        "A_log is float16; expected float32",
    ),
    "dt_bias of another gate": (
        {"gate_input": "softplus", "A_log": torch.zeros(HV), "dt_bias": torch.zeros(HV)},
        r"dt_bias has shape \[4\]; expected \[4, 16\]",
    ),
    "bound missing": ({"gate_input": "bounded"}, "lower_bound is 0; expected a finite negative"),
    "bound positive": ({"gate_input": "bounded", "lower_bound": 1.0}, "lower_bound is 1; expected"),
    "bound unused": ({"lower_bound": -5.0}, "lower_bound is -5; expected 0"),
    "strided last axis": (
        {"q": torch.ones(2, T, H, 2 * K)[..., ::2]},
        "q has stride 2 on its last axis; expected 1",
    ),
    "states of the wrong count": (
        {"initial_state": state(3)},
        r"initial_state has shape \[3, 4, 16, 24\]; expected \[2, 4, 16, 24\], \[N, HV, K, V\]",
    ),
    "states of the wrong layout": (
        {"initial_state": state(shape=(HV, V, K))},
        r"initial_state has shape .*expected \[2, 4, 16, 24\]",
    ),
    "state dtype": ({"initial_state": state(dtype=torch.float64)}, "float64; expected"),
    "states of two dtypes": (
        {"initial_state": state(), "final_state": state(dtype=torch.bfloat16)},
        "final_state is bfloat16; expected float32",
    ),
    "transposed state": (
        {"initial_state": torch.zeros(2, HV, V, K).transpose(2, 3)},
        "initial_state has stride",
    ),
    "pool twice": ({"pool": state(), "initial_state": state()}, "pool came with initial_state"),
    "slots without a pool": (
        {"read_slots": torch.zeros(2, dtype=torch.int32)},
        "read_slots is given",
    ),
    "out shape": ({"out": torch.ones(2, T, HV, K)}, "out has shape"),
    "out dtype": ({"out": torch.ones(2, T, HV, V).half()}, "out is float16; expected float32"),
    "out over itself": (
        {"out": torch.ones(2, T, 1, V).expand(2, T, HV, V)},
        "out.head_stride is 0; expected at least",
    ),
    "checkpoints alone": ({"checkpoints": state(4)}, "checkpoints came without"),
    "checkpoint_slots alone": (
        {"checkpoint_slots": torch.zeros(1, dtype=torch.int32)},
        "checkpoints is absent",
    ),
    "transition shape": ({"transition": torch.ones(2, HV, K, V)}, "transition has shape"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake(mistake):
    changes, message = MISTAKES[mistake]
    with pytest.raises(ValueError, match=message):
        linattn.forward(**native(**changes))


def test_mistakes_in_step():
    for mistake in (
        "k shape",
        "g dtype",
        "states of the wrong count",
        "out dtype",
        "A_log missing",
    ):
        changes, message = MISTAKES[mistake]
        with pytest.raises(ValueError, match=message):
            linattn.step(**native(**changes))
    with pytest.raises(ValueError, match="accepted"):
        linattn.step(**native(initial_state=state(), accepted=torch.ones(2, dtype=torch.int32)))


def test_wrong_types():
    with pytest.raises(TypeError, match="q is a list; expected a torch"):
        linattn.forward(**native(q=[1.0]))
    with pytest.raises(TypeError, match=r"k is a numpy\.ndarray; expected a torch"):
        linattn.forward(**native(k=torch.ones(2, T, H, K).numpy()))
    with pytest.raises(TypeError, match="misspelt"):
        linattn.forward(**native(misspelt=1))
    with pytest.raises(TypeError):
        linattn.forward("kda")  # keyword-only


def test_meta_tensors_are_refused():
    with pytest.raises((ValueError, NotImplementedError, RuntimeError, BufferError)):
        linattn.forward(**native(q=torch.ones(2, T, H, K, device="meta")))


def test_written_tensors_have_no_gradient():
    q = torch.ones(2, T, H, K, requires_grad=True)
    with pytest.raises(NotImplementedError, match="out is given and an input requires a gradient"):
        linattn.forward(**native(q=q, out=torch.ones(2, T, HV, V)))
    with pytest.raises(NotImplementedError, match="step has none"):
        linattn.step(**native(q=q, initial_state=state()))
    with torch.no_grad():
        linattn.forward(**native(q=q, out=torch.ones(2, T, HV, V)))


# ---- the doors of FLA -----------------------------------------------------------------------------------------------

DOORS = {
    "chunk_kda": "q k v g beta",
    "fused_recurrent_kda": "q k v g beta",
    "chunk_gated_delta_rule": "q k v g beta",
    "fused_recurrent_gated_delta_rule": "q k v",
    "chunk_gla": "q k v g",
    "fused_recurrent_gla": "q k v",
    "chunk_simple_gla": "q k v",
    "fused_recurrent_simple_gla": "q k v",
    "chunk_lightning_attn": "q k v",
    "fused_recurrent_lightning_attn": "q k v",
    "chunk_delta_rule": "q k v beta",
    "fused_recurrent_delta_rule": "q k v",
    "chunk_retention": "q k v",
    "fused_recurrent_retention": "q k v",
    "chunk_linear_attn": "q k v",
    "fused_recurrent_linear_attn": "q k v",
    "chunk_gdn2": "q k v g b w",
    "fused_recurrent_gdn2": "q k v g b w",
}


def call(door, **changes):
    batch = changes.pop("batch", 2)
    dtype = changes.pop("dtype", torch.bfloat16)
    head_gate = "gated_delta" in door
    shapes = {
        "q": (H, K),
        "k": (H, K),
        "v": (H, V),
        "g": (H,) if head_gate else (H, K),
        "beta": (H,),
        "b": (H, K),
        "w": (H, V),
    }
    x = {name: torch.zeros(batch, T, *shapes[name], dtype=dtype) for name in DOORS[door].split()}
    if "lightning" in door:
        x.update(layer_idx=0, num_layers=4)
    x.update(changes)
    return getattr(linattn, door)(**x)


@pytest.mark.parametrize("door", DOORS)
def test_doors_run(door):
    assert call(door)[0].shape == (2, T, H, V)


@pytest.mark.parametrize("door", DOORS)
def test_I04_unknown_keyword(door):
    with pytest.raises(TypeError, match="misspelt"):
        call(door, misspelt=1)
    if door.startswith("fused_recurrent"):
        with pytest.raises(TypeError, match="chunk_size"):
            call(door, chunk_size=64)


@pytest.mark.parametrize("door", DOORS)
def test_V04_batch_with_cu_seqlens(door):
    with pytest.raises(ValueError, match="q has a batch of 2; expected 1"):
        call(door, cu_seqlens=torch.tensor([0, T]))


@pytest.mark.parametrize("door", DOORS)
def test_count_of_states(door):
    with pytest.raises(ValueError, match="initial_state holds 3 states; expected 1"):
        call(door, batch=1, cu_seqlens=torch.tensor([0, T]), initial_state=torch.zeros(3, H, K, V))
    with pytest.raises(ValueError, match="initial_state has shape"):
        call(door, initial_state=torch.zeros(3, H, K, V))


HEAD_FIRST = [
    "chunk_gated_delta_rule",
    "chunk_simple_gla",
    "chunk_lightning_attn",
    "chunk_delta_rule",
    "chunk_retention",
]


@pytest.mark.parametrize("door", HEAD_FIRST)
def test_head_first_raises_as_in_fla(door):
    for value in (True, False):
        with pytest.raises(DeprecationWarning):
            call(door, head_first=value)


OLD_NAME = [
    "chunk_kda",
    "fused_recurrent_kda",
    "chunk_gated_delta_rule",
    "fused_recurrent_gated_delta_rule",
    "fused_recurrent_gla",
    "fused_recurrent_simple_gla",
    "fused_recurrent_retention",
    "chunk_gdn2",
    "fused_recurrent_gdn2",
]


@pytest.mark.parametrize("door", OLD_NAME)
def test_both_names_of_the_layout(door):
    with pytest.raises(ValueError, match="state_v_first and transpose_state_layout"):
        call(door, state_v_first=True, transpose_state_layout=True)


GATE = {"use_gate_in_kernel": True}
DOOR_MISTAKES = [
    ("chunk_kda", {"chunk_size": 16}, ValueError, "chunk_size is 16; expected 32 or 64"),
    ("chunk_gdn2", {"chunk_size": 32}, ValueError, "chunk_size is 32; expected 64"),
    ("chunk_gated_delta_rule", {"chunk_size": 128}, ValueError, "expected 16 or 32 or 64"),
    ("chunk_delta_rule", {"chunk_size": 8}, ValueError, "expected 16 or 32 or 64"),
    ("chunk_simple_gla", {"chunk_size": 48}, ValueError, "expected a power of two"),
    ("chunk_lightning_attn", {"chunk_size": 0}, ValueError, "expected a power of two"),
    ("chunk_retention", {"chunk_size": -4}, ValueError, "expected a power of two"),
    ("chunk_kda", GATE, ValueError, "A_log is None"),
    ("chunk_gdn2", GATE, ValueError, "A_log is None"),
    ("fused_recurrent_kda", GATE, ValueError, "A_log is None"),
    ("fused_recurrent_gdn2", GATE, ValueError, "A_log is None"),
    ("chunk_gated_delta_rule", GATE, AssertionError, "A_log is None"),
    ("fused_recurrent_gated_delta_rule", GATE, ValueError, "A_log is None"),
    (
        "fused_recurrent_gated_delta_rule",
        dict(GATE, A_log=torch.zeros(H)),
        ValueError,
        "g is None",
    ),
    (
        "chunk_kda",
        dict(GATE, A_log=torch.zeros(H), safe_gate=True),
        ValueError,
        "lower_bound is None",
    ),
    (
        "chunk_kda",
        dict(GATE, safe_gate=True, lower_bound=-5.0001),
        ValueError,
        "lower_bound is -5.0001",
    ),
    ("chunk_gdn2", dict(GATE, safe_gate=True, lower_bound=0.0), ValueError, "lower_bound is 0.0"),
    ("chunk_kda", {"allow_neg_eigval": True}, ValueError, "allow_neg_eigval"),
    ("fused_recurrent_kda", {"allow_neg_eigval": True}, ValueError, "allow_neg_eigval"),
    ("chunk_gated_delta_rule", {"allow_neg_eigval": True}, ValueError, "allow_neg_eigval"),
    (
        "fused_recurrent_gated_delta_rule",
        {"allow_neg_eigval": True},
        ValueError,
        "allow_neg_eigval",
    ),
    ("chunk_kda", {"k": torch.zeros(2, T, H, K + 1).bfloat16()}, AssertionError, "k has shape"),
    ("chunk_kda", {"g": torch.zeros(2, T, H)}, AssertionError, "g has shape"),
    ("chunk_kda", {"beta": torch.zeros(2, T, H, V)}, AssertionError, "beta has shape"),
    ("chunk_kda", {"v": torch.zeros(2, T, 3, V).bfloat16()}, AssertionError, "3 heads"),
    ("chunk_gated_delta_rule", {"v": torch.zeros(2, T, 3, V).bfloat16()}, ValueError, "3 heads"),
    (
        "chunk_gated_delta_rule",
        {"k": torch.zeros(2, T, 1, K).bfloat16()},
        ValueError,
        "k has 1 heads; expected 2",
    ),
    ("chunk_gla", {"g": torch.zeros(2, T, H)}, AssertionError, "g has shape"),
    ("chunk_gla", {"v": torch.zeros(2, T, 4, V).bfloat16()}, AssertionError, "v has shape"),
    ("chunk_gdn2", {"b": torch.zeros(2, T, H)}, AssertionError, "b has shape"),
    ("chunk_gdn2", {"w": torch.zeros(2, T, H)}, AssertionError, "w has shape"),
    ("fused_recurrent_gdn2", {"b": torch.zeros(2, T, H)}, AssertionError, "b has shape"),
    ("fused_recurrent_gdn2", {"w": torch.zeros(2, T, H)}, AssertionError, "w has shape"),
    ("chunk_delta_rule", {"dtype": torch.float32}, AssertionError, "q is float32"),
    ("chunk_delta_rule", {"k": torch.zeros(2, T, H, K)}, AssertionError, "expected one dtype"),
    ("chunk_delta_rule", {"beta": torch.zeros(2, T, H, V)}, AssertionError, "beta has shape"),
    ("fused_recurrent_delta_rule", {"scale": -1.0}, AssertionError, "scale is -1.0"),
    ("chunk_kda", {"return_intermediate_states": True}, AssertionError, "inference_mode"),
    ("chunk_gdn2", {"return_intermediate_states": True}, AssertionError, "inference_mode"),
    (
        "chunk_kda",
        {"batch": 1, "use_graph": True, "max_num_seqs": 2, "cu_seqlens": torch.tensor([0, T])},
        AssertionError,
        "max_num_seqs = 2",
    ),
    *(
        (door, {"initial_state": torch.zeros(2, H, K, V).double()}, AssertionError, "float64")
        for door in ("chunk_kda", "chunk_gla", "chunk_gdn2")
    ),
    # L-09: parameters of another length.
    ("chunk_kda", dict(GATE, A_log=torch.zeros(H + 1)), ValueError, r"A_log has shape \[3\]"),
    (
        "chunk_kda",
        dict(GATE, A_log=torch.zeros(H), dt_bias=torch.zeros(H)),
        ValueError,
        r"dt_bias has shape \[2\], 2 elements; expected 32 as \[2, 16\]",
    ),
]


@pytest.mark.parametrize(
    ("door", "changes", "error", "message"),
    DOOR_MISTAKES,
    ids=[
        f"{door}-{'-'.join(map(str, changes))}-{i}"
        for i, (door, changes, *_) in enumerate(DOOR_MISTAKES)
    ],
)
def test_door_mistake(door, changes, error, message):
    with pytest.raises(error, match=message):
        call(door, **changes)


def test_L09_shapes_of_parameters_that_fla_takes():
    for A_log in (torch.zeros(H), torch.zeros(1, 1, H, 1)):
        for dt_bias in (torch.zeros(H * K), torch.zeros(H, K)):
            call("chunk_kda", **GATE, A_log=A_log, dt_bias=dt_bias)


def test_recompute_and_states():
    with torch.inference_mode(), pytest.raises(AssertionError, match="disable_recompute"):
        call("chunk_kda", return_intermediate_states=True, disable_recompute=True)


# ---- the closed list ------------------------------------------------------------------------------------------------

CONTEXT = types.SimpleNamespace(cu_seqlens=torch.tensor([0, T]), cu_seqlens_cpu=None)
REFUSED = [
    *(
        ("cp_context", door, {"cp_context": CONTEXT})
        for door in ("chunk_kda", "chunk_gdn2", "chunk_gated_delta_rule")
    ),
    ("gv", "fused_recurrent_gla", {"gv": torch.zeros(2, T, H, V)}),
    ("gv", "fused_recurrent_gated_delta_rule", {"gv": torch.zeros(2, T, H, V)}),
    *(
        ("beta_per_channel", door, {"beta": torch.zeros(2, T, H, V)})
        for door in (
            "fused_recurrent_kda",
            "fused_recurrent_gated_delta_rule",
            "fused_recurrent_delta_rule",
        )
    ),
    *(("dtype", door, {"dtype": torch.float64}) for door in DOORS),
    ("dtype", "chunk_kda", {"v": torch.zeros(2, T, H, V)}),
    ("dtype", "chunk_gdn2", {"w": torch.zeros(2, T, H, V)}),
    *(
        ("scale_zero", door, {"scale": 0.0})
        for door in DOORS
        if door != "fused_recurrent_delta_rule"
    ),
]


@pytest.mark.parametrize(
    ("key", "door", "changes"),
    REFUSED,
    ids=[f"{key}-{door}-{i}" for i, (key, door, _) in enumerate(REFUSED)],
)
def test_refused(key, door, changes):
    with pytest.raises(NotImplementedError) as error:
        call(door, **changes)
    assert _compat.REFUSED[key] in str(error.value)


def test_context_is_checked_as_in_fla():
    for changes in (
        {"initial_state": torch.zeros(2, H, K, V)},
        {"output_final_state": True},
        {"cp_context": types.SimpleNamespace(cu_seqlens=None)},
    ):
        with pytest.raises(AssertionError):
            call("chunk_kda", **{"cp_context": CONTEXT, **changes})


def test_the_closed_list_is_tested_and_documented():
    from pathlib import Path

    tested = {key for key, *_ in REFUSED} | {"second_gradient"}  # test_gradients.py
    assert tested == set(_compat.REFUSED)
    page = (Path(__file__).resolve().parents[2] / "docs/fla.md").read_text()
    begin = page.index("<!-- refused: begin -->")
    listed = page[begin : page.index("<!-- refused: end -->")].splitlines()
    assert [line[2:] for line in listed if line.startswith("* ")] == list(_compat.REFUSED.values())
