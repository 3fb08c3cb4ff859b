// SPDX-License-Identifier: MIT
// The replay's simulation: what it counts on a trace worked out by hand, what holds on every step of any trace
// (forest, table and cache agree with each other and with a rebuild), and that its check can fail.
#include "workload/replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "capillary/error.h"
#include "support/forest_compare.h"
#include "workload/generate.h"

namespace capillary {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr ModelShape kSmallShape = {.num_q_heads = 4, .num_kv_heads = 2, .head_dim = 16};

Trace hand_trace(std::vector<TraceRequest> requests) {
  Trace trace;
  trace.source = "by hand";
  trace.requests = std::move(requests);
  return trace;
}

Trace generated(TraceKind kind, int32_t num_requests, uint64_t seed = 1) {
  return generate_trace({.kind = kind,
                         .seed = seed,
                         .num_requests = num_requests,
                         .block_size = 16,
                         .requests_per_second = 50,
                         .length_scale = 0.05});
}

ReplayOptions small_options() {
  ReplayOptions options;
  options.batching = {
      .max_batch = 12, .num_pages = 4000, .page_size = 8, .max_prefill_tokens = 400};
  options.shape = kSmallShape;
  options.compare_every = 0;
  return options;
}

ReplayReport replay(const Trace& trace, const ReplayOptions& options,
                    const ReplayHooks& hooks = {}) {
  const auto backend = check::make_cpu_backend(2);
  return run_replay(trace, options, builtin_h200(), backend.get(), hooks);
}

int64_t output_tokens(const Trace& trace) {
  int64_t sum = 0;
  for (const TraceRequest& request : trace.requests) sum += request.output_length;
  return sum;
}

// Two requests with the same prompt of 64 tokens (4 pages), three tokens of output each.
TEST(Replay, CountsOfTwoEqualPrompts) {
  const Trace trace = hand_trace({{0, 64, 3, 32, {7, 9}}, {0, 64, 3, 32, {7, 9}}});
  ReplayOptions options = small_options();
  options.batching.page_size = 16;
  options.num_layers = 10;
  options.other_us = 50;
  options.prefill_us = 2;
  const ReplayReport report = replay(trace, options);
  EXPECT_EQ(report.batching.finished, 2);
  EXPECT_EQ(report.batching.prompt_tokens, 128);
  // The last token of a prompt is always computed, so of the second prompt's 4 pages 3 are hits.
  EXPECT_EQ(report.batching.prompt_tokens_hit, 48);
  EXPECT_DOUBLE_EQ(report.hit_rate(), 48.0 / 128);
  EXPECT_EQ(report.batching.generated_tokens, 6);
  // The prefill gives the first token, so two steps are left; they attend to 65 and 66 tokens.
  EXPECT_EQ(report.steps, 2);
  EXPECT_EQ(report.flat_tokens, 2 * 65 + 2 * 66);
  EXPECT_EQ(report.unique_tokens, (64 + 2) + (64 + 4));
  EXPECT_EQ(report.batching.largest_batch, 2);
  EXPECT_EQ(report.batching.longest_context, 66);
  EXPECT_EQ(report.restructured_steps, 1);
  // The prefill computes the 80 tokens that were no hits.
  EXPECT_NEAR(report.simulated_ms * 1e3, 10 * (report.auto_us + 2 * 50) + 2 * 80, 1e-6);
  EXPECT_EQ(report.kv_bytes_per_token(), 2 * (16 + 16) * 2);
}

TEST(Replay, PromptsThatPartShareTheBlocksBefore) {
  const Trace trace = hand_trace({{0, 64, 2, 32, {1, 2}}, {0, 64, 2, 32, {1, 3}}});
  ReplayOptions options = small_options();
  options.batching.page_size = 16;
  const ReplayReport report = replay(trace, options);
  EXPECT_EQ(report.batching.prompt_tokens_hit, 32);
  EXPECT_EQ(report.flat_tokens, 2 * 65);
  EXPECT_EQ(report.unique_tokens, 32 + 2 * 33);
}

TEST(Replay, RequestsThatWantOneTokenOrNoneAreNotDecoded) {
  const ReplayReport report = replay(
      hand_trace({{0, 20, 0, 32, {1}}, {0, 20, 1, 32, {2}}, {5, 20, 2, 32, {3}}}), small_options());
  EXPECT_EQ(report.batching.finished, 3);
  EXPECT_EQ(report.batching.generated_tokens, 3);
  EXPECT_EQ(report.steps, 1);
  EXPECT_EQ(report.flat_tokens, 21);
  EXPECT_GE(report.simulated_ms, 5);
}

TEST(Replay, NobodyIsServedBeforeArriving) {
  const Trace trace = hand_trace({{0, 8, 2, 8, {1}}, {60000, 8, 2, 8, {2}}});
  int32_t largest = 0;
  ReplayHooks hooks;
  hooks.step = [&](const ContinuousBatch& batch, const PrefixForest&, const Plan&) {
    largest = std::max(largest, batch.size());
    for (const ContinuousBatch::Running& running : batch.rows()) {
      EXPECT_LE(trace.requests[running.request].arrival_ms, batch.now_ms());
    }
  };
  const ReplayReport report = replay(trace, small_options(), hooks);
  EXPECT_EQ(largest, 1);
  EXPECT_GT(report.simulated_ms, 60000);
  ReplayOptions at_once = small_options();
  at_once.batching.time_scale = 0;
  EXPECT_EQ(replay(trace, at_once).batching.largest_batch, 2);
}

TEST(Replay, RequestsLongerThanThePoolAreCountedAndNamed) {
  ReplayOptions options = small_options();
  options.batching.num_pages = 4;
  const ReplayReport report =
      replay(hand_trace({{0, 16, 4, 16, {1}}, {0, 30, 4, 30, {2}}, {0, 16, 4, 16, {1}}}), options);
  EXPECT_EQ(report.batching.too_long, 1);
  EXPECT_EQ(report.first_too_long, "request 1 of the trace needs 5 pages, the pool has 4");
  EXPECT_EQ(report.batching.finished, 2);
}

// Eight requests grow by 300 tokens: the forest changes its structure when they join, and when the first pages
// of their own get full, which they all do on the same step.
TEST(Replay, AForestThatOnlyGrowsIsNotRestructured) {
  std::vector<TraceRequest> requests;
  for (int64_t i = 0; i < 8; ++i) requests.push_back({0, 80, 301, 40, {1, 2}});
  const ReplayReport report = replay(hand_trace(std::move(requests)), small_options());
  EXPECT_EQ(report.steps, 300);
  EXPECT_EQ(report.restructured_steps, 2);
}

// Everything that must hold on a step, whatever the trace.
class EveryStep {
 public:
  explicit EveryStep(const ReplayOptions& options) : options_(options) {}

