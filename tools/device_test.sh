#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the test programs of build/device on this machine's GPU. Needs no compiler, no CMake and no Python: the folder may
# have been built elsewhere (make device) and carried here.
# usage: tools/device_test.sh [GTEST_FILTER]
set -uo pipefail
cd "$(dirname "$0")/.." || exit
filter=${1:-*}

nvidia-smi --query-gpu=name,driver_version,compute_cap --format=csv,noheader || {
  echo "no GPU is seen here (nvidia-smi)" >&2
  exit 1
}
passed=0 failed=0 skipped=0
for name in linattn_device_tests linattn_unit_tests linattn_ops_tests; do
  program=build/device/$name
  if [[ ! -x $program ]]; then
    echo "$program is missing: make device" >&2
    failed=$((failed + 1))
    continue
  fi
  echo "== $name"
  log=$(mktemp)
  status=0
  timeout 1200 "$program" --gtest_brief=1 --gtest_filter="$filter" 2>&1 | tee "$log" || status=${PIPESTATUS[0]}
  number() { sed -nE "s/^\[ +$1 +\] ([0-9]+) tests?[.,].*/\1/p" "$log" | tail -n 1 | grep . || echo 0; }
  failures=$(number FAILED)
  ((status && !failures)) && failures=1
  passed=$((passed + $(number PASSED)))
  skipped=$((skipped + $(number SKIPPED)))
  failed=$((failed + failures))
  rm -f "$log"
done
echo "$passed passed, $failed failed, $skipped skipped"
((failed == 0 && passed > 0))
