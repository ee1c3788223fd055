#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds dist/linattn-*.whl in an isolated environment, as `pip install .` does. LINATTN_CUDA=ON adds the CUDA kernels.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
step "building the wheel (CUDA: ${LINATTN_CUDA:-OFF})" \
  .venv/bin/python -m pip wheel --disable-pip-version-check --no-deps --wheel-dir dist .
ls -l dist