  void check(const ContinuousBatch& batch, const PrefixForest& forest, const Plan& plan) {
    ++num_steps;
    ASSERT_LE(batch.size(), options_.batching.max_batch);
    const auto rebuilt =
        PrefixForest::from_block_table(batch.table(), batch.seq_lens(), forest.page_size());
    ASSERT_EQ(testing::difference(forest, rebuilt), "") << "step " << num_steps;
    validate_plan(plan.data(), plan.size_bytes(), forest);
    batch.cache().check_invariants();
    check_rows(batch);
    check_pages(batch);
    // The tracker has one forest and changes it.
    if (forest_ == nullptr) forest_ = &forest;
    ASSERT_EQ(forest_, &forest);
  }

  int64_t num_steps = 0;
  int64_t num_row_changes = 0;  // steps whose rows are not those of the step before

 private:
  void check_rows(const ContinuousBatch& batch) {
    std::vector<int64_t> admissions;
    bool changed = batch.rows().size() != admissions_.size();
    for (size_t row = 0; row < batch.rows().size(); ++row) {
      const ContinuousBatch::Running& running = batch.rows()[row];
      admissions.push_back(running.admission);
      const int32_t previous = batch.previous_row()[row];
      if (previous >= 0) {
        ASSERT_LT(static_cast<size_t>(previous), admissions_.size());
        ASSERT_EQ(admissions_[static_cast<size_t>(previous)], running.admission);
      }
      changed = changed || previous != static_cast<int32_t>(row);
    }
    num_row_changes += changed ? 1 : 0;
    admissions_ = std::move(admissions);
  }

