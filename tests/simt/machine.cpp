// SPDX-License-Identifier: Apache-2.0
//
// A block's threads as fibers. Each runs until it waits; then the next one that can go on does, in
// rising and in falling order of threads by turns of the blocks, so that what a missing barrier
// leaves to chance shows itself. A block in which no thread can go on is reported, not waited for.
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "context.h"
#include "simt.h"

namespace simt {
namespace {

constexpr std::size_t kSharedAlignment = 128;

using Actions = std::deque<std::function<void()>>;

void run_first(Actions& actions) {
  const auto action = std::move(actions.front());
  actions.pop_front();
  action();
}
void run_all(Actions& actions) {
  while (!actions.empty()) run_first(actions);
}

struct Thread {
  explicit Thread(void (*body)()) : context(body) {}

  Context context;
  uint3 index{};
  bool ended = true;
  // It goes on when *counter >= value.
  const char* what = nullptr;
  const std::uint64_t* counter = nullptr;
  std::uint64_t value = 0;
  std::uint64_t meetings = 0;
  Actions open_group;
  std::deque<Actions> groups;

  bool can_go_on() const { return !ended && *counter >= value; }
};

struct alignas(64) Warp {
  std::byte values[2][32 * kValueBytes];
  std::byte out[2][kResultBytes];
  std::uint64_t arrivals = 0;
  const char* what = nullptr;  // the meeting that is awaited
};

struct NamedBarrier {
  std::uint64_t generation = 0;
  int arrived = 0;
};

struct Machine {
  Context main;
  std::vector<std::unique_ptr<Thread>> threads;  // as many as any block had
  int count = 0, live = 0, current = 0;          // of the block
  std::vector<Warp> warps;
  NamedBarrier barriers[16];
  std::unordered_map<const void*, Barrier> objects;
  Actions actions;
  std::vector<int> votes;
  bool falling = false;
  const std::function<void()>* body = nullptr;
  std::unique_ptr<unsigned char, decltype(&std::free)> shared{nullptr, &std::free};
};

Machine machine;
Thread& thread(int index) { return *machine.threads[static_cast<std::size_t>(index)]; }
Thread& self() { return thread(machine.current); }

[[noreturn]] void report_deadlock() {
  std::map<std::pair<int, std::string>, int> waits;
  for (int i = 0; i < machine.count; ++i)
    ++waits[{i / 32, thread(i).ended ? "their end" : thread(i).what}];
  for (const auto& [at, count] : waits)
    std::fprintf(stderr, "  warp %d: %d threads at %s\n", at.first, count, at.second.c_str());
  fail("no thread of block (%u, %u, %u) can go on", blockIdx.x, blockIdx.y, blockIdx.z);
}

// The next thread that can go on; -1: all have ended.
int next() {
  const int step = machine.falling ? machine.count - 1 : 1;
  for (;;) {
    int at = machine.current;
    for (int i = 0; i < machine.count; ++i) {
      at = (at + step) % machine.count;
      if (thread(at).can_go_on()) return at;
    }
    if (machine.live == 0) return -1;
    if (machine.actions.empty()) report_deadlock();
    run_first(machine.actions);
  }
}

void change_from(Context& from) {
  const int to = next();
  if (to < 0) return Context::change(from, machine.main);
  machine.current = to;
  threadIdx = self().index;
  if (&self().context != &from) Context::change(from, self().context);
}

void end_barrier_if_complete(NamedBarrier& barrier, int threads) {
  if (barrier.arrived < threads) return;
  barrier.arrived = 0;
  ++barrier.generation;
}

// Of a thread, for one block after the other.
void run_threads() {
  for (;;) {
    (*machine.body)();
    Thread& me = self();
    close_group();
    run_groups(0);
    me.ended = true;
    --machine.live;
    NamedBarrier& all = machine.barriers[0];
    if (all.arrived > 0) end_barrier_if_complete(all, machine.live);
    change_from(me.context);
  }
}

const std::uint64_t kNothing = 0;

void run_block(int threads, std::size_t shared_bytes) {
  while (machine.threads.size() < static_cast<std::size_t>(threads))
    machine.threads.push_back(std::make_unique<Thread>(run_threads));
  machine.count = machine.live = threads;
  machine.warps.assign(static_cast<std::size_t>(threads + 31) / 32, Warp{});
  machine.votes.assign(static_cast<std::size_t>(threads), 0);
  for (auto& barrier : machine.barriers) barrier = {};
  machine.objects.clear();
  std::memset(machine.shared.get(), 0xff, shared_bytes);
  for (int i = 0; i < threads; ++i) {
    Thread& t = thread(i);
    t.index = {static_cast<unsigned>(i) % blockDim.x,
               static_cast<unsigned>(i) / blockDim.x % blockDim.y,
               static_cast<unsigned>(i) / blockDim.x / blockDim.y};
    t.ended = false;
    t.what = "its start";
    t.counter = &kNothing;
    t.value = t.meetings = 0;
  }
  machine.current = machine.falling ? 0 : threads - 1;  // before the first one
  change_from(machine.main);
  run_all(machine.actions);
  machine.falling = !machine.falling;
}

}  // namespace

void fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::fprintf(stderr, "simt: ");
  std::vfprintf(stderr, format, arguments);
  std::fprintf(stderr, "\n");
  va_end(arguments);
  std::abort();
}

