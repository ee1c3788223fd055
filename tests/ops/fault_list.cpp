// SPDX-License-Identifier: Apache-2.0
#include "ops/fault_list.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "ops/run.h"

namespace linattn::test {
namespace {

// A test of this program: of tests/ops without a prefix, of tests/device with its own.
constexpr const char* kDevicePrefix = "device:";

// The build maps its source folder to "."; the tests run in <source> or in <source>/build/<preset>.
std::ifstream open_list() {
  const auto path = std::filesystem::path(__FILE__).parent_path().parent_path() / "faults.txt";
  for (const char* root : {"", "../..", "../../.."})
    if (std::ifstream file(root / path); file) return file;
  return {};
}

bool selects(const std::string& selector, Pass pass, const std::string& row) {
  std::istringstream words(selector);
  for (std::string word; std::getline(words, word, '+');)
    if (word != "all" && word != to_string(pass) && word != row &&
        word != (of_the_cpu(row) ? "cpu" : "cuda"))
      return false;
  return true;
}

}  // namespace

std::optional<std::vector<Fault>> faults() {
  std::ifstream file = open_list();
  if (!file.is_open()) return std::nullopt;
  std::vector<Fault> all;
  for (std::string text; std::getline(file, text);) {
    if (text.empty() || text[0] == '#') continue;
    if (text[0] != ' ') {
      all.push_back({text.substr(0, text.find(' ')), {}});
      continue;
    }
    FaultLine& line = all.at(all.size() - 1).lines.emplace_back();
    const std::size_t colon = text.find(": ");
    std::istringstream selectors(text.substr(0, colon)), tests(text.substr(colon + 1));
    for (std::string word; selectors >> word;) line.selectors.push_back(word);
    for (std::string word; tests >> word && word != "-";) line.tests.push_back(word);
  }
  return all;
}

const FaultLine* line_of(const Fault& fault, Pass pass, const std::string& row) {
  const FaultLine* found = nullptr;
  for (const FaultLine& line : fault.lines)
    if (std::any_of(line.selectors.begin(), line.selectors.end(),
                    [&](const std::string& selector) { return selects(selector, pass, row); }))
      found = &line;
  return found;
}

bool names(const FaultLine& line, const std::string& test) {
  return std::find(line.tests.begin(), line.tests.end(), test) != line.tests.end() ||
         std::find(line.tests.begin(), line.tests.end(), kDevicePrefix + test) != line.tests.end();
}

}  // namespace linattn::test
