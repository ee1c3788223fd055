#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs linattn-bench; arguments are passed on.
set -euo pipefail
cd "$(dirname "$0")/.."
[[ -x build/native/linattn-bench ]] || {
  echo "bench/ has no benchmark yet" >&2
  exit 1
}
exec build/native/linattn-bench "$@"
