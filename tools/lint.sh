#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Formatting, static analysis and the project's own rules; says what fixes each fault. Runs all parts, then fails.
# usage: tools/lint.sh [--fix]    --fix: reformat in place first
set -uo pipefail
source "$(dirname "$0")/lib.sh"
bin=.venv/bin
status=0
fail() {
  echo "lint: $1" >&2
  status=1
}

# files EXTENSION...: what git tracks or would track.
files() {
  git ls-files --cached --others --exclude-standard -- "${@/#/*.}" | while read -r file; do [[ -f $file ]] && echo "$file"; done
}

mapfile -t cxx < <(files h cpp cu cuh)
mapfile -t shell < <(files sh && echo .ci/run)
if [[ ${1:-} == --fix ]]; then
  "$bin/clang-format" -i "${cxx[@]}"
  "$bin/ruff" check --quiet --fix .
  "$bin/ruff" format --quiet .
fi

say "clang-format (${#cxx[@]} files), ruff, shellcheck (${#shell[@]} files), rules"
"$bin/clang-format" --dry-run -Werror "${cxx[@]}" 2>&1 | grep -E 'error:' | sort -u -t: -k1,1
((PIPESTATUS[0] == 0)) || fail "clang-format: run tools/lint.sh --fix"
"$bin/ruff" check --quiet . || fail "ruff"
"$bin/ruff" format --quiet --check . || fail "ruff format: run tools/lint.sh --fix"
"$bin/shellcheck" "${shell[@]}" || fail "shellcheck"
"$bin/python" tools/rules.py || fail "the rules above"

step "configuring build/lint" "$bin/cmake" --preset lint || exit 1
# Host files of the library; the CUDA folders need the CUDA headers and are compiled with warnings as errors instead.
mapfile -t host < <(files cpp | grep -E '^(src|bindings|bench|examples)/' | grep -v '^src/cuda/')
say "clang-tidy (${#host[@]} files)"
# shellcheck disable=SC2016 # the inner shell expands $1
printf '%s\n' "${host[@]}" | xargs -P "$(nproc)" -I{} sh -c \
  "$bin"'/clang-tidy -p build/lint --quiet "$1" 2>/dev/null | grep . && echo "  in $1"; true' _ {} >build/lint/tidy.txt
awk '!seen[$0]++' build/lint/tidy.txt # a header's fault comes once per file that includes it
[[ ! -s build/lint/tidy.txt ]] || fail "clang-tidy"

((status)) || say "lint: nothing to report"
exit "$status"
