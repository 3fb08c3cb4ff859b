// SPDX-License-Identifier: MIT
// One step on random data: laid out in fenced host memory, run once and checked against the oracle on exactly
// the inputs that are then timed. run measures one step, bench many.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/batch_options.h"
#include "cli/timing.h"
#include "check/batch.h"
#include "check/compare.h"

namespace capillary::cli {

check::CacheLayout parse_layout(std::string_view verb, std::string_view text);

// Fills the step's pages with random data. Page ids are renumbered where the pool would be mostly holes, and
// the step's forest is made anew, for its page offsets are those of the fenced block table.
// Throws InvalidArgument when the batch would not fit the memory that is free.
check::HostBatch make_step_data(std::string_view verb, Step& step, check::CacheLayout layout);

struct Measurement {
  bool checked = false;
  bool passed = true;
  std::string failure;
  check::Comparison comparison;
  std::vector<std::pair<TimingKind, std::vector<double>>> times_us;

  // Median in microseconds; nothing measured: a negative number.
  double median_us(TimingKind kind) const;
};

Measurement measure_step(TimedDevice& device, check::HostBatch& data, const PrefixForest& forest,
                         const Plan& plan, int repeats, bool check);

// Bytes that a machine can still give out; a large number where that is not known.
int64_t available_memory_bytes();

}  // namespace capillary::cli
