// SPDX-License-Identifier: MIT
// One decode step that lives on the GPU from the start: random caches made there (gigabytes in milliseconds),
// a plain reference kernel to check against, and the three ways a step is timed. For benches; the checks in
// tools/check are the thorough ones and go through host memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "capillary/cuda.h"
#include "capillary/plan.h"
#include "capillary/prefix_forest.h"

namespace capillary::device {

enum class Layout { kNhd, kHnd };

struct StepSpec {
  ModelShape shape;
  BlockTableView table;
  std::span<const int32_t> seq_lens;
  int32_t page_size = 16;
  int32_t num_pages = 0;
  Layout layout = Layout::kHnd;
  int device = 0;
  uint64_t seed = 1;
};

enum class Timing { kGraphCold, kGraphDependent, kGraphWarm, kEager };

struct CheckOutcome {
  double worst_rel_err = 0;  // relative Frobenius error of a row, over the rows looked at
  double worst_lse_err = 0;
  int64_t rows = 0;
  bool passed = false;
};

class DeviceStep {
 public:
  explicit DeviceStep(const StepSpec& spec);
  ~DeviceStep();
  DeviceStep(const DeviceStep&) = delete;
  DeviceStep& operator=(const DeviceStep&) = delete;

  void load(const Plan& plan);
  // Runs the loaded plan on poisoned outputs and compares up to max_queries queries, all heads, with a plain
  // kernel that knows the block table alone.
  CheckOutcome check(int max_queries = 48);
  // Microseconds a step, one entry a repeat. Cold: each launch of a graph reads another copy of the caches,
  // together several times the L2 (or one copy, where that alone is). Dependent: the same with programmatic dependent
  // launches, so that a step's start overlaps the end of the step before. Warm: the same copy again and again.
  std::vector<double> time_us(Timing kind, int repeats);
  // One cold launch of a CAPILLARY_TRACE build as a Chrome trace (chrome://tracing, Perfetto): a process an SM, a
  // thread a track. Throws UnsupportedConfig in other builds.
  std::string trace_json();
  // Keeps the output bits and compares with the next call's.
  uint64_t output_hash();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Ceilings of the card in this very run: streaming read (GB/s) and a bf16 matrix product's rate is left to
// others. Used for floors.
double measure_read_gbps(int device);

}  // namespace capillary::device
