# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Sourced by the other scripts: the repository root and steps that show their progress.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit

say() { printf '== %s\n' "$*"; }

# step TEXT COMMAND...: runs quietly, prints a sign of life every ten seconds, and the log if it fails.
step() {
  local text=$1 log begin=$SECONDS pid status=0
  shift
  log=$(mktemp)
  say "$text"
  "$@" >"$log" 2>&1 </dev/null &
  pid=$!
  while kill -0 "$pid" 2>/dev/null; do
    sleep 0.2
    if (((SECONDS - begin) / 10 > ${ticks:=0})); then
      ticks=$(((SECONDS - begin) / 10))
      printf '   ... %d s\n' $((SECONDS - begin))
    fi
  done
  ticks=0
  wait "$pid" || status=$?
  if ((status)); then
    tail -n 40 "$log" >&2
    printf 'failed (%d) after %d s: %s\n' "$status" $((SECONDS - begin)) "$*" >&2
  elif ((SECONDS - begin > 2)); then
    printf '   done in %d s\n' $((SECONDS - begin))
  fi
  rm -f "$log"
  return "$status"
}

# install_package WHAT DEBIAN_PACKAGE: through the system's package manager, where that is possible.
install_package() {
  if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
    step "$1 is missing: installing $2 with apt-get" \
      sh -c "apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $2"
  else
    return 1
  fi
}

# device_facts: sets device_json, the date and this machine's GPU as members of a JSON object, and device_name, "h200".
# shellcheck disable=SC2034 # for who sources this
device_facts() {
  local gpu driver capability
  IFS=, read -r gpu driver capability < <(nvidia-smi --query-gpu=name,driver_version,compute_cap --format=csv,noheader)
  if [[ -z ${capability:-} ]]; then
    echo "no GPU is seen here (nvidia-smi)" >&2
    return 1
  fi
  device_name=$(tr '[:upper:] ' '[:lower:]-' <<<"${gpu#NVIDIA }")
  device_json=$(printf '  "date": "%s",\n  "gpu": "%s",\n  "driver": "%s",\n  "capability": "%s",' \
    "$(date +%F)" "$gpu" "${driver# }" "${capability# }")
  say "$gpu, driver ${driver# }, compute capability ${capability# }"
}

# seconds_since MICROSECONDS: as 12.3; now_us: microseconds.
now_us() { echo "${EPOCHREALTIME/[.,]/}"; }
seconds_since() { printf '%d.%d' $((($(now_us) - $1) / 1000000)) $((($(now_us) - $1) / 100000 % 10)); }

# gtest_count PASSED|SKIPPED|FAILED LOG...: the tests of GoogleTest programs, added up.
gtest_count() {
  local word=$1
  shift
  if [[ $word == FAILED ]]; then
    cat "$@" | grep -cE '^\[  FAILED  \] .* \([0-9]+ ms\)$'
  else
    sed -nE "s/^\[ +$word +\] ([0-9]+) tests?[.,].*/\1/p" "$@" | awk '{sum += $1} END {print sum + 0}'
  fi
}
