// SPDX-License-Identifier: MIT
// replay: a serving trace through RadixCache, continuous batching, forest and planner, step by step; and, where
// asked, through a backend and the oracle. docs/replay.md describes the model of time and every figure.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "capillary/device_profile.h"
#include "capillary/plan.h"
#include "capillary/radix_cache.h"
#include "check/backend.h"
#include "workload/replay_batch.h"
#include "workload/replay_execute.h"
#include "workload/replay_stats.h"
#include "workload/trace.h"

namespace capillary {

struct ReplayOptions {
  BatchingOptions batching;
  ModelShape shape;
  // A step takes num_layers * (predicted attention + other_us) + prefill tokens * prefill_us.
  int32_t num_layers = 32;
  double other_us = 100;   // all of a layer but attention
  double prefill_us = 25;  // a token, all layers
  // The modes flat and shared-l2 are planned on every so many steps; 0: never.
  int64_t compare_every = 16;
  int64_t execute_every = 0;  // 0: never
  int32_t check_requests = 4;
  uint64_t seed = 1;
};

struct ReplayReport {
  std::string trace_source;
  int64_t trace_requests = 0;
  int64_t bad_lines = 0;
  std::string first_bad_line;
  ReplayOptions options;
  DeviceProfile profile;
  std::string backend;  // empty: nothing was executed
  bool interrupted = false;
  double wall_seconds = 0;

  BatchingCounters batching;
  RadixCacheStats cache;
  std::string first_too_long;
  int64_t steps = 0;  // on which something was decoded
  int64_t requests_in_steps = 0;
  double simulated_ms = 0;
  int64_t flat_tokens = 0;  // summed over steps
  int64_t unique_tokens = 0;
  double auto_us = 0;  // predicted, summed over steps
  int64_t compared_steps = 0;
  // Over the compared steps alone, so that the three can be set side by side.
  double compared_auto_us = 0;
  double compared_flat_us = 0;
  double compared_shared_l2_us = 0;
  int64_t slower_than_flat_steps = 0;  // compared steps on which flat was predicted to be faster
  double worst_over_flat = 0;          // predicted time of auto over that of flat, at worst
  std::array<int64_t, kNumClusterSizes> cluster_steps{};
  TimeHistogram forest_time;
  int64_t restructured_steps = 0;  // on which the forest changed in more than lengths
  TimeHistogram plan_time;         // mode auto
  ExecutionResults execution;
  std::vector<SeriesPoint> series;

  double hit_rate() const;  // of prompt tokens
  double sharing() const;   // flat / unique bytes; 1 where nothing was decoded
  double mean_batch() const;
  int64_t kv_bytes_per_token() const;  // one layer
};

struct ReplayHooks {
  std::function<bool()> stop;  // polled at every step
  // Called now and then, and at the end: the report so far, without its series.
  std::function<void(const ReplayReport&)> progress;
  // Called on every step on which something is decoded, once it is planned.
  std::function<void(const ContinuousBatch&, const PrefixForest&, const Plan&)> step;
};

// backend: may be null where execute_every is 0. Throws InvalidArgument/UnsupportedConfig before the first step
// for options that cannot be. A failed check does not end the run: it is counted and told.
ReplayReport run_replay(const Trace& trace, const ReplayOptions& options,
                        const DeviceProfile& profile, check::Backend* backend,
                        const ReplayHooks& hooks = {});

}  // namespace capillary
