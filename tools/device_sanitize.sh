#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs every template instance of every CUDA implementation (suites Instances and FusedStep of
# build/device/linattn_device_tests) under compute-sanitizer: out-of-bounds accesses, races in shared memory, reads of what nothing wrote, wrong barriers; memcheck
# also on garbage in index tensors (suite Garbage). Writes bench/results/DATE-GPU-sanitizer.json.
# usage: tools/device_sanitize.sh [memcheck] [racecheck] [initcheck] [synccheck]    none given: all
# status: 0 clean; 1 an error or a failing test; 77 compute-sanitizer is missing here or refuses the GPU
set -uo pipefail
source "$(dirname "$0")/lib.sh"
tools=("$@")
((${#tools[@]})) || tools=(memcheck racecheck initcheck synccheck)
program=build/device/linattn_device_tests
[[ -x $program ]] || {
  echo "$program is missing: make device" >&2
  exit 1
}
device_facts || exit
sanitizer=$(PATH=$PATH:/usr/local/cuda/bin command -v compute-sanitizer) || {
  echo "compute-sanitizer is not installed here (it comes with the CUDA toolkit): nothing was checked"
  exit 77
}
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
"$sanitizer" "$program" --gtest_brief=1 --gtest_filter='*Instances*/kda_bf16_k64_serving' >"$logs/first" 2>&1
if ! grep -q 'ERROR SUMMARY' "$logs/first" || grep -qE 'Device not supported|not supported on this|Unable to find' "$logs/first"; then
  grep -m 5 '^=========' "$logs/first"
  echo "compute-sanitizer refuses this machine's GPU: nothing was checked"
  exit 77
fi

# A tool costs ten to a hundred times the run, most of it on the host: so, in several processes.
cores=$(nproc)
shards=${SHARDS:-$((cores < 12 ? cores : 12))} failed=0 members=()
for tool in "${tools[@]}"; do
  suites='*Instances*:*FusedStep*' options=()
  [[ $tool == memcheck ]] && suites+=':Garbage*' options=(--padding 1024)
  begin=$(now_us)
  for ((i = 0; i < shards; ++i)); do
    GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$i LINATTN_TEST_SANITIZER=1 timeout 900 \
      "$sanitizer" --tool "$tool" --error-exitcode 99 --print-limit 10 "${options[@]}" \
      "$program" --gtest_brief=1 --gtest_filter="$suites" >"$logs/$tool.$i" 2>&1 || echo "$?" >"$logs/$tool.$i.status" &
  done
  wait
  # "ERROR SUMMARY: 0 errors"; "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"
  errors=$(sed -nE 's/^=+ (ERROR|RACECHECK) SUMMARY: ([0-9]+) (errors?|hazards?).*/\2/p' "$logs/$tool".* | awk '{sum += $1} END {print sum + 0}')
  ran=$(gtest_count PASSED "$logs/$tool".*) failures=$(gtest_count FAILED "$logs/$tool".*)
  bad=$(find "$logs" -name "$tool.*.status" | wc -l)
  seconds=$(seconds_since "$begin")
  say "$tool: $ran tests passed, $failures failed, $errors errors, $bad of $shards processes ended badly, $seconds s"
  members+=("$(printf '    {"tool": "%s", "passed": %d, "failed": %d, "errors": %d, "seconds": %s}' "$tool" "$ran" "$failures" "$errors" "$seconds")")
  if ((errors || failures || bad || ran == 0)); then
    failed=1
    grep -hE -m 30 '^=========|^\[  FAILED|Failure$' "$logs/$tool".* | head -n 60
  fi
done

results=bench/results/$(date +%F)-$device_name-sanitizer.json
list=$(printf '%s,\n' "${members[@]}")
printf '{\n%s\n  "program": "linattn_device_tests, suites Instances, FusedStep and, by memcheck, Garbage",\n  "tools": [\n%s\n  ]\n}\n' \
  "$device_json" "${list%,}" >"$results"
say "wrote $results"
exit "$failed"