  // A page in use holds the same tokens for everybody who uses it.
  static void check_pages(const ContinuousBatch& batch) {
    std::map<int32_t, std::vector<int32_t>> content;
    const int64_t page_size = batch.cache().page_size();
    for (size_t row = 0; row < batch.rows().size(); ++row) {
      const std::vector<int32_t>& tokens = batch.rows()[row].tokens;
      const int32_t* ids =
          batch.table().data + static_cast<int64_t>(row) * batch.table().row_stride;
      ASSERT_EQ(static_cast<size_t>(batch.seq_lens()[row]), tokens.size());
      for (int64_t page = 0; page * page_size < static_cast<int64_t>(tokens.size()); ++page) {
        const auto begin = tokens.begin() + page * page_size;
        const auto size = std::min<int64_t>(page_size, tokens.end() - begin);
        const auto [found, added] = content.try_emplace(ids[page], begin, begin + size);
        ASSERT_TRUE(added ||
                    (size == page_size &&
                     std::equal(begin, begin + size, found->second.begin(), found->second.end())))
            << "page " << ids[page] << " of row " << row;
      }
      ASSERT_EQ(
          ids[batch.rows()[row].num_pages < batch.table().num_columns ? batch.rows()[row].num_pages
                                                                      : 0] ==
              ContinuousBatch::kWildPage,
          batch.rows()[row].num_pages < batch.table().num_columns);
    }
  }

