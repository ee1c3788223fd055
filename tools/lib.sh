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
