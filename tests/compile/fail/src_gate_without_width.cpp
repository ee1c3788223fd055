// SPDX-License-Identifier: Apache-2.0
// A gate policy says how wide its log decay is.
#include "recurrence/gate.h"

struct GateUnfinished {
  static constexpr bool kPerChannel = true;
#ifndef MUST_FAIL
  static constexpr std::int64_t width(std::int64_t key_dim) { return key_dim; }
  static constexpr std::int64_t at(std::int64_t key) { return key; }
#endif
};

template <linattn::GatePolicy Gate>
constexpr bool per_channel = Gate::kPerChannel;

static_assert(per_channel<GateUnfinished>);
