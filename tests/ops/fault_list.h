// SPDX-License-Identifier: Apache-2.0
//
// tests/faults.txt, whose head says what its lines mean. tools/faults_matrix.py makes a page of it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "linattn/linattn.h"

namespace linattn::test {

struct FaultLine {
  std::vector<std::string> selectors;
  std::vector<std::string> tests;  // none: the line is a reason
};

struct Fault {
  std::string id;
  std::vector<FaultLine> lines;
};

// Nothing where the sources are not on the machine.
std::optional<std::vector<Fault>> faults();

// The line that speaks for an implementation: the last that selects it; null: none does.
const FaultLine* line_of(const Fault& fault, Pass pass, const std::string& row);

// Whether the line counts on a test of this program.
bool names(const FaultLine& line, const std::string& test);

}  // namespace linattn::test
