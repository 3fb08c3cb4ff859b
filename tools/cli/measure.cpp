// SPDX-License-Identifier: MIT
// One step on random data, checked and timed (measure.h).
#include "cli/measure.h"

#include <algorithm>
#include <fstream>

#include "cli/common.h"
#include "fmt/format.h"

namespace capillary::cli {

check::CacheLayout parse_layout(std::string_view verb, std::string_view text) {
  using check::CacheLayout;
  std::string names;
  for (const CacheLayout layout :
       {CacheLayout::kNhd, CacheLayout::kHnd, CacheLayout::kPackedPage, CacheLayout::kPackedDim,
        CacheLayout::kCrossLayer, CacheLayout::kMixed}) {
    if (text == check::layout_name(layout)) return layout;
    names += (names.empty() ? "" : ", ") + std::string(check::layout_name(layout));
  }
  throw UsageError(five_parts(verb, "--layout", fmt::format("is '{}'", text),
                              fmt::format("be one of {}", names), "give one of these"));
}

int64_t available_memory_bytes() {
  std::ifstream info("/proc/meminfo");
  std::string word;
  while (info >> word) {
    int64_t kilobytes = 0;
    if (word == "MemAvailable:" && info >> kilobytes) return kilobytes * 1024;
  }
  return INT64_MAX;
}

check::HostBatch make_step_data(std::string_view verb, Step& step, check::CacheLayout layout) {
  compact_pages(&step.batch);
  const ModelShape& shape = step.shape;
  const int64_t slots = int64_t{step.batch.num_pages} * step.batch.page_size;
  const int64_t layers = layout == check::CacheLayout::kCrossLayer ? 3 : 1;
  const int64_t needed = slots * (layers * int64_t{dtype_bytes(shape.dtype)} *
                                      shape.num_kv_heads * (shape.head_dim + shape.v_dim()) +
                                  static_cast<int64_t>(sizeof(uint64_t)));
  const int64_t available = available_memory_bytes();
  if (needed > available / 10 * 9) {
    throw InvalidArgument(five_parts(
        verb, fmt::format("workload '{}'", step.name),
        fmt::format("needs {} of host memory", format_bytes(static_cast<double>(needed))),
        fmt::format("fit nine tenths of the {} that are free",
                    format_bytes(static_cast<double>(available))),
        "choose fewer tokens, requests or KV heads"));
  }
  check::BatchSpec spec;
  spec.shape = shape;
  spec.layout = layout;
  spec.table = check::adopt_table(step.batch.view(), step.batch.seq_lens, step.batch.page_size,
                                  step.batch.num_pages);
  check::HostBatch data = check::make_batch(spec);
  step.forest = PrefixForest::from_block_table(data.block_table_view(), data.seq_lens,
                                               step.batch.page_size);
  return data;
}

double Measurement::median_us(TimingKind kind) const {
  for (const auto& [measured, times] : times_us) {
    if (measured == kind) return median(times);
  }
  return -1;
}

Measurement measure_step(TimedDevice& device, check::HostBatch& data, const PrefixForest& forest,
                         const Plan& plan, int repeats, bool check) {
  Measurement measurement;
  device.load(data, forest, plan);
  if (check) {
    data.poison_outputs();
    const uint64_t fences = data.fence_hash();
    device.run_once();
    throw_if_interrupted();
    measurement.checked = true;
    measurement.comparison = check::compare_with_oracle(data, device.rounds_weights());
    measurement.passed = measurement.comparison.passed;
    measurement.failure = measurement.comparison.first_failure;
    if (data.fence_hash() != fences) {
      measurement.passed = false;
      measurement.failure = "the step wrote outside of its outputs";
    }
  }
  for (const TimingKind kind : device.timing_kinds()) {
    throw_if_interrupted();
    measurement.times_us.emplace_back(kind, device.time_us(kind, repeats));
  }
  return measurement;
}

}  // namespace capillary::cli
