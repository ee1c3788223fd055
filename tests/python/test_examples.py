# SPDX-License-Identifier: Apache-2.0
"""The examples run, and what they show is so."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(*arguments):
    return subprocess.run(
        [sys.executable, *map(str, arguments)], check=True, capture_output=True, text=True
    ).stdout


@pytest.mark.no_poison
def test_training():
    first, last = runpy.run_path(str(EXAMPLES / "train_kda.py"))["main"]()
    assert last < 0.2 * first


def test_forward_and_slots():
    assert "torch.Size([1, 1, 4, 128])" in run(EXAMPLES / "kda_forward.py")
    assert "padded row is zero: True" in run(EXAMPLES / "serve_slots.py")


def test_demo_on_a_small_layer():
    out = run(EXAMPLES / "demo.py", "--tokens", 300, "--heads", 2)
    assert out.rstrip().endswith("ok")
    assert "cpu.recurrent" in out and "tokens/s" in out
