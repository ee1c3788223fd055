// SPDX-License-Identifier: Apache-2.0
#include <linattn/linattn.h>

#include <cstdio>

int main() {
  std::printf("linattn %s\n", linattn_version());
  return linattn::implementations(linattn::Pass::kForward).empty();
}
