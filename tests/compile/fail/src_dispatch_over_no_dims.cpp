// SPDX-License-Identifier: Apache-2.0
// with_dims lists the dims that are compiled.
#include "recurrence/dispatch.h"

void launch(int key_dim) {
#ifdef MUST_FAIL
  linattn::with_dims<>("key_dim", key_dim, [](auto) {});
#else
  linattn::with_dims<64, 128>("key_dim", key_dim, [](auto) {});
#endif
}
