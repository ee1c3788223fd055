// SPDX-License-Identifier: Apache-2.0
//
// tests/faults.txt against this program: every entry is there, every named test exists, and every
// Faults test is named.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "ops/compare.h"
#include "ops/fault_list.h"
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

// Whether a test that each implementation ran is one that it should have run: RunLog. Names of
// other programs, and cells that no line fills: tools/faults_matrix.py.
TEST(FaultsList, HasEveryEntryAndATestForEveryName) {
  const auto list = faults();
  if (!list) GTEST_SKIP() << "the sources are not on this machine";
  const std::set<std::string> tests = tests_of_this_program();
  const bool on_device = memory_under_test() != &host();
  std::set<std::string> found, named;
  for (const Fault& fault : *list) {
    EXPECT_TRUE(found.insert(fault.id).second) << fault.id << " twice";
    for (const FaultLine& line : fault.lines)
      for (const std::string& name : line.tests) {
        named.insert(name);
        const std::size_t colon = name.find(':');
        const std::string program = name.substr(0, colon == std::string::npos ? 0 : colon);
        if (program.empty()) {
          EXPECT_TRUE(tests.count(name)) << fault.id << " names no test: " << name;
        } else if (program == "device" && on_device) {
          EXPECT_TRUE(tests.count(name.substr(colon + 1)))
              << fault.id << " names no test: " << name;
        }
      }
  }
  EXPECT_EQ(found, all_entries());
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
