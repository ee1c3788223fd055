// SPDX-License-Identifier: Apache-2.0
#include "report.h"

#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <ctime>

namespace linattn::bench {
namespace {

__attribute__((format(printf, 1, 2))) std::string format(const char* pattern, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, pattern);
  std::vsnprintf(text, sizeof text, pattern, arguments);
  va_end(arguments);
  return text;
}

std::string percent(double share) { return share > 0 ? format("%.1f%%", 100 * share) : "-"; }

// Of all that a call must move, in its time, over what a copy moves.
double share_of_copy(Machine& machine, const Measurement& m) {
  const double copy = machine.copy_bandwidth();
  return copy > 0 ? static_cast<double>(m.traffic_bytes) / m.seconds / copy : 0;
}

std::string launches(const Measurement& m) {
  return (m.graph ? "graph" : "calls") +
         (m.sets > 1 ? ", " + std::to_string(m.sets) + " sets in turn" : std::string());
}

// The reason alone, when one row was asked for.
std::string last_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  const std::size_t at = text.rfind('\n');
  const std::size_t begin = at == std::string::npos ? 0 : text.find_first_not_of(' ', at + 1);
  return text.substr(begin);
}

constexpr int kNameWidth = 44;  // of the longest case

}  // namespace

std::string table_head() {
  return format("%-*s %-18s %9s %9s %9s %8s %8s %9s  %s", kNameWidth, "case", "implementation",
                "ms", "floor", "of floor", "of copy", "host us", "workspace", "timed as");
}

std::string table_line(Machine& machine, const TimedCase& c, const Measurement& m) {
  const std::string name = name_of(c);
  if (!m.refusal.empty())
    return format("%-*s refused: %.400s", kNameWidth, name.c_str(), last_line(m.refusal).c_str());
  const double floor = floor_seconds(machine, c);
  const std::string host =
      m.host_seconds > 0 ? format("%.1f", m.host_seconds * 1e6) : std::string("-");
  return format("%-*s %-18s %9.4f %9.4f %9s %8s %8s %8.1f%%  %s", kNameWidth, name.c_str(),
                m.implementation.c_str(), m.seconds * 1e3, floor * 1e3,
                percent(floor / m.seconds).c_str(), percent(share_of_copy(machine, m)).c_str(),
                host.c_str(),
                100 * static_cast<double>(m.workspace_bytes) / static_cast<double>(m.input_bytes),
                launches(m).c_str());
}

std::string check_head() {
  return format("%-*s %-18s %10s %10s", kNameWidth, "case", "implementation", "out", "state");
}

std::string check_line(const TimedCase& c, const Check& result) {
  const std::string name = name_of(c);
  if (!result.refusal.empty())
    return format("%-*s refused: %.400s", kNameWidth, name.c_str(),
                  last_line(result.refusal).c_str());
  return format("%-*s %-18s %10.2e %10.2e%s", kNameWidth, name.c_str(),
                result.implementation.c_str(), result.out_error, result.state_error,
                result.passed() ? "" : "  FAILED");
}

Json describe(const TimedCase& c) {
  Json json;
  json.add("case", name_of(c))
      .add("op", to_string(c.op))
      .add("pass", name_of(c.pass))
      .add("gates", name_of(c.gates))
      .add("device", c.device == Device::Type::kCpu ? "cpu" : "cuda")
      .add("lengths", lengths_of(c))
      .add("heads", c.heads)
      .add("value_heads", c.value_heads)
      .add("key_dim", c.key_dim)
      .add("value_dim", c.value_dim)
      .add("layout", c.layout == StateLayout::kKeyValue ? "key_value" : "value_key")
      .add("drafts", name_of(c.drafts))
      .add("scattered", static_cast<int>(c.scattered))
      .add("fused", static_cast<int>(c.fused))
      .add("dtype", to_string(c.dtype))
      .add("state_dtype", to_string(c.state_dtype))
      .add("floor_bytes", static_cast<std::int64_t>(floor_bytes(c)));
  return json;
}

Json record(Machine& machine, const TimedCase& c, const Measurement& m) {
  Json json = describe(c);
  json.add("implementation", m.implementation);
  if (!m.refusal.empty()) {
    json.add("refusal", last_line(m.refusal));
    return json;
  }
  const double floor = floor_seconds(machine, c);
  json.add("ms", m.seconds * 1e3)
      .add("ms_least", m.least * 1e3)
      .add("ms_most", m.most * 1e3)
      .add("repeats", m.repeats)
      .add("timed_as", launches(m))
      .add("floor_ms", floor * 1e3)
      .add("share_of_floor", floor / m.seconds)
      .add("input_bytes", m.input_bytes)
      .add("traffic_bytes", m.traffic_bytes);
  if (machine.copy_bandwidth() > 0) json.add("share_of_copy", share_of_copy(machine, m));
  if (m.host_seconds > 0) json.add("host_us", m.host_seconds * 1e6);
  json.add("workspace_bytes", m.workspace_bytes);
  if (m.saved_bytes) json.add("saved_bytes", *m.saved_bytes);
  return json;
}

Json record(const TimedCase& c, const Check& result) {
  Json json = describe(c);
  json.add("implementation", result.implementation);
  if (!result.refusal.empty()) {
    json.add("refusal", last_line(result.refusal));
    return json;
  }
  json.add("out_error", result.out_error)
      .add("state_error", result.state_error)
      .add("out_bound", result.out_bound)
      .add("state_bound", result.state_bound)
      .add("passed", static_cast<int>(result.passed()));
  return json;
}

Json preamble(Machine& machine) {
  char date[32];
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  Json json;
  json.add("date", date).add("library", linattn_version()).add("machine", machine.name());
  machine.describe(json);
  if (machine.copy_bandwidth() > 0)
    json.add("copy_bytes_per_second", machine.copy_bandwidth())
        .add("floor_bytes_per_second", kFloorBandwidth);
  if (machine.multiply_adds_per_second() > 0)
    json.add("multiply_adds_per_second", machine.multiply_adds_per_second());
  return json;
}

}  // namespace linattn::bench
