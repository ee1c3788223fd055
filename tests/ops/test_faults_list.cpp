// SPDX-License-Identifier: Apache-2.0
//
// tests/faults.txt against itself and against this program: every entry has a line, every named
// test exists, and every Faults test is named.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "ops/compare.h"
#include "ops/scenario.h"

namespace linattn::test {
namespace {

// First and last number of each section, and the numbers that were never given out.
struct Section {
  char letter;
  int last;
  std::set<int> missing;
};
const Section kSections[] = {
    {'N', 22, {12, 15}}, {'S', 14, {2, 6, 9}}, {'L', 10, {2}}, {'V', 8, {}}, {'T', 11, {1, 6}},
    {'B', 11, {7}},      {'C', 10, {}},        {'I', 10, {}},  {'P', 7, {}}, {'K', 7, {}}};

std::set<std::string> all_entries() {
  std::set<std::string> all;
  for (const Section& section : kSections)
    for (int i = 1; i <= section.last; ++i)
      if (!section.missing.count(i))
        all.insert(std::string(1, section.letter) + (i < 10 ? "-0" : "-") + std::to_string(i));
  return all;
}

std::set<std::string> tests_of_this_program() {
  std::set<std::string> names;
  const testing::UnitTest& program = *testing::UnitTest::GetInstance();
  for (int i = 0; i < program.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *program.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j)
      names.insert(std::string(suite.name()) + "." + suite.GetTestInfo(j)->name());
  }
  return names;
}

TEST(FaultsList, HasALineForEveryEntryAndATestForEveryName) {
  const auto path = std::filesystem::path(__FILE__).parent_path().parent_path() / "faults.txt";
  // The build maps its source folder to "."; the tests run in <source>/build/<preset>.
  std::ifstream file;
  for (const auto& root : {std::filesystem::path(), std::filesystem::path("../.."),
                           std::filesystem::path("../../..")}) {
    file = std::ifstream(root / path);
    if (file) break;
  }
  if (!file) GTEST_SKIP() << "the sources are not on this machine";
  const std::set<std::string> tests = tests_of_this_program();
  std::map<std::string, std::vector<std::string>> lines;
  std::set<std::string> named;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    const std::size_t colon = line.find(':');
    ASSERT_NE(colon, std::string::npos) << line;
    const std::string entry = line.substr(0, colon);
    EXPECT_TRUE(lines.emplace(entry, std::vector<std::string>{}).second) << entry << " twice";
    std::istringstream words(line.substr(colon + 1));
    for (std::string word; words >> word;) lines[entry].push_back(word);
    ASSERT_FALSE(lines[entry].empty()) << line;
    if (lines[entry][0] == "-") continue;
    for (const std::string& name : lines[entry]) {
      named.insert(name);
      const bool elsewhere = name.rfind("unit:", 0) == 0 || name.rfind("python:", 0) == 0;
      EXPECT_TRUE(elsewhere || tests.count(name)) << entry << " names no test: " << name;
    }
  }
  for (const std::string& entry : all_entries())
    EXPECT_TRUE(lines.count(entry)) << "tests/faults.txt has no line for " << entry;
  EXPECT_EQ(lines.size(), all_entries().size());
  for (const std::string& test : tests)
    if (test.rfind("Faults.", 0) == 0) {
      EXPECT_TRUE(named.count(test)) << test << " is not listed";
    }
}

// The oracle may be wrong too: every agreement checks it against a recurrence of the tests' own.
// Here each op, named.
TEST(Faults, N20_OracleAgreesWithASecondRecurrence) {
  for (const NamedOp& op : kAllOps)
    for (const Pass pass : {Pass::kForward, Pass::kStep})
      expect_agreement(make(op.op, pass, {8, 3}, 1, 2, 8, 12));
}

}  // namespace
}  // namespace linattn::test
