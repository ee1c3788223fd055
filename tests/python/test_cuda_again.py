# SPDX-License-Identifier: Apache-2.0
"""Tests of the other files once more, with every tensor on the GPU."""

import importlib

import gpu  # noqa: F401
import pytest
import torch

AGAIN = {
    "test_slots": "test_L06_padded_pool_is_written_in_place test_V08_pads_and_null_slots "
    "test_T02_recycled_slot_of_a_new_request test_T08_states_in_place test_states_per_token test_draft_tree "
    "test_N13_state_stays_fp32_inside_a_call",
    "test_native": "test_T04_decode_equals_forward test_scalars_reach_the_library test_checkpoints_into_slots "
    "test_checkpoints_with_start_positions test_transition test_I06_plan_cache_sees_every_property "
    "test_many_lengths_share_plans test_threads_of_the_caller",
    "test_varlen": "test_V01_without_initial_state test_V03_both_offset_dtypes test_V05_offsets_edited_in_place "
    "test_V07_S03_neighbours_do_not_leak test_S05_nothing_at_all test_T10_split_at_70",
    "test_properties": "test_SPLIT_and_L07_both_layouts test_L07_one_entry_of_a_square_state "
    "test_C10_L08_rows_and_heads_alone test_N11_beta_is_not_rounded test_N19_gate_dtype_does_not_matter",
    "test_layouts": "test_slice_of_a_longer_buffer test_transposed_state",
    "test_numerics": "test_N06_strong_gates_in_the_last_partial_chunk test_N09_growing_gate "
    "test_N10_gate_parameters_at_their_ends test_P_length_costs_linear_memory_of_the_caller",
}
for file, names in AGAIN.items():
    module = importlib.import_module(file)
    globals().update({name: getattr(module, name) for name in names.split()})


@pytest.fixture(autouse=True)
def on_the_gpu():
    torch.set_default_device("cuda")
    with torch.no_grad():
        yield
    torch.set_default_device(None)


@pytest.fixture
def rng():
    return torch.Generator("cuda").manual_seed(1)
