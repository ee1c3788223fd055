#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Packs what a machine with a GPU and no compiler needs beside a checkout, dist/linattn-device.tar.xz: the programs of
# build/device and the Python package's libraries, without their symbols. There, in the checkout's root:
#   tar xf linattn-device.tar.xz && tools/device_test.sh && build/device/linattn-bench
# usage: tools/device_pack.sh
set -euo pipefail
source "$(dirname "$0")/lib.sh"
programs=(build/device/{linattn_device_tests,linattn_unit_tests,linattn_ops_tests,linattn-bench,plan-call})
libraries=(build/device/liblinattn.so.* python/linattn/_lib/*.so*)
for file in "${programs[@]}" "${libraries[@]}"; do
  [[ -e $file ]] || {
    echo "$file is missing: make device" >&2
    exit 1
  }
done
packed=$(mktemp -d)
trap 'rm -rf "$packed"' EXIT
for file in "${programs[@]}" "${libraries[@]}"; do
  mkdir -p "$packed/$(dirname "$file")"
  strip -o "$packed/$file" "$file"
done
mkdir -p dist
tar -C "$packed" -c . | xz -T0 >dist/linattn-device.tar.xz
say "dist/linattn-device.tar.xz, $(du -h dist/linattn-device.tar.xz | cut -f1)"
