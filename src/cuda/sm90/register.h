// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/registry.h"

namespace linattn::sm90 {

extern const Implementation<ForwardArgs> kDirectForward;  // "sm90.direct"
extern const Implementation<ForwardArgs> kForward;        // "sm90.forward"

}  // namespace linattn::sm90
