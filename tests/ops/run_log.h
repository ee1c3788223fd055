// SPDX-License-Identifier: Apache-2.0
//
// Which implementations each test ran, for how long, and which refused. The program ends with a
// line per implementation, and a test on which tests/faults.txt counts for an implementation fails
// if it did not run it.
#pragma once

#include <string>

#include "linattn/linattn.h"

namespace linattn::test {

// From any thread.
void log_run(Pass pass, const std::string& row, double seconds);
void log_refusal(Pass pass, const std::string& row);

}  // namespace linattn::test
