// SPDX-License-Identifier: Apache-2.0
//
// One pool per process. No OpenMP: it would share, and fight over, the frameworks' own.
#pragma once

#include <cstdint>
#include <functional>

namespace linattn::cpu {

void set_threads(int threads);  // 0: one per core
int threads();

// Calls task(index, worker) for every index in [0, count); returns when all are done. Workers are
// numbered 0 .. threads() - 1 (a workspace slice each); the caller is one of them. Indices are
// handed out one by one. The first exception stops the hand-out and is rethrown here. A call from
// inside a task runs it serially, as worker 0 of its own. A forked child starts a pool of its own.
void parallel_for(std::int64_t count,
                  const std::function<void(std::int64_t index, int worker)>& task);

}  // namespace linattn::cpu
