// SPDX-License-Identifier: MIT
// The replay's loop (replay.h). What is done at every step costs no more than the step's changes and its plan;
// everything else is done on every Nth.
#include "workload/replay.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "capillary/error.h"
#include "capillary/prefix_forest.h"
#include "fmt/format.h"

namespace capillary {
namespace {

using Clock = std::chrono::steady_clock;

double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

void check_options(const ReplayOptions& options) {
  const auto fail = [](const char* argument, const std::string& came, const char* expected) {
    throw InvalidArgument(
        five_parts("replay", argument, "is " + came, expected, "correct the option"));
  };
  const auto check_time = [&](const char* argument, double value) {
    if (!(value >= 0 && value <= 1e9)) {
      fail(argument, fmt::format("{}", value), "be from 0 to 1e9 us");
    }
  };
  if (options.num_layers < 1 || options.num_layers > 10000) {
    fail("num_layers", fmt::format("{}", options.num_layers), "be from 1 to 10000");
  }
  check_time("other_us", options.other_us);
  check_time("prefill_us", options.prefill_us);
  if (options.compare_every < 0) {
    fail("compare_every", fmt::format("{}", options.compare_every), "be 0 or more steps");
  }
  if (options.execute_every < 0) {
    fail("execute_every", fmt::format("{}", options.execute_every), "be 0 or more steps");
  }
  if (options.check_requests < 0) {
    fail("check_requests", fmt::format("{}", options.check_requests), "be 0 or more");
  }
}

class Replay {
 public:
  Replay(const Trace& trace, const ReplayOptions& options, const DeviceProfile& profile,
         check::Backend* backend)
      : options_(options),
        token_ids_(trace),
        batch_(trace, token_ids_, options.batching),
        tracker_(options.batching.page_size),
        planner_(options.shape, profile, {.mode = Mode::kAuto}),
        flat_(options.shape, profile, {.mode = Mode::kFlat}),
        shared_l2_(options.shape, profile, {.mode = Mode::kSharedL2}) {
    report_.trace_source = trace.source;
    report_.trace_requests = static_cast<int64_t>(trace.requests.size());
    report_.bad_lines = trace.num_bad_lines;
    report_.first_bad_line = trace.first_bad_line;
    report_.options = options;
    report_.profile = profile;
    if (options.execute_every > 0) {
      if (backend == nullptr) {
        throw InvalidArgument(five_parts("replay", "execute_every",
                                         fmt::format("is {}", options.execute_every),
                                         "be 0 where there is no backend", "pass a backend"));
      }
      report_.backend = backend->name();
      executor_ = std::make_unique<StepExecutor>(
          *backend, options.shape, options.batching.num_pages, options.batching.page_size,
          StepExecutor::Options{options.check_requests, options.seed});
    }
  }

  ReplayReport run(const ReplayHooks& hooks) {
    const Clock::time_point start = Clock::now();
    Clock::time_point told = start;
    while (true) {
      if (hooks.stop && hooks.stop()) {
        report_.interrupted = true;
        break;
      }
      if (!batch_.begin_step()) break;
      step(hooks);
      // Reading the clock at every step is cheap against planning; telling is not.
      if (hooks.progress && Clock::now() - told > std::chrono::milliseconds(100)) {
        told = Clock::now();
        take_stock(start);
        hooks.progress(report_);
      }
    }
    take_stock(start);
    if (hooks.progress) hooks.progress(report_);
    report_.series = series_.points();
    return std::move(report_);
  }

