#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the test programs of build/device on this machine's GPU, and the CUDA tests of the Python package where PyTorch sees
# the GPU. Prints a summary and, of a whole run, writes bench/results/DATE-GPU-tests.json. The programs need no compiler, no
# CMake and no Python: the folder may have been built elsewhere (make device) and carried here.
# usage: tools/device_test.sh [GTEST_FILTER]
set -uo pipefail
source "$(dirname "$0")/lib.sh"
filter=${1:-*}
device_facts || exit
export LINATTN_TEST_LARGE=${LINATTN_TEST_LARGE:-1} # those tests ask whether the GPU has the memory
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
passed=0 failed=0 skipped=0 programs=()

# add NAME PASSED FAILED SKIPPED SECONDS [MORE]: a program's counts, to the sums and to the JSON.
add() {
  passed=$((passed + $2)) failed=$((failed + $3)) skipped=$((skipped + $4))
  programs+=("$(printf '    {"program": "%s", "passed": %d, "failed": %d, "skipped": %d, "seconds": %s%s}' "$@")")
}

# implementations LOG...: what RunLog prints, added up, as a member of a JSON object.
implementations() {
  cat "$@" | tr -d ':,' | awk '
    /^\[ implementation \]/ {
      key = "\"implementation\": \"" $4 "\", \"pass\": \"" $5 "\""
      if (!(key in passed)) order[++count] = key
      passed[key] += $6; failed[key] += $8; skipped[key] += $10; seconds[key] += $12
    }
    END {
      for (i = 1; i <= count; ++i) {
        key = order[i]
        printf "%s      {%s, \"passed\": %d, \"failed\": %d, \"skipped\": %d, \"seconds\": %.1f}", (i > 1 ? ",\n" : ", \"implementations\": [\n"),
          key, passed[key], failed[key], skipped[key], seconds[key]
      }
      if (count) printf "\n    ]"
    }'
}

# run NAME SHARDS: a program of build/device, in so many processes.
run() {
  local name=$1 shards=$2 program=build/device/$1 begin i failures
  say "$name"
  if [[ ! -x $program ]]; then
    echo "$program is missing: make device" >&2
    add "$name" 0 1 0 0
    return
  fi
  begin=$(now_us)
  for ((i = 0; i < shards; ++i)); do
    GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$i timeout 1200 "$program" --gtest_brief=1 --gtest_filter="$filter" \
      >"$logs/$name.$i" 2>&1 || echo "$i: status $?" >>"$logs/$name.bad" &
  done
  wait
  cat "$logs/$name".[0-9]*
  failures=$(gtest_count FAILED "$logs/$name".[0-9]*)
  # It crashed, hung, or found nothing to run on.
  [[ ! -e $logs/$name.bad ]] || ((failures)) || failures=1
  add "$name" "$(gtest_count PASSED "$logs/$name".[0-9]*)" "$failures" "$(gtest_count SKIPPED "$logs/$name".[0-9]*)" \
    "$(seconds_since "$begin")" "$(implementations "$logs/$name".[0-9]*)"
}

run linattn_device_tests 1 # some of its tests want most of the GPU's memory
run linattn_unit_tests "$(nproc)"
run linattn_ops_tests "$(nproc)"

say "Python"
python=.venv/bin/python
[[ -x $python ]] || python=python3
export PYTHONPATH=$root/python${PYTHONPATH:+:$PYTHONPATH}
reason=$(
  "$python" 2>&1 <<'END'
try:
    import pytest
    import torch

    if torch.cuda.is_available():
        import linattn
    else:
        print("PyTorch sees no GPU")
except ImportError as error:
    print(error)
END
) || reason="no Python that runs here"
if [[ $filter != "*" ]]; then
  echo "not run: the filter is of the programs"
elif [[ $reason ]]; then
  echo "not run: $reason"
else
  log=$logs/python begin=$(now_us)
  timeout 1200 "$python" -m pytest -q -rs -p no:cacheprovider tests/python/test_cuda_*.py 2>&1 | tee "$log"
  status=${PIPESTATUS[0]}
  counted() { tail -n 1 "$log" | grep -oE "[0-9]+ $1" | grep -oE '[0-9]+' || echo 0; }
  failures=$(($(counted failed) + $(counted error)))
  ((status && status != 5 && !failures)) && failures=1 # 5: every file is skipped, which the log explains
  add "tests/python/test_cuda_*.py" "$(counted passed)" "$failures" "$(counted skipped)" "$(seconds_since "$begin")"
fi

if [[ $filter == "*" ]]; then
  results=bench/results/$(date +%F)-$device_name-tests.json
  list=$(printf '%s,\n' "${programs[@]}")
  printf '{\n%s\n  "passed": %d,\n  "failed": %d,\n  "skipped": %d,\n  "programs": [\n%s\n  ]\n}\n' \
    "$device_json" "$passed" "$failed" "$skipped" "${list%,}" >"$results"
  say "wrote $results"
fi
echo "$passed passed, $failed failed, $skipped skipped"
((failed == 0 && passed > 0))
