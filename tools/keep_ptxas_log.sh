#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compiler launcher: runs the command and keeps what ptxas says of each kernel as OBJECT.ptxas, beside the object.
set -euo pipefail
object=
arguments=("$@")
for ((i = 0; i < $#; i++)); do
  if [[ ${arguments[i]} == -o ]]; then object=${arguments[i + 1]}; fi
done
[[ $object ]] || exec "$@"
status=0
"$@" 2>"$object.ptxas" || status=$?
# Everything else, warnings of ptxas included, is for the person who builds.
grep -vE '^ptxas info|^ +[0-9]+ bytes stack frame|^ *$' "$object.ptxas" >&2 || true
exit "$status"
