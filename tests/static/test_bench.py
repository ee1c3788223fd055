# SPDX-License-Identifier: Apache-2.0
"""The benchmark without a GPU: its table of cases, floors, files and one-line score; the comparison's harness."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = ROOT / "build/cpu/linattn-bench"
sys.path.insert(0, str(ROOT / "bench"))


def run(*arguments, status=0):
    result = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=300)
    assert result.returncode == status, result.stderr
    return result


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "cases.json"
    run("--list", "--json", path)
    return {row["case"]: row for row in json.loads(path.read_text())["rows"]}


def test_cases_have_names_of_their_own(rows):
    names = run("--list").stdout.split()
    assert list(rows) == names
    assert len(set(names)) == len(names)


def test_both_gate_settings_of_every_forward_case_are_timed(rows):
    forward = {n for n, row in rows.items() if row["pass"] == "forward" and row["device"] == "cuda"}
    for name in forward:
        stem, gates = name.rsplit("_", 1)
        if gates in ("forget", "long"):
            assert {f"{stem}_forget", f"{stem}_long"} <= forward


@pytest.mark.parametrize(
    "case, floor",
    [
        # q, k, v, g, out: five tensors of 8192 x 96 x 128 bf16.
        ("kda_1x8192_h96_forget", 5 * 8192 * 96 * 128 * 2),
        # q, k of 16 heads, v, out of 32, and a gate per head.
        ("gdn_1x8192_h16_hv32_long", 8192 * (2 * 16 * 128 + 2 * 32 * 128 + 32) * 2),
        # 32 states of 32 heads, fp32, read and written.
        ("kda_step_32x1_h32_forget", 2 * 32 * 32 * 128 * 128 * 4),
        ("kda_step_256x1_h32_state_bf16_forget", 2 * 256 * 32 * 128 * 128 * 2),
        ("kda_step_64x1_h32_96x192_forget", 2 * 64 * 32 * 96 * 192 * 4),
        # Read once, and written once, after each of four tokens, or not at all.
        ("kda_step_64x4_h32_forget", 2 * 64 * 32 * 128 * 128 * 4),
        ("kda_step_64x4_h32_columns_forget", 5 * 64 * 32 * 128 * 128 * 4),
        ("kda_step_64x4_h32_replay_forget", 64 * 32 * 128 * 128 * 4),
        (
            "gdn_step_32x1_h16_hv32_fused_forget",
            2 * 32 * (32 * 128 * 128 * 4 + 64 * 128 * 3 * 2),
        ),
        ("gla_step_64x4_h32_commit_forget", 2 * 64 * 32 * 128 * 128 * 4),
        ("lightning_1x8192_h64_fixed", 4 * 8192 * 64 * 128 * 2),
    ],
)
def test_floors_equal_those_by_hand(rows, case, floor):
    assert rows[case]["floor_bytes"] == floor


def test_ragged_sequences_fill_the_case(rows):
    assert rows["kda_ragged8192_h96_long"]["lengths"] == [1300, 547, 2048, 963, 271, 3063]


def test_results_are_complete(tmp_path):
    path = tmp_path / "out.json"
    text = run("--filter", "cpu_(kda|lightning)", "--repeats", "2", "--json", path).stdout
    assert "cpu_kda_1x2048_h8_forget" in text
    result = json.loads(path.read_text())
    assert {"date", "library", "machine", "threads", "multiply_adds_per_second"} <= set(result)
    assert [row["op"] for row in result["rows"]] == ["kda", "lightning"]
    for row in result["rows"]:
        assert row["implementation"] == "cpu.chunked"
        assert 0 < row["ms_least"] <= row["ms"] <= row["ms_most"]
        assert row["share_of_floor"] == pytest.approx(row["floor_ms"] / row["ms"], rel=1e-4)
        assert row["traffic_bytes"] > row["input_bytes"] > 0
        assert row["repeats"] == 2
        assert row["workspace_bytes"] > 0


def test_check_compares_with_the_oracle(tmp_path):
    path = tmp_path / "check.json"
    assert "8 of 8 passed, 0 refused" in run("--check", "--json", path).stdout
    for row in json.loads(path.read_text())["rows"]:
        assert 0 < row["out_error"] < row["out_bound"]
        assert 0 < row["state_error"] < row["state_bound"]


def test_score_is_one_line_of_json():
    lines = run("--score", "--implementation", "cpu.chunked", "--repeats", "2").stdout.splitlines()
    assert len(lines) == 1
    score = json.loads(lines[0])
    assert score["implementation"] == "cpu.chunked"
    assert score["passed"] == score["cases"] > 0
    assert 0 < score["worst_error"] < 1e-5
    assert set(score["ms"]) == set(score["share_of_floor"]) != set()
    assert 0 < score["score"] < 1


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["--filter", "nothing_like_it"], "no case"),
        (["--device", "tpu"], "expected cpu or cuda"),
        (["--repeats", "0"], "1 or more"),
        (["--score", "--implementation", "cpu.nothing"], "cpu.nothing"),
        (["cases"], "no option"),
    ],
)
def test_what_cannot_run_is_refused_in_words(arguments, text):
    assert text in run(*arguments, status=2).stderr


def test_the_comparison_lists_cases_and_libraries():
    command = [sys.executable, ROOT / "bench/bench_peers.py", "--list", "--bench", PROGRAM]
    result = subprocess.run(
        [*command, "--filter", "1x8192_h64"], capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    assert "gdn_1x8192_h64_long" in result.stdout
    listed = {line.split()[0] for line in result.stdout.splitlines()}
    assert {"linattn", "FLA", "cuDNN", "FlashQLA", "FlashKDA", "cuLA"} <= listed
    assert "cuLA      absent: ModuleNotFoundError" in result.stdout


@pytest.mark.parametrize(
    "name",
    [
        "kda_8x1024_h96_forget",
        "kda_1x8192_h64_long",
        "kda_1x8192_h64_unbounded",
        "gdn_1x8192_h16_hv32_long",
        "gla_1x8192_h64_long",
        "lightning_8x1024_h96_fixed",
        "kda_step_64x4_h32_forget",
        "kda_step_256x1_h32_state_bf16_forget",
    ],
)
def test_the_comparison_measures_the_error_of_the_right_heads(rows, name):
    import bench_peers
    from peers import Case, Declines, Linattn, make_inputs

    fields = dict(rows[name])
    group = fields["value_heads"] // fields["heads"]
    fields |= {"heads": 3, "value_heads": 3 * group}
    fields["lengths"] = [min(length, 70 + n) for n, length in enumerate(fields["lengths"][:3])]
    case = Case.read(fields)
    x = make_inputs(case, 1, "cpu")
    reference, reference_state, part = bench_peers.oracle(case, x)
    out, state = Linattn("cpu.recurrent").prepare(case, x)()
    assert reference.shape[2] == 2 * group
    with pytest.raises(Declines, match="has no"):
        Linattn("cpu.nothing").prepare(case, x)
    assert bench_peers.relative_rms(out[part], reference) < 4e-3
    assert bench_peers.relative_rms(state[:, part[2]], reference_state) < 4e-3
