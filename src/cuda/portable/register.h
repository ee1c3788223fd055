// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/registry.h"

namespace linattn::portable {

extern const Implementation<ForwardArgs> kForward;  // "portable.forward"

}  // namespace linattn::portable
