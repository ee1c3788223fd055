// SPDX-License-Identifier: Apache-2.0
//
// Every case of the table on every implementation that takes it.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "cases.h"
#include "ops/compare.h"
#include "ops/run.h"

namespace linattn::test {

void PrintTo(const Case& c, std::ostream* stream) { *stream << name_of(c); }

namespace {

class Conformance : public testing::TestWithParam<Case> {};

TEST_P(Conformance, AgreesWithOracle) { expect_agreement(make(GetParam())); }

INSTANTIATE_TEST_SUITE_P(Table, Conformance, testing::ValuesIn(kCases),
                         [](const auto& info) { return name_of(info.param); });

TEST(Table, NamesAreUnique) {
  std::set<std::string> names;
  for (const Case& c : kCases) EXPECT_TRUE(names.insert(name_of(c)).second) << name_of(c);
}

// Every option is met by an op of each class that kernels are compiled for.
TEST(Table, CoversEveryOptionInEveryClass) {
  std::map<std::string, std::uint32_t> seen;
  for (const Case& c : kCases) {
    const bool channel = c.op.op.gate == Gate::kChannel, delta = c.op.op.update != Update::kAdd;
    seen[std::string(channel ? "channel" : "head") + (delta ? " delta" : " add")] |= c.options;
  }
  ASSERT_EQ(seen.size(), 4u);
  for (const auto& [name, options] : seen) EXPECT_EQ(options, (kTree << 1) - 1) << name;
}

TEST(Table, CoversEveryOp) {
  for (const NamedOp& op : kAllOps) {
    std::set<Pass> passes;
    for (const Case& c : kCases)
      if (std::string(c.op.name) == op.name) passes.insert(c.pass);
    EXPECT_EQ(passes.size(), 3u) << op.name;
  }
}

// A table that everything refuses would pass: the oracle takes all of it, and the others their
// share.
TEST(Table, IsTaken) {
  std::map<std::string, int> taken, total;
  for (const Case& c : kCases) {
    const Scenario s = make(c);
    const bool may_wait = c.pass == Pass::kBackward && c.op.op == gdn2;  // comes with training
    const std::vector<std::string> rows = takers(s, host());
    const std::set<std::string> names(rows.begin(), rows.end());
    if (!may_wait) {
      EXPECT_TRUE(names.count(kOracle)) << "the oracle refuses " << s.name;
    }
    ++total[to_string(c.pass)];
    for (const std::string& row : rows) ++taken[to_string(c.pass) + " " + row];
  }
  for (const char* row : {kChunked, kEmulated})
    EXPECT_GT(taken[std::string("forward ") + row], total["forward"] * 8 / 10) << row;
}

}  // namespace
}  // namespace linattn::test
