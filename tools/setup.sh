#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes .venv and installs the pinned requirements/NAME.txt of each NAME given; each once per content. `gtest` is
# GoogleTest, from the system's package manager.
# usage: tools/setup.sh [build] [gtest] [test] [cuda] [lint]
set -euo pipefail
source "$(dirname "$0")/lib.sh"

exec 9<tools
flock 9 # two makes at once share one .venv

python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || {
  echo "linattn needs Python 3.10 or newer; $python is $("$python" --version 2>&1). Set PYTHON=..." >&2
  exit 1
}
command -v "${CXX:-c++}" >/dev/null || install_package "a C++ compiler" g++ || {
  echo "linattn needs a C++20 compiler (g++ 11 or clang 15, or newer); set CXX=..." >&2
  exit 1
}
"$python" -c 'import ensurepip, venv' 2>/dev/null || install_package "Python's venv module" python3-venv || {
  echo "Python's venv module is missing; on Debian: apt-get install python3-venv" >&2
  exit 1
}

if ! .venv/bin/python -c '' 2>/dev/null; then
  step "making .venv with $("$python" --version)" "$python" -m venv --clear .venv
  # The package is used from the tree; the build puts the shared libraries beside it.
  echo "$root/python" >"$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/linattn-tree.pth"
fi

names=()
declare -A note=(
  [build]="build tools, NumPy and tvm-ffi"
  [test]="pytest and PyTorch (4.7 GB on disk; minutes, once)"
  [fla]="flash-linear-attention, the reference of the Python tests"
  [cuda]="the CUDA compiler"
  [lint]="clang-format, clang-tidy, ruff and shellcheck"
)
for name in "$@"; do
  case $name in
    test) names+=(test fla) ;;
    gtest)
      compgen -G '/usr/lib*/*/cmake/GTest' >/dev/null || compgen -G '/usr/*/lib*/cmake/GTest' >/dev/null ||
        install_package GoogleTest libgtest-dev || say "GoogleTest is not installed: CMake fetches a pinned copy"
      ;;
    *) names+=("$name") ;;
  esac
done
for name in "${names[@]}"; do
  stamp=.venv/installed-$name.txt
  cmp -s "requirements/$name.txt" "$stamp" && continue
  options=()
  [[ $name == fla ]] && options=(--no-deps)
  step "installing ${note[$name]}" .venv/bin/python -m pip install --disable-pip-version-check --no-input \
    --progress-bar off "${options[@]}" -r "requirements/$name.txt"
  cp "requirements/$name.txt" "$stamp"
done
