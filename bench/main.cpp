// SPDX-License-Identifier: Apache-2.0
//
// linattn-bench: times the cases of timed_case.cpp through the library's C++ API.
#include <getopt.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <regex>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "fma.h"
#include "json.h"
#include "machine.h"
#include "measure.h"
#include "report.h"
#include "timed_case.h"

namespace linattn::bench {
namespace {

constexpr char kUsage[] = R"(usage: linattn-bench [options]
Times linattn's forward and step; on the GPU if there is one, else on the CPU. docs/benchmarks.md explains the columns.
  --list                  print the cases and stop
  --filter REGEX          only cases whose name it finds
  --device cpu|cuda       where (default: cpu for rows named cpu.*, else cuda if there is a GPU)
  --implementation NAME   pin a row; without it the library chooses
  --repeats N             timed calls per case (default 20), fewer where a call takes long
  --threads N             threads of the CPU rows (default: one per core)
  --json FILE             write the results there too
  --check                 compare a small version of each case with the oracle; times nothing
  --score                 check, then time `make score`'s cases (or the filter's); one line of JSON
  --fma                   print one core's multiply-adds per second and stop
)";

struct Options {
  bool list = false, check = false, score = false, fma = false;
  std::string filter, device, implementation, json;
  int repeats = 20, threads = 0;
};

[[noreturn]] void stop(const std::string& text) {
  std::cerr << text;
  std::exit(2);
}

int positive(const char* text) {
  const int number = std::atoi(text);
  if (number < 1) stop(std::string("'") + text + "': expected a number of 1 or more\n");
  return number;
}

Options parse(int argc, char** argv) {
  static constexpr option kOptions[] = {{"list", no_argument, nullptr, 'l'},
                                        {"filter", required_argument, nullptr, 'f'},
                                        {"device", required_argument, nullptr, 'd'},
                                        {"implementation", required_argument, nullptr, 'i'},
                                        {"repeats", required_argument, nullptr, 'r'},
                                        {"threads", required_argument, nullptr, 't'},
                                        {"json", required_argument, nullptr, 'j'},
                                        {"check", no_argument, nullptr, 'c'},
                                        {"score", no_argument, nullptr, 's'},
                                        {"fma", no_argument, nullptr, 'm'},
                                        {"help", no_argument, nullptr, 'h'},
                                        {}};
  Options options;
  for (int letter; (letter = getopt_long(argc, argv, "", kOptions, nullptr)) != -1;) {
    switch (letter) {
      case 'l':
        options.list = true;
        break;
      case 'f':
        options.filter = optarg;
        break;
      case 'd':
        options.device = optarg;
        break;
      case 'i':
        options.implementation = optarg;
        break;
      case 'r':
        options.repeats = positive(optarg);
        break;
      case 't':
        options.threads = positive(optarg);
        break;
      case 'j':
        options.json = optarg;
        break;
      case 'c':
        options.check = true;
        break;
      case 's':
        options.score = true;
        break;
      case 'm':
        options.fma = true;
        break;
      case 'h':
        std::cout << kUsage;
        std::exit(0);
      default:
        stop(kUsage);
    }
  }
  if (optind < argc) stop(std::string("'") + argv[optind] + "' is no option\n" + kUsage);
  return options;
}

// The device that was asked for, or that suits; both are there, the host always.
struct Machines {
  std::unique_ptr<Machine> host, gpu;
  Machine& chosen() const { return gpu ? *gpu : *host; }
};

Machines make_machines(const Options& options) {
  Machines machines{make_cpu(options.threads), nullptr};
  const bool cpu_row = options.implementation.starts_with("cpu.");
  const std::string device = options.device.empty() && cpu_row ? "cpu" : options.device;
  if (device == "cpu") return machines;
  if (!device.empty() && device != "cuda")
    stop("--device is '" + device + "'; expected cpu or cuda\n");
  std::string reason;
  machines.gpu = make_cuda(reason);
  if (!machines.gpu && device == "cuda") stop("--device cuda: " + reason + "\n");
  return machines;
}

bool has_row(Pass pass, const std::string& name) {
  const std::vector<std::string> names = implementations(pass);
  return name.empty() || std::find(names.begin(), names.end(), name) != names.end();
}

std::vector<TimedCase> chosen_cases(const Options& options, std::optional<Device::Type> device) {
  const std::regex pattern(options.filter);
  const bool scored_only = options.score && options.filter.empty();
  std::vector<TimedCase> cases;
  for (const TimedCase& c : timed_cases()) {
    if (device && c.device != *device) continue;
    if (scored_only && !c.score) continue;
    if (!has_row(c.pass, options.implementation)) continue;
    if (std::regex_search(name_of(c), pattern)) cases.push_back(c);
  }
  if (cases.empty())
    stop("nothing to do: no case of this device has '" + options.filter + "' in its name" +
         (options.implementation.empty()
              ? "\n"
              : " and a row '" + options.implementation + "' in its pass\n"));
  return cases;
}