void wait_for(const char* what, const std::uint64_t& counter, std::uint64_t value) {
  Thread& me = self();
  me.what = what;
  me.counter = &counter;
  me.value = value;
  if (!me.can_go_on()) change_from(me.context);
}

Meeting meet(const char* what, const void* mine, std::size_t bytes, Finish finish) {
  if (machine.count % 32 != 0) fail("%s: the block's last warp is not whole", what);
  Thread& me = self();
  Warp& warp = machine.warps[static_cast<std::size_t>(machine.current / 32)];
  const std::size_t slot = me.meetings++ % 2;
  if (warp.arrivals % 32 == 0)
    warp.what = what;
  else if (warp.what != what && std::strcmp(warp.what, what) != 0)
    fail("lanes of warp %d meet at %s and at %s", machine.current / 32, warp.what, what);
  std::memcpy(warp.values[slot] + bytes * static_cast<std::size_t>(machine.current % 32), mine,
              bytes);
  if (++warp.arrivals % 32 == 0 && finish != nullptr) finish(warp.values[slot], warp.out[slot]);
  wait_for(what, warp.arrivals, 32 * me.meetings);
  return {warp.values[slot], warp.out[slot]};
}

void barrier(const char* what, int id, int threads) {
  NamedBarrier& barrier = machine.barriers[id];
  const std::uint64_t value = barrier.generation + 1;
  ++barrier.arrived;
  end_barrier_if_complete(barrier, threads == 0 ? machine.live : threads);
  wait_for(what, barrier.generation, value);
}

void when_all_wait(std::function<void()> action) { machine.actions.push_back(std::move(action)); }
void defer(std::function<void()> action) { self().open_group.push_back(std::move(action)); }
void close_group() {
  self().groups.push_back(std::move(self().open_group));
  self().open_group.clear();
}
void run_groups(std::size_t but) {
  auto& groups = self().groups;
  while (groups.size() > but) {
    run_all(groups.front());
    groups.pop_front();
  }
}

unsigned char* dynamic_shared() { return machine.shared.get(); }
Barrier& barrier_at(const void* address) { return machine.objects[address]; }

void run_grid(dim3 grid, dim3 block, std::size_t shared_bytes, const std::function<void()>& body) {
  machine.body = &body;
  machine.shared.reset(static_cast<unsigned char*>(std::aligned_alloc(
      kSharedAlignment, (shared_bytes / kSharedAlignment + 1) * kSharedAlignment)));
  gridDim = grid;
  blockDim = block;
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        blockIdx = {x, y, z};
        run_block(static_cast<int>(block.x * block.y * block.z), shared_bytes);
      }
}

}  // namespace simt

int __syncthreads_or(int predicate) {
  auto& votes = simt::machine.votes;
  votes[static_cast<std::size_t>(simt::machine.current)] = predicate;
  simt::barrier("__syncthreads_or", 0, 0);
  const bool any = std::any_of(votes.begin(), votes.end(), [](int vote) { return vote != 0; });
  simt::barrier("__syncthreads_or", 0, 0);
  return any;
}
