// SPDX-License-Identifier: Apache-2.0
#include "ops/run_log.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "ops/fault_list.h"
#include "ops/run.h"

namespace linattn::test {
namespace {

struct Column {
  Pass pass;
  std::string row;
  bool operator<(const Column& other) const {
    return pass != other.pass ? pass < other.pass : row < other.row;
  }
};

struct Use {  // of an implementation, by one test
  bool ran = false;
  double seconds = 0;
};

class RunLog : public testing::EmptyTestEventListener {
 public:
  void add(Pass pass, const std::string& row, bool ran, double seconds) {
    const std::lock_guard lock(mutex_);
    Use& use = uses_[{pass, row}];
    use.ran = use.ran || ran;
    use.seconds += seconds;
  }

  void OnTestStart(const testing::TestInfo&) override { uses_.clear(); }

  void OnTestEnd(const testing::TestInfo& test) override {
    if (!test.result()->Skipped() && !test.result()->Failed())
      check_promises(std::string(test.test_suite_name()) + "." + test.name());
    for (const auto& [column, use] : uses_) {
      Count& count = counts_[column];
      ++(!use.ran ? count.refused : test.result()->Failed() ? count.failed : count.passed);
      count.seconds += use.seconds;
    }
  }

  void OnTestProgramEnd(const testing::UnitTest&) override {
    for (const auto& [column, count] : counts_)
      std::printf("[ implementation ] %s %s: %d passed, %d failed, %d refused, %.2f s\n",
                  column.row.c_str(), to_string(column.pass).c_str(), count.passed, count.failed,
                  count.refused, count.seconds);
  }

 private:
  // A test that failed counts against every implementation that it ran.
  struct Count {
    int passed = 0, failed = 0, refused = 0;
    double seconds = 0;
  };

  void check_promises(const std::string& test) {
    static const std::vector<Fault> list = faults().value_or(std::vector<Fault>{});
    const bool on_host = memory_under_test() == &host();
    for (const Pass pass : {Pass::kForward, Pass::kBackward, Pass::kStep})
      for (const std::string& row : implementations(pass)) {
        if (of_the_cpu(row) != on_host) continue;
        const auto use = uses_.find({pass, row});
        const bool ran = use != uses_.end() && use->second.ran;
        for (const Fault& fault : list) {
          const FaultLine* line = line_of(fault, pass, row);
          EXPECT_TRUE(ran || line == nullptr || !names(*line, test))
              << "tests/faults.txt counts on this test for " << fault.id << " and " << row << " "
              << to_string(pass) << ", which it did not run";
        }
      }
  }

  std::mutex mutex_;
  std::map<Column, Use> uses_;  // of the running test
  std::map<Column, Count> counts_;
};

RunLog& run_log() {
  static auto* log = new RunLog;
  return *log;
}

// Listens from the start of the run on: behind the printer, which then hears of a test's end last.
class Registrar : public testing::Environment {
  void SetUp() override { testing::UnitTest::GetInstance()->listeners().Append(&run_log()); }
};
[[maybe_unused]] const testing::Environment* kRegistered =
    testing::AddGlobalTestEnvironment(new Registrar);

}  // namespace

void log_run(Pass pass, const std::string& row, double seconds) {
  run_log().add(pass, row, true, seconds);
}
void log_refusal(Pass pass, const std::string& row) { run_log().add(pass, row, false, 0); }

}  // namespace linattn::test