void write(const Options& options, Json json, const std::vector<Json>& rows) {
  if (options.json.empty()) return;
  std::ofstream file(options.json);
  file << json.add("rows", rows).text() << '\n';
  if (!file.flush()) throw std::runtime_error(options.json + " cannot be written");
}

int list(const Options& options) {
  std::vector<Json> rows;
  for (const TimedCase& c : chosen_cases(options, std::nullopt)) {
    rows.push_back(describe(c));
    std::cout << name_of(c) << '\n';
  }
  write(options, Json().add("library", linattn_version()), rows);
  return 0;
}

int time_all(const Machines& machines, const Options& options) {
  Machine& machine = machines.chosen();
  const std::vector<TimedCase> cases = chosen_cases(options, machine.device().type);
  std::vector<Json> rows;
  const Json head = preamble(machine);
  std::cout << head.text() << '\n' << table_head() << std::endl;
  for (const TimedCase& c : cases) {
    const Measurement m = measure(machine, c, options.implementation, options.repeats);
    std::cout << table_line(machine, c, m) << std::endl;
    rows.push_back(record(machine, c, m));
  }
  write(options, head, rows);
  return 0;
}

struct Gate {
  int cases = 0, passed = 0, refused = 0;
  double worst_error = 0, worst_share = 0;  // relative rms; the share of what is allowed
  std::string worst_case = "none";
  bool open() const { return passed > 0 && passed + refused == cases; }
};

// Cases that are the same when small are checked once.
Gate check_all(const Machines& machines, const Options& options, bool print,
               std::vector<Json>& rows) {
  Gate gate;
  std::set<std::string> seen;
  for (const TimedCase& full : chosen_cases(options, machines.chosen().device().type)) {
    const TimedCase c = reduced(full);
    if (!seen.insert(name_of(c)).second) continue;
    const Check result = check(machines.chosen(), *machines.host, c, options.implementation);
    if (print) std::cout << check_line(c, result) << std::endl;
    rows.push_back(record(c, result));
    ++gate.cases;
    if (!result.refusal.empty()) {
      ++gate.refused;
      continue;
    }
    gate.passed += result.passed() ? 1 : 0;
    for (const auto& [error, bound] : {std::pair(result.out_error, result.out_bound),
                                       std::pair(result.state_error, result.state_bound)})
      if (error / bound >= gate.worst_share) {
        gate.worst_share = error / bound;
        gate.worst_error = error;
        gate.worst_case = name_of(c);
      }
  }
  return gate;
}

int check_only(const Machines& machines, const Options& options) {
  std::vector<Json> rows;
  std::cout << check_head() << std::endl;
  const Gate gate = check_all(machines, options, true, rows);
  std::cout << gate.passed << " of " << gate.cases << " passed, " << gate.refused << " refused\n";
  write(options, preamble(machines.chosen()), rows);
  return gate.open() ? 0 : 1;
}

// No time of an implementation that fails its gate.
int score(const Machines& machines, const Options& options) {
  Machine& machine = machines.chosen();
  std::vector<Json> rows;
  const Gate gate = check_all(machines, options, false, rows);
  Json times, shares;
  double logarithms = 0;
  int timed = 0;
  std::string implementation = options.implementation;
  if (gate.open())
    for (const TimedCase& c : chosen_cases(options, machine.device().type)) {
      const Measurement m = measure(machine, c, options.implementation, options.repeats);
      if (!m.refusal.empty()) continue;
      implementation = m.implementation;
      const double share = floor_seconds(machine, c) / m.seconds;
      times.add(name_of(c), m.seconds * 1e3);
      shares.add(name_of(c), share);
      logarithms += std::log(share);
      ++timed;
    }
  Json line = preamble(machine);
  line.add("implementation", implementation)
      .add("passed", gate.passed)
      .add("cases", gate.cases)
      .add("refused", gate.refused)
      .add("worst_error", gate.worst_error)
      .add("worst_case", gate.worst_case)
      .add("worst_share_of_bound", gate.worst_share)
      .add("ms", times)
      .add("share_of_floor", shares)
      .add("score", timed == 0 ? 0.0 : std::exp(logarithms / timed));  // geometric mean of shares
  std::cout << line.text() << '\n';
  write(options, line, rows);
  return gate.open() ? 0 : 1;
}

int run(const Options& options) {
  if (options.fma) {
    std::printf("%.6g\n", fma_per_second());
    return 0;
  }
  if (options.list) return list(options);
  const Machines machines = make_machines(options);
  if (options.score) return score(machines, options);
  return options.check ? check_only(machines, options) : time_all(machines, options);
}

}  // namespace
}  // namespace linattn::bench

int main(int argc, char** argv) {
  try {
    return linattn::bench::run(linattn::bench::parse(argc, argv));
  } catch (const std::exception& error) {
    std::cerr << "linattn-bench: " << error.what() << '\n';
    return 1;
  }
}
