// SPDX-License-Identifier: Apache-2.0
#include "timed_case.h"

#include <algorithm>
#include <numeric>

#include "core/dtype.h"

namespace linattn::bench {
namespace {

constexpr std::int64_t kRaggedLengths[] = {1300, 547, 2048, 963, 271, 3063};
constexpr std::int64_t kRaggedSequences = std::size(kRaggedLengths);
constexpr std::int64_t kRaggedTokens = 8192;  // their sum

constexpr Gates kBoth{kForget | kLong};
constexpr Device::Type kCpu = Device::Type::kCpu;
constexpr DType kBf16 = DType::kBFloat16, kFp32 = DType::kFloat32;
constexpr StateLayout kKeyValue = StateLayout::kKeyValue;

// THE table. `gates` may hold several settings.
constexpr TimedCase kTable[] = {
    // KDA: a whole machine, then fewer heads, then one sequence that must be split.
    {.op = kda, .tokens = 8192, .heads = 96, .gates = kBoth, .score = true},
    {.op = kda,
     .sequences = kRaggedSequences,
     .tokens = kRaggedTokens,
     .heads = 96,
     .gates = kBoth,
     .ragged = true},
    {.op = kda, .sequences = 8, .tokens = 1024, .heads = 96, .gates = kBoth, .score = true},
    {.op = kda, .tokens = 8192, .heads = 64, .gates = Gates{kBoth | kUnbounded}, .score = true},
    {.op = kda, .tokens = 8192, .heads = 32, .gates = kBoth},
    {.op = kda, .tokens = 8192, .heads = 16, .gates = kBoth},
    {.op = kda, .tokens = 8192, .heads = 8, .gates = kBoth, .score = true},
    {.op = kda, .tokens = 65536, .heads = 4, .gates = kBoth, .score = true},
    {.op = kda, .tokens = 262144, .heads = 4, .gates = kBoth},
    {.op = kda, .tokens = 2048, .heads = 12, .gates = kBoth},
    {.op = kda, .tokens = 512, .heads = 64, .gates = kBoth, .score = true},
    // GDN, with value heads that share a key head.
    {.op = gdn, .tokens = 8192, .heads = 96, .gates = kBoth},
    {.op = gdn, .tokens = 8192, .heads = 64, .gates = kBoth, .score = true},
    {.op = gdn, .tokens = 8192, .heads = 16, .value_heads = 32, .gates = kBoth, .score = true},
    {.op = gdn, .tokens = 32768, .heads = 16, .value_heads = 32, .gates = kBoth},
    {.op = gdn, .tokens = 8192, .heads = 8, .value_heads = 32, .gates = kBoth},
    {.op = gdn, .tokens = 32768, .heads = 2, .value_heads = 8, .gates = kBoth},
    {.op = gdn, .sequences = 8, .tokens = 1024, .heads = 8, .value_heads = 32, .gates = kBoth},
    {.op = gdn, .tokens = 8192, .heads = 8, .gates = kBoth},
    {.op = gdn, .tokens = 65536, .heads = 4, .gates = kBoth},
    {.op = gdn, .tokens = 512, .heads = 64, .gates = kBoth},
    // Ops that add.
    {.op = gla, .tokens = 8192, .heads = 96, .gates = kBoth},
    {.op = gla, .tokens = 8192, .heads = 64, .gates = kBoth, .score = true},
    {.op = gla, .tokens = 8192, .heads = 8, .gates = kBoth},
    {.op = gla, .sequences = 8, .tokens = 1024, .heads = 96, .gates = kBoth},
    {.op = gla, .tokens = 65536, .heads = 4, .gates = kBoth},
    {.op = gla, .tokens = 512, .heads = 64, .gates = kBoth},
    {.op = lightning, .tokens = 8192, .heads = 96, .gates = kFixed},
    {.op = lightning, .tokens = 8192, .heads = 64, .gates = kFixed, .score = true},
    {.op = lightning, .tokens = 8192, .heads = 8, .gates = kFixed},
    {.op = lightning, .sequences = 8, .tokens = 1024, .heads = 96, .gates = kFixed},
    {.op = lightning, .tokens = 65536, .heads = 4, .gates = kFixed},
    {.op = lightning, .tokens = 512, .heads = 64, .gates = kFixed},
    // Decode: states read and written in place; then a 16-bit state, and drafts of a few tokens.
    {.op = kda, .sequences = 1, .tokens = 1, .heads = 32, .pass = Pass::kStep},
    {.op = kda, .sequences = 8, .tokens = 1, .heads = 32, .pass = Pass::kStep},
    {.op = kda, .sequences = 32, .tokens = 1, .heads = 32, .pass = Pass::kStep, .score = true},
    {.op = kda, .sequences = 128, .tokens = 1, .heads = 32, .pass = Pass::kStep},
    {.op = kda, .sequences = 256, .tokens = 1, .heads = 32, .pass = Pass::kStep, .score = true},
    {.op = kda,
     .sequences = 256,
     .tokens = 1,
     .heads = 32,
     .pass = Pass::kStep,
     .state_dtype = kBf16},
    {.op = gdn, .sequences = 64, .tokens = 1, .heads = 32, .pass = Pass::kStep},
    {.op = gla, .sequences = 64, .tokens = 1, .heads = 32, .pass = Pass::kStep},
    {.op = lightning,
     .sequences = 64,
     .tokens = 1,
     .heads = 32,
     .gates = kFixed,
     .pass = Pass::kStep},
    {.op = kda, .sequences = 64, .tokens = 1, .heads = 32, .pass = Pass::kStep},
    {.op = kda,
     .sequences = 64,
     .tokens = 1,
     .heads = 32,
     .pass = Pass::kStep,
     .state_dtype = kBf16},
    {.op = kda,
     .sequences = 64,
     .tokens = 1,
     .heads = 32,
     .pass = Pass::kStep,
     .layout = kKeyValue},
    {.op = kda,
     .sequences = 64,
     .tokens = 1,
     .heads = 32,
     .pass = Pass::kStep,
     .state_dtype = kBf16,
     .layout = kKeyValue},
    {.op = kda, .sequences = 64, .tokens = 1, .heads = 32, .pass = Pass::kStep, .scattered = true},
    {.op = kda,
     .sequences = 64,
     .tokens = 1,
     .heads = 32,
     .pass = Pass::kStep,
     .key_dim = 96,
     .value_dim = 192},
    {.op = gdn, .sequences = 64, .tokens = 1, .heads = 16, .value_heads = 32, .pass = Pass::kStep},
    // Fused: from the projections' outputs to what the last projection reads, in one launch.
    {.op = kda, .sequences = 1, .tokens = 1, .heads = 32, .pass = Pass::kStep, .fused = true},
    {.op = kda, .sequences = 8, .tokens = 1, .heads = 32, .pass = Pass::kStep, .fused = true},
    {.op = kda, .sequences = 32, .tokens = 1, .heads = 32, .pass = Pass::kStep, .fused = true},
    {.op = kda, .sequences = 128, .tokens = 1, .heads = 32, .pass = Pass::kStep, .fused = true},
    {.op = kda, .sequences = 256, .tokens = 1, .heads = 32, .pass = Pass::kStep, .fused = true},
    {.op = gdn,
     .sequences = 1,
     .tokens = 1,
     .heads = 16,
     .value_heads = 32,
     .pass = Pass::kStep,
     .fused = true},
    {.op = gdn,
     .sequences = 32,
     .tokens = 1,
     .heads = 16,
     .value_heads = 32,
     .pass = Pass::kStep,
     .fused = true},
    {.op = gdn,
     .sequences = 256,
     .tokens = 1,
     .heads = 16,
     .value_heads = 32,
     .pass = Pass::kStep,
     .fused = true},
    {.op = kda,
     .sequences = 256,
     .tokens = 1,
     .heads = 32,
     .pass = Pass::kStep,
     .state_dtype = kBf16,
     .fused = true},
    {.op = kda, .sequences = 64, .tokens = 4, .heads = 32, .pass = Pass::kStep, .fused = true},
    // Drafts.
    {.op = kda, .sequences = 64, .tokens = 2, .heads = 32, .pass = Pass::kStep},
    {.op = kda, .sequences = 64, .tokens = 4, .heads = 32, .pass = Pass::kStep},
    {.op = kda, .sequences = 64, .tokens = 8, .heads = 32, .pass = Pass::kStep},
    {.op = kda,
     .sequences = 64,
     .tokens = 4,
     .heads = 32,
     .pass = Pass::kStep,
     .drafts = Drafts::kColumns},
    {.op = kda,
     .sequences = 64,
     .tokens = 4,
     .heads = 32,
     .pass = Pass::kStep,
     .drafts = Drafts::kReplay},
    {.op = gla,
     .sequences = 64,
     .tokens = 4,
     .heads = 32,
     .pass = Pass::kStep,
     .dtype = kFp32,
     .drafts = Drafts::kCommit},
    {.op = kda,
     .sequences = 64,
     .tokens = 8,
     .heads = 32,
     .pass = Pass::kStep,
     .drafts = Drafts::kTree},
    // The CPU rows, op by op.
    {.op = kda, .tokens = 2048, .heads = 8, .device = kCpu, .dtype = kFp32, .score = true},
    {.op = gdn, .tokens = 2048, .heads = 8, .device = kCpu, .dtype = kFp32, .score = true},
    {.op = gla, .tokens = 2048, .heads = 8, .device = kCpu, .dtype = kFp32, .score = true},
    {.op = lightning, .tokens = 2048, .heads = 8, .gates = kFixed, .device = kCpu, .dtype = kFp32},
    {.op = simple_gla, .tokens = 2048, .heads = 8, .device = kCpu, .dtype = kFp32, .score = true},
    {.op = delta_rule, .tokens = 2048, .heads = 8, .gates = kFixed, .device = kCpu, .dtype = kFp32},
    {.op = linear_attention,
     .tokens = 2048,
     .heads = 8,
     .gates = kFixed,
     .device = kCpu,
     .dtype = kFp32},
    {.op = gdn2, .tokens = 2048, .heads = 8, .device = kCpu, .dtype = kFp32},
};

}  // namespace

const std::vector<TimedCase>& timed_cases() {
  static const std::vector<TimedCase> cases = [] {
    std::vector<TimedCase> all;
    for (TimedCase row : kTable) {
      if (row.value_heads == 0) row.value_heads = row.heads;
      const Gates settings = row.gates;
      for (const Gates gates : {kForget, kLong, kUnbounded, kFixed}) {
        row.gates = gates;
        if ((settings & gates) != 0) all.push_back(row);
      }
    }
    return all;
  }();
  return cases;
}

std::string name_of(Gates gates) {
  switch (gates) {
    case kForget:
      return "forget";
    case kLong:
      return "long";
    case kUnbounded:
      return "unbounded";
    case kFixed:
      break;
  }
  return "fixed";
}

std::string name_of(Pass pass) { return pass == Pass::kStep ? "step" : "forward"; }

std::string name_of(Drafts drafts) {
  constexpr const char* kNames[] = {"none", "columns", "tree", "replay", "commit"};
  return kNames[static_cast<int>(drafts)];
}

std::string name_of(const TimedCase& c) {
  std::string name = c.device == kCpu ? "cpu_" : "";
  name += to_string(c.op) + (c.pass == Pass::kStep ? "_step_" : "_");
  name += c.ragged ? "ragged" : std::to_string(c.sequences) + "x";
  name += std::to_string(c.tokens) + "_h" + std::to_string(c.heads);
  if (c.value_heads != c.heads) name += "_hv" + std::to_string(c.value_heads);
  if (c.key_dim != 128 || c.value_dim != 128)
    name += "_" + std::to_string(c.key_dim) + "x" + std::to_string(c.value_dim);
  if (c.layout == kKeyValue) name += "_key_value";
  if (c.scattered) name += "_scattered";
  if (c.fused) name += "_fused";
  if (c.drafts != Drafts::kNone) name += "_" + name_of(c.drafts);
  if (c.state_dtype != kFp32) name += "_state_" + to_string(c.state_dtype);
  return name + "_" + name_of(c.gates);
}

std::vector<std::int64_t> lengths_of(const TimedCase& c) {
  if (!c.ragged) return std::vector<std::int64_t>(static_cast<std::size_t>(c.sequences), c.tokens);
  std::vector<std::int64_t> lengths(std::begin(kRaggedLengths), std::end(kRaggedLengths));
  for (std::int64_t& length : lengths) length = length * c.tokens / kRaggedTokens;
  lengths.back() += c.tokens - std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  return lengths;
}

std::int64_t stored_states(const TimedCase& c) {
  if (c.drafts == Drafts::kColumns) return c.tokens;
  return c.drafts == Drafts::kTree || c.drafts == Drafts::kReplay ? 0 : 1;
}

std::int64_t channels(const TimedCase& c) {
  return 2 * std::int64_t{c.heads} * c.key_dim + std::int64_t{c.value_heads} * c.value_dim;
}

double floor_bytes(const TimedCase& c) {
  if (c.pass == Pass::kStep) {
    const auto states = static_cast<double>((1 + stored_states(c)) * c.sequences);
    const double rows = c.fused ? 2.0 * static_cast<double>(c.sequences * channels(c)) *
                                      (kConvWidth - 1) * static_cast<double>(size_of(c.dtype))
                                : 0;
    return states * static_cast<double>(size_of(c.state_dtype)) * c.value_heads * c.key_dim *
               c.value_dim +
           rows;
  }
  const double gate = c.op.gate == Gate::kChannel ? c.key_dim : c.op.gate == Gate::kHead ? 1 : 0;
  const double activations = 2.0 * c.heads * c.key_dim + 2.0 * c.value_heads * c.value_dim;
  return static_cast<double>(c.total_tokens()) *
         (activations * static_cast<double>(size_of(c.dtype)) + gate * c.value_heads * 2);
}

double multiply_adds(const TimedCase& c) {
  constexpr double kChunk = 32;
  const double state = static_cast<double>(c.key_dim) * c.value_dim;
  const double each =
      c.op.update == Update::kAdd
          ? 2 * state + kChunk / 2 * (c.key_dim + c.value_dim)
          : 3 * state + kChunk / 2 * (3 * c.key_dim + c.value_dim) + kChunk * kChunk / 6;
  return static_cast<double>(c.total_tokens()) * c.value_heads * each;
}

TimedCase reduced(const TimedCase& c) {
  constexpr std::int64_t kMostTokens = 1000, kMostSequences = 6;  // no multiple of a chunk
  constexpr std::int32_t kMostHeads = 3;
  TimedCase small = c;
  small.heads = std::min(c.heads, kMostHeads);
  small.value_heads = small.heads * (c.value_heads / c.heads);
  small.sequences = std::min(c.sequences, kMostSequences);
  small.tokens = std::min(c.tokens, c.ragged ? kMostTokens : kMostTokens / small.sequences);
  return small;
}

}  // namespace linattn::bench
