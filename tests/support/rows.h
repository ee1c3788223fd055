// SPDX-License-Identifier: Apache-2.0
//
// Which implementations run on the CPU: the other ones are in the list also where no GPU is.
#pragma once

#include <string>
#include <vector>

#include "linattn/linattn.h"

namespace linattn::test {

inline bool of_the_cpu(const std::string& row) { return row.compare(0, 4, "cpu.") == 0; }

inline std::vector<std::string> cpu_implementations(Pass pass = Pass::kForward) {
  std::vector<std::string> names;
  for (const std::string& name : implementations(pass))
    if (of_the_cpu(name)) names.push_back(name);
  return names;
}

}  // namespace linattn::test