 private:
  void step(const ReplayHooks& hooks) {
    if (batch_.size() == 0) {  // a prefill of requests that wanted one token or none
      batch_.end_step(static_cast<double>(batch_.prefill_tokens()) * options_.prefill_us / 1e3);
      return;
    }
    SeriesPoint point;
    point.begin_ms = batch_.now_ms();
    point.steps = 1;
    point.requests = batch_.size();
    point.waiting = static_cast<int64_t>(batch_.num_waiting());

    Clock::time_point start = Clock::now();
    const PrefixForest& forest =
        tracker_.update(batch_.table(), batch_.seq_lens(), batch_.previous_row());
    report_.forest_time.add(us_since(start));
    report_.restructured_steps += tracker_.restructured() ? 1 : 0;
    start = Clock::now();
    const Plan& plan = planner_.update(forest);
    point.plan_us = us_since(start);
    report_.plan_time.add(point.plan_us);
    if (hooks.step) hooks.step(batch_, forest, plan);

    point.auto_us = plan.predicted_us();
    point.flat_tokens = forest.flat_tokens();
    point.unique_tokens = forest.unique_tokens();
    const int index = cluster_size_index(plan.cluster_size());
    if (index >= 0) point.cluster_steps[static_cast<size_t>(index)] = 1;
    if (options_.compare_every > 0 && report_.steps % options_.compare_every == 0) {
      compare(forest, point);
    }
    if (executor_ && report_.steps % options_.execute_every == 0) {
      executor_->execute(plan, forest, batch_);
    }

    const double step_us = options_.num_layers * (point.auto_us + options_.other_us) +
                           static_cast<double>(batch_.prefill_tokens()) * options_.prefill_us;
    batch_.end_step(step_us / 1e3);
    point.end_ms = batch_.now_ms();
    add(point);
  }

  void compare(const PrefixForest& forest, SeriesPoint& point) {
    point.compared_steps = 1;
    point.compared_auto_us = point.auto_us;
    point.compared_flat_us = flat_.plan(forest).predicted_us();
    point.compared_shared_l2_us = shared_l2_.plan(forest).predicted_us();
    if (point.compared_flat_us < point.auto_us) ++report_.slower_than_flat_steps;
    if (point.compared_flat_us > 0) {
      report_.worst_over_flat =
          std::max(report_.worst_over_flat, point.auto_us / point.compared_flat_us);
    }
  }

  void add(const SeriesPoint& point) {
    ++report_.steps;
    report_.requests_in_steps += point.requests;
    report_.flat_tokens += point.flat_tokens;
    report_.unique_tokens += point.unique_tokens;
    report_.auto_us += point.auto_us;
    report_.compared_steps += point.compared_steps;
    report_.compared_auto_us += point.compared_auto_us;
    report_.compared_flat_us += point.compared_flat_us;
    report_.compared_shared_l2_us += point.compared_shared_l2_us;
    for (size_t i = 0; i < point.cluster_steps.size(); ++i) {
      report_.cluster_steps[i] += point.cluster_steps[i];
    }
    series_.add(point);
  }

  void take_stock(Clock::time_point start) {
    report_.wall_seconds = us_since(start) / 1e6;
    report_.batching = batch_.counters();
    report_.cache = batch_.cache().stats();
    report_.first_too_long = batch_.first_too_long();
    report_.simulated_ms = batch_.now_ms();
    if (executor_) report_.execution = executor_->results();
  }

  ReplayOptions options_;
  TokenIds token_ids_;
  ContinuousBatch batch_;
  ForestTracker tracker_;
  Planner planner_;
  Planner flat_;
  Planner shared_l2_;
  std::unique_ptr<StepExecutor> executor_;
  Series series_;
  ReplayReport report_;
};

}  // namespace

double ReplayReport::hit_rate() const {
  return batching.prompt_tokens == 0 ? 0
                                     : static_cast<double>(batching.prompt_tokens_hit) /
                                           static_cast<double>(batching.prompt_tokens);
}

double ReplayReport::sharing() const {
  return unique_tokens == 0 ? 1
                            : static_cast<double>(flat_tokens) / static_cast<double>(unique_tokens);
}

double ReplayReport::mean_batch() const {
  return steps == 0 ? 0 : static_cast<double>(requests_in_steps) / static_cast<double>(steps);
}

int64_t ReplayReport::kv_bytes_per_token() const {
  const ModelShape& shape = options.shape;
  return int64_t{shape.num_kv_heads} * (shape.head_dim + shape.v_dim()) * dtype_bytes(shape.dtype);
}

ReplayReport run_replay(const Trace& trace, const ReplayOptions& options,
                        const DeviceProfile& profile, check::Backend* backend,
                        const ReplayHooks& hooks) {
  check_options(options);
  Replay replay(trace, options, profile, backend);
  return replay.run(hooks);
}

}  // namespace capillary
