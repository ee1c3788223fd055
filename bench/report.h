// SPDX-License-Identifier: Apache-2.0
//
// Results as lines of a table and as JSON; docs/benchmarks.md says what each field means.
#pragma once

#include <string>

#include "json.h"
#include "machine.h"
#include "measure.h"
#include "timed_case.h"

namespace linattn::bench {

std::string table_head();
std::string table_line(Machine&, const TimedCase&, const Measurement&);
std::string check_head();
std::string check_line(const TimedCase&, const Check&);

// What a case is, without any result.
Json describe(const TimedCase&);
Json record(Machine&, const TimedCase&, const Measurement&);
Json record(const TimedCase&, const Check&);
// The machine, the library and the time, which every file begins with.
Json preamble(Machine&);

}  // namespace linattn::bench