  const ReplayOptions& options_;
  std::vector<int64_t> admissions_;  // by row, of the step before
  const PrefixForest* forest_ = nullptr;
};

class ReplayOfKind : public ::testing::TestWithParam<TraceKindName> {};

TEST_P(ReplayOfKind, ForestIsUpdatedStepByStepAndEqualsARebuild) {
  const Trace trace = generated(GetParam().kind, 60);
  const ReplayOptions options = small_options();
  EveryStep every_step(options);
  ReplayHooks hooks;
  hooks.step = [&](const auto&... step) { every_step.check(step...); };
  const ReplayReport report = replay(trace, options, hooks);
  EXPECT_EQ(report.steps, every_step.num_steps);
  EXPECT_EQ(report.batching.finished, 60);
  EXPECT_EQ(report.batching.generated_tokens, output_tokens(trace));
  // Steps on which nobody joined or left change lengths alone, but for the once in a request's life that its
  // first page of its own gets full.
  EXPECT_LE(report.restructured_steps, every_step.num_row_changes + 60);
  EXPECT_LT(report.restructured_steps, report.steps);
}

TEST_P(ReplayOfKind, AFullPoolEvictsAndPreemptsAndLosesNothing) {
  const Trace trace = generated(GetParam().kind, 60);
  int64_t longest = 0;
  for (const TraceRequest& request : trace.requests) {
    longest = std::max(longest, int64_t{request.input_length} + request.output_length);
  }
  ReplayOptions options = small_options();
  options.batching.time_scale = 0;
  options.batching.num_pages = longest / options.batching.page_size + 12;
  options.execute_every = 5;
  EveryStep every_step(options);
  ReplayHooks hooks;
  hooks.step = [&](const auto&... step) { every_step.check(step...); };
  const ReplayReport report = replay(trace, options, hooks);
  EXPECT_EQ(report.batching.finished, 60);
  EXPECT_EQ(report.batching.generated_tokens, output_tokens(trace));
  EXPECT_GT(report.cache.pages_evicted, 0);
  EXPECT_EQ(report.cache.free_pages + report.cache.cached_pages, options.batching.num_pages);
  EXPECT_EQ(report.cache.locked_pages, 0);
  EXPECT_GT(report.execution.checked_rows, 0);
  EXPECT_EQ(report.execution.failures, 0) << report.execution.first_failure;
  EXPECT_LE(report.execution.worst_of_bound, 1);
}

INSTANTIATE_TEST_SUITE_P(Kinds, ReplayOfKind,
                         ::testing::ValuesIn(trace_kinds().begin(), trace_kinds().end()),
                         [](const auto& kind) {
                           std::string name = kind.param.name;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

TEST(Replay, PreemptedRequestsComeBackAndFinish) {
  // Four requests of 8 pages each in the end, 20 pages: they all fit at first.
  std::vector<TraceRequest> requests;
  for (int64_t i = 0; i < 4; ++i) requests.push_back({0, 24, 40, 24, {i}});
  ReplayOptions options = small_options();
  options.batching.num_pages = 20;
  options.execute_every = 1;
  options.check_requests = 4;
  const ReplayReport report = replay(hand_trace(std::move(requests)), options);
  EXPECT_GT(report.batching.preemptions, 0);
  EXPECT_GT(report.batching.returned_tokens, 0);
  EXPECT_EQ(report.batching.finished, 4);
  EXPECT_EQ(report.batching.generated_tokens, 4 * 40);
  EXPECT_EQ(report.execution.executed_steps, report.steps);
  EXPECT_EQ(report.execution.failures, 0) << report.execution.first_failure;
}

TEST(Replay, TwoRunsAgree) {
  const Trace trace = generated(TraceKind::kMixed, 40);
  ReplayOptions options = small_options();
  options.execute_every = 7;
  options.compare_every = 3;
  const ReplayReport a = replay(trace, options);
  const ReplayReport b = replay(trace, options);
  EXPECT_EQ(a.steps, b.steps);
  EXPECT_EQ(a.simulated_ms, b.simulated_ms);
  EXPECT_EQ(a.flat_tokens, b.flat_tokens);
  EXPECT_EQ(a.unique_tokens, b.unique_tokens);
  EXPECT_EQ(a.compared_flat_us, b.compared_flat_us);
  EXPECT_EQ(a.cluster_steps, b.cluster_steps);
  EXPECT_EQ(a.execution.worst_error, b.execution.worst_error);
  EXPECT_EQ(a.compared_steps, (a.steps + 2) / 3);
  EXPECT_EQ(a.execution.executed_steps, (a.steps + 6) / 7);
  EXPECT_LE(a.compared_auto_us, a.compared_flat_us);
}

TEST(Replay, InterruptedKeepsWhatWasDone) {
  const Trace trace = generated(TraceKind::kMixed, 40);
  int polls = 0;
  ReplayHooks hooks;
  hooks.stop = [&] { return ++polls > 25; };
  const ReplayReport report = replay(trace, small_options(), hooks);
  EXPECT_TRUE(report.interrupted);
  EXPECT_GT(report.steps, 0);
  EXPECT_LE(report.steps, 25);
  EXPECT_LT(report.batching.finished, 40);
  int64_t steps_of_series = 0;
  for (const SeriesPoint& point : report.series) steps_of_series += point.steps;
  EXPECT_EQ(steps_of_series, report.steps);
  EXPECT_EQ(report.plan_time.count(), report.steps);
}

// Rounds one element of one row away on the third step that it executes.
class FaultyBackend final : public check::Backend {
 public:
  std::string name() const override { return "faulty"; }
  Support supports(const check::CheckCase& check_case) const override {
    return right_->supports(check_case);
  }
  bool rounds_weights() const override { return right_->rounds_weights(); }
  void decode(const Plan& plan, const PrefixForest& forest, check::HostBatch& batch) override {
    right_->decode(plan, forest, batch);
    if (++num_steps_ != 3) return;
    std::byte* out = batch.buffers[batch.out.buffer].bytes.data();
    uint16_t element = 0;
    std::memcpy(&element, out, sizeof(element));
    element ^= 0x0100;
    std::memcpy(out, &element, sizeof(element));
  }

 private:
  std::unique_ptr<check::Backend> right_ = check::make_cpu_backend(1);
  int num_steps_ = 0;
};

TEST(Replay, AWrongRowIsNoticedAndNamed) {
  ReplayOptions options = small_options();
  options.execute_every = 1;
  options.check_requests = 1000;
  FaultyBackend faulty;
  const ReplayReport report =
      run_replay(generated(TraceKind::kMixed, 20), options, builtin_h200(), &faulty);
  EXPECT_EQ(report.batching.finished, 20);
  EXPECT_EQ(report.execution.failures, 1);
  EXPECT_THAT(report.execution.first_failure,
              AllOf(HasSubstr("executed step 2, request "), HasSubstr("(1 rows of it differ)")));
}

TEST(Replay, RefusesOptionsThatCannotBe) {
  const Trace trace = hand_trace({{0, 8, 2, 8, {1}}});
  const auto message = [&](auto change) -> std::string {
    ReplayOptions options = small_options();
    change(options);
    try {
      run_replay(trace, options, builtin_h200(), nullptr);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "accepted";
  };
  const auto refused = [](const char* argument, const char* came, const char* expected) {
    return std::string("replay: ") + argument + " is " + came + "; must " + expected +
           "; correct the option";
  };
  EXPECT_EQ(message([](ReplayOptions& o) { o.batching.max_batch = 0; }),
            refused("max_batch", "0", "be from 1 to 65536 requests"));
  EXPECT_EQ(message([](ReplayOptions& o) { o.batching.page_size = 0; }),
            refused("page_size", "0", "be from 1 to 65536 tokens"));
  EXPECT_EQ(message([](ReplayOptions& o) { o.batching.num_pages = 0; }),
            refused("pages", "0", "be from 1 to 2147483646"));
  EXPECT_EQ(message([](ReplayOptions& o) { o.batching.max_prefill_tokens = 0; }),
            refused("max_prefill_tokens", "0", "be at least 1"));
  EXPECT_EQ(message([](ReplayOptions& o) { o.batching.time_scale = -1; }),
            refused("time_scale", "-1", "be from 0 to 1e6"));
  EXPECT_EQ(message([](ReplayOptions& o) { o.num_layers = 0; }),
            refused("num_layers", "0", "be from 1 to 10000"));
  EXPECT_EQ(message([](ReplayOptions& o) { o.other_us = -1; }),
            refused("other_us", "-1", "be from 0 to 1e9 us"));
  EXPECT_EQ(message([](ReplayOptions& o) { o.compare_every = -1; }),
            refused("compare_every", "-1", "be 0 or more steps"));
  EXPECT_EQ(message([](ReplayOptions& o) { o.execute_every = -1; }),
            refused("execute_every", "-1", "be 0 or more steps"));
  EXPECT_EQ(message([](ReplayOptions& o) { o.check_requests = -1; }),
            refused("check_requests", "-1", "be 0 or more"));
  EXPECT_EQ(message([](ReplayOptions& o) { o.execute_every = 1; }),
            "replay: execute_every is 1; must be 0 where there is no backend; pass a backend");
}

class ReplayOfPublicTrace : public ::testing::TestWithParam<const char*> {};

TEST_P(ReplayOfPublicTrace, FirstRequestsAreServedAndChecked) {
  const char* folder = std::getenv("CAPILLARY_TRACE_DIR");
  if (folder == nullptr) GTEST_SKIP() << "CAPILLARY_TRACE_DIR is not set";
  TraceOptions trace_options;
  trace_options.limit = 150;
  const Trace trace =
      read_trace_file(std::string(folder) + "/mooncake_" + GetParam() + ".jsonl", trace_options);
  ReplayOptions options = small_options();
  options.batching = {.max_batch = 32, .num_pages = 30000};
  options.execute_every = 500;
  options.check_requests = 2;
  const ReplayReport report = replay(trace, options);
  EXPECT_EQ(report.batching.finished, 150);
  EXPECT_EQ(report.batching.generated_tokens, output_tokens(trace));
  EXPECT_GT(report.hit_rate(), 0);
  EXPECT_GE(report.sharing(), 1);
  EXPECT_GT(report.execution.executed_steps, 2);
  EXPECT_EQ(report.execution.failures, 0) << report.execution.first_failure;
  EXPECT_EQ(report.cache.free_pages + report.cache.cached_pages, 30000);
}
INSTANTIATE_TEST_SUITE_P(Mooncake, ReplayOfPublicTrace,
                         ::testing::Values("conversation", "synthetic"));

}  // namespace
}  // namespace capillary
