# SPDX-License-Identifier: Apache-2.0
"""The doors have the parameters of FLA 0.6.0: names, order, kinds, defaults."""

import importlib
import inspect
import os
import shutil
import subprocess
import sys
from pathlib import Path

import linattn
import pytest

DOORS = {
    "chunk_kda": "kda",
    "fused_recurrent_kda": "kda",
    "chunk_gated_delta_rule": "gated_delta_rule",
    "chunk_gdn": "gated_delta_rule",
    "fused_recurrent_gated_delta_rule": "gated_delta_rule",
    "fused_recurrent_gdn": "gated_delta_rule",
    "chunk_gated_delta_product": "gated_delta_product",
    "chunk_gla": "gla",
    "fused_recurrent_gla": "gla",
    "chunk_simple_gla": "simple_gla",
    "fused_recurrent_simple_gla": "simple_gla",
    "chunk_lightning_attn": "lightning_attn",
    "fused_recurrent_lightning_attn": "lightning_attn",
    "chunk_delta_rule": "delta_rule",
    "fused_recurrent_delta_rule": "delta_rule",
    "chunk_retention": "retention",
    "fused_recurrent_retention": "retention",
    "chunk_linear_attn": "linear_attn",
    "fused_recurrent_linear_attn": "linear_attn",
    "chunk_gdn2": "gdn2",
    "fused_recurrent_gdn2": "gdn2",
}
# Entries for servers, in modules of their own. FLA has none for GDN: ours has the form of the KDA entry.
SERVING = {"fused_recurrent_kda_fwd": "kda.fused_recurrent"}
OURS = {"fused_recurrent_gated_delta_rule_fwd"}


def parameters(function):
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize("door", [*DOORS, *SERVING])
def test_signature(door):
    module = importlib.import_module(f"fla.ops.{(DOORS | SERVING)[door]}")
    theirs = getattr(module, door)
    assert parameters(getattr(linattn, door)) == parameters(theirs)


def test_every_door_is_exported():
    doors = {name for name in linattn.__all__ if name.startswith(("chunk_", "fused_recurrent_"))}
    assert doors == {*DOORS, *SERVING, *OURS}
    assert all(hasattr(linattn, name) for name in linattn.__all__)
    assert linattn.chunk_gdn is linattn.chunk_gated_delta_rule


def test_import_needs_no_torch():
    """With torch made impossible to import (tvm-ffi imports it when it can), NumPy arrays still work."""
    code = """
import sys
from pathlib import Path
sys.modules["torch"] = None
import numpy, linattn
x = numpy.ones((1, 3, 1, 4), "float32")
out, _ = linattn.forward(op="linear_attention", q=x, k=x, v=x)
assert out[0, 2, 0, 0] == 6.0, out
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_library_that_is_not_built(tmp_path):
    package = Path(linattn.__file__).parent
    shutil.copytree(
        package, tmp_path / "linattn", ignore=shutil.ignore_patterns("_lib", "__pycache__")
    )
    result = subprocess.run(
        [sys.executable, "-c", "import linattn"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert result.returncode != 0
    assert "ImportError: linattn's library is not built" in result.stderr
    assert "make demo" in result.stderr
