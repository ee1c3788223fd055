#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Configures and builds one preset into build/PRESET; preset `native` gets CUDA for this machine's own GPU, if it has one.
# usage: tools/build.sh native|cpu|asan|cuda|device [CMake options] [--target NAME]...
#   target `python` also puts the shared libraries beside the Python package
set -euo pipefail
source "$(dirname "$0")/lib.sh"

preset=$1
shift
options=()
targets=()
while (($#)); do
  if [[ $1 == --target ]]; then
    targets+=(--target "$2")
    shift 2
  else
    options+=("$1")
    shift
  fi
done

if [[ $preset == native ]]; then
  capabilities=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d . | sort -u | paste -sd ';') || true
  if [[ $capabilities =~ ^[0-9\;]+$ ]]; then
    tools/setup.sh cuda
    options+=(-DLINATTN_CUDA=ON "-DLINATTN_CUDA_ARCHS=$capabilities")
  fi
fi

folder=build/$preset
mkdir -p "$folder"
exec 8<"$folder"
flock 8 # ninja does not tolerate a second one in its folder
[[ $folder/build.ninja -nt CMakePresets.json && ${#options[@]} == 0 ]] ||
  step "configuring $folder" .venv/bin/cmake --preset "$preset" "${options[@]}"
NINJA_STATUS="[%f/%t %es] " .venv/bin/cmake --build "$folder" --parallel "$(nproc)" "${targets[@]}"
if [[ " ${targets[*]} " == *" python "* ]]; then
  .venv/bin/cmake --install "$folder" --component python --prefix python >/dev/null
fi
