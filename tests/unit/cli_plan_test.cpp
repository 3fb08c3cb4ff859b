// SPDX-License-Identifier: MIT
// What is said about a plan: the JSON has every array of the blob, the digest's sums are the plan's, and the
// picture is well-formed, small and finite for every kind of batch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "cli/measure.h"
#include "cli/plan_html.h"
#include "cli/plan_json.h"
#include "cli/plan_report.h"
#include "cli/plan_text.h"
#include "nlohmann/json.hpp"
#include "shared/plan_layout.h"
#include "support/html_check.h"

namespace capillary::cli {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

Step step_of(const std::string& tree, Heads heads, int32_t page_size = 16) {
  const Workload workload = workload_from_shorthand(tree);
  Step step;
  step.name = tree;
  step.shape.num_q_heads = heads.num_q_heads;
  step.shape.num_kv_heads = heads.num_kv_heads;
  step.batch = make_batch(workload, page_size);
  step.forest = PrefixForest::from_block_table(step.batch.view(), step.batch.seq_lens, page_size);
  return step;
}

// Requests of random lengths, some of them empty, under a few random prefixes.
Step ragged_step(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto pick = [&](int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random);
  };
  constexpr int32_t kPage = 16;
  const int32_t requests = pick(1, 60);
  const int32_t prefixes = pick(1, 4);
  Step step;
  step.name = "ragged <" + std::to_string(seed) + "> & \"quoted\"";
  step.batch.page_size = kPage;
  step.batch.num_columns = 64;
  int32_t next_page = prefixes * 32;
  for (int32_t r = 0; r < requests; ++r) {
    const int32_t length = pick(0, 5) == 0 ? 0 : pick(1, 64 * kPage);
    const int32_t shared_pages = pick(0, 32);
    const int32_t prefix = pick(0, prefixes - 1);
    step.batch.seq_lens.push_back(length);
    for (int32_t column = 0; column < 64; ++column) {
      const bool used = column < (length + kPage - 1) / kPage;
      step.batch.block_table.push_back(!used                   ? Batch::kWildPage
                                       : column < shared_pages ? prefix * 32 + column
                                                               : next_page++);
    }
  }
  step.batch.num_pages = next_page;
  step.forest = PrefixForest::from_block_table(step.batch.view(), step.batch.seq_lens, kPage);
  return step;
}

std::vector<Step> all_kinds_of_steps() {
  std::vector<Step> steps;
  steps.push_back(step_of("1x4096,10x416", {32, 8}));
  steps.push_back(step_of("1x8192,1024x16", {32, 8}));
  steps.push_back(step_of("1024x64", {8, 1}));
  steps.push_back(step_of("1x131072", {8, 1}));
  steps.push_back(step_of("1x256,8x128,16x64,32x32,64x32,128x32,1024x32", {16, 8}, 32));
  steps.push_back(step_of("1x1", {1, 1}));
  steps.push_back(step_of("3x0", {4, 2}));
  for (uint64_t seed = 1; seed <= 12; ++seed) steps.push_back(ragged_step(seed));
  return steps;
}

TEST(PlanHtml, WellFormedFiniteAndSmall) {
  for (const Step& step : all_kinds_of_steps()) {
    SCOPED_TRACE(step.name);
    const PlanReport report = make_plan_report(step, {}, builtin_h200());
    const std::string page = plan_html(report);
    EXPECT_EQ(testing::page_fault(page), "");
    EXPECT_LT(page.size(), 1'000'000u);
    EXPECT_THAT(page, HasSubstr("prefers-color-scheme: dark"));
  }
}

TEST(PlanHtml, NamesAreEscaped) {
  Step step = step_of("1x16", {1, 1});
  step.name = "<b>\"&'";
  const std::string page = plan_html(make_plan_report(step, {}, builtin_h200()));
  EXPECT_THAT(page, HasSubstr("Plan of &lt;b&gt;&quot;&amp;&#39;"));
  EXPECT_EQ(page.find("<b>\""), std::string::npos);
}

TEST(PlanHtml, EmptyBatch) {
  Step step;
  step.name = "nobody";
  const PlanReport report = make_plan_report(step, {}, builtin_h200());
  EXPECT_THAT(plan_html(report), HasSubstr("The batch is empty"));
  EXPECT_THAT(plan_text(report), HasSubstr("0 requests"));
  EXPECT_EQ(json::parse(plan_json(report))["summary"]["num_requests"], 0);
}

TEST(PlanDigest, SumsAreThePlans) {
  for (const Step& step : all_kinds_of_steps()) {
    SCOPED_TRACE(step.name);
    for (const Mode mode : {Mode::kAuto, Mode::kFlat, Mode::kSharedL2}) {
      const PlanReport report = make_plan_report(step, {.mode = mode}, builtin_h200());
      const int64_t token_bytes = 2 * (step.shape.head_dim + step.shape.v_dim());
      int64_t kv_bytes = 0;
      for (const JobDigest& job : report.digest.jobs) kv_bytes += job.kv_bytes;
      // Every key of the forest is read by somebody, and nobody reads more than flat would.
      EXPECT_GE(kv_bytes, step.forest.unique_tokens() * token_bytes);
      EXPECT_LE(kv_bytes, step.forest.flat_tokens() * token_bytes);
      if (report.summary.mode == Mode::kFlat) {
        EXPECT_EQ(kv_bytes, step.forest.flat_tokens() * token_bytes);
      }
      int64_t entries = 0;
      for (const ClusterDigest& cluster : report.digest.clusters) entries += cluster.num_entries;
      EXPECT_EQ(entries, static_cast<int64_t>(report.digest.jobs.size()) * step.shape.num_kv_heads);
      EXPECT_EQ(report.digest.jobs.size(), static_cast<size_t>(report.summary.num_jobs));
    }
  }
}

TEST(PlanJson, HasEveryArrayOfTheBlob) {
  for (const Step& step : all_kinds_of_steps()) {
    SCOPED_TRACE(step.name);
    const PlanReport report = make_plan_report(step, {}, builtin_h200());
    const PlanView view(report.plan.data());
    const PlanHeader& header = view.header();
    const json object = json::parse(plan_json(report));
    const json& plan = object["plan"];
    ASSERT_EQ(plan["jobs"].size(), header.num_jobs);
    ASSERT_EQ(plan["clusters"].size(), static_cast<size_t>(header.num_clusters));
    ASSERT_EQ(plan["query_order"].size(), static_cast<size_t>(header.num_queries));
    ASSERT_EQ(plan["splits"].size(), header.num_splits);
    ASSERT_EQ(object["forest"]["nodes"].size(), step.forest.nodes().size());
    size_t phases = 0;
    size_t items = 0;
    size_t segments = 0;
    size_t merges = 0;
    size_t partials = 0;
    int64_t tokens = 0;
    for (const json& job : plan["jobs"]) {
      for (const json& rank : job["ranks"]) {
        for (const json& phase : rank["phases"]) {
          ++phases;
          for (const json& item : phase["items"]) {
            ++items;
            segments += item["segments"].size();
            for (const json& segment : item["segments"]) {
              tokens += segment["num_tokens"].get<int64_t>();
            }
          }
        }
        merges += rank["merges"].size();
        for (const json& merge : rank["merges"]) partials += merge["partials"].size();
      }
    }
    EXPECT_EQ(phases, header.num_phases);
    EXPECT_EQ(items, header.num_items);
    EXPECT_EQ(segments, header.num_segments);
    EXPECT_EQ(merges, header.num_merges);
    EXPECT_EQ(partials, header.num_partials);
    EXPECT_GE(tokens, step.forest.unique_tokens());
    EXPECT_EQ(object["summary"]["unique_bytes"], report.summary.unique_bytes);
  }
}

TEST(PlanReport, LosersAreReallyWorse) {
  for (const Step& step : all_kinds_of_steps()) {
    SCOPED_TRACE(step.name);
    const PlanReport report = make_plan_report(step, {}, builtin_h200());
    // A tie (2 %) goes to the plan that reads less.
    const auto is_worse = [&](double predicted_us, int64_t planned_bytes) {
      return predicted_us >= report.summary.predicted_us ||
             (predicted_us >= 0.98 * report.summary.predicted_us &&
              planned_bytes > report.summary.planned_bytes);
    };
    if (report.runner_up) {
      EXPECT_TRUE(is_worse(report.runner_up->candidate.predicted_us,
                           report.runner_up->summary.planned_bytes));
      EXPECT_FALSE(report.runner_up->why.empty());
    }
    if (report.flat) {
      EXPECT_TRUE(is_worse(report.flat->summary.predicted_us, report.flat->summary.planned_bytes));
      EXPECT_FALSE(report.flat->why.empty());
      EXPECT_GT(sharing_of(report.summary), 1.0);
    }
  }
}

TEST(PlanJson, Explains) {
  for (const Step& step : all_kinds_of_steps()) {
    SCOPED_TRACE(step.name);
    const PlanReport report = make_plan_report(step, {}, builtin_h200());
    EXPECT_EQ(report.summary.num_groups, report.digest.num_groups);
    const json summary = json::parse(plan_json(report))["summary"];
    EXPECT_EQ(summary["num_groups"], report.digest.num_groups);
    EXPECT_EQ(summary["saved_bytes"].get<int64_t>(),
              report.summary.flat_bytes - report.summary.planned_bytes);
    EXPECT_LE(summary["resident_ctas"].get<int>(), report.profile.num_sms);
    EXPECT_GE(summary["resident_ctas"].get<int>(), 1);
    const bool shares = report.summary.flat_bytes > report.summary.unique_bytes;
    if (!shares) {
      EXPECT_EQ(summary["fallback"], "no two requests have a page in common");
    } else if (report.summary.mode == Mode::kAuto) {
      EXPECT_TRUE(summary["fallback"].is_null());
    }
    EXPECT_THAT(plan_text(report), HasSubstr(explain(report.summary)));
  }
}

TEST(PlanText, SaysWhatWasChosen) {
  const PlanReport report = make_plan_report(step_of("1x4096,10x416", {32, 8}), {}, builtin_h200());
  const std::string text = plan_text(report);
  EXPECT_THAT(text, HasSubstr("10 requests, 11 nodes (1 shared) on 2 levels"));
  EXPECT_THAT(text, HasSubstr("5.47x: unique 33.8 MB, flat 184.8 MB"));
  EXPECT_THAT(text, HasSubstr("against flat"));
  EXPECT_THAT(text, HasSubstr("runner-up"));
  const PlanReport flat =
      make_plan_report(step_of("1x4096,10x416", {32, 8}), {.mode = Mode::kFlat}, builtin_h200());
  EXPECT_THAT(plan_text(flat), HasSubstr("fallback   this mode was asked for"));
  EXPECT_THAT(explain_line(flat), HasSubstr("flat: "));
}

// A device that gives wrong results or writes where it must not is caught by the same measurement that users
// run; its reading of the clock is irrelevant.
class FaultyStep final : public MeasuredStep {
 public:
  explicit FaultyStep(bool passes) : passes_(passes) {}
  void load(const Plan& /*plan*/) override {}
  StepCheck check() override { return {passes_, passes_ ? "" : "row 3 is off", 8, 0.5, 2.0, 0.1}; }
  std::vector<double> time_us(TimingKind kind, int repeats) override {
    return std::vector<double>(static_cast<size_t>(repeats),
                               kind == TimingKind::kEager ? 7.0 : 3.0);
  }

 private:
  bool passes_;
};
class TwoWayDevice final : public TimedDevice {
 public:
  DeviceType type() const override { return DeviceType::kCuda; }
  std::string description() const override { return "two ways"; }
  std::vector<TimingKind> timing_kinds() const override {
    return {TimingKind::kEager, TimingKind::kGraphCold};
  }
  Floor floor(const PlanSummary& /*summary*/) override { return {1.0, "memory"}; }
  std::unique_ptr<MeasuredStep> make_step(std::string_view /*verb*/, Step& /*step*/,
                                          check::CacheLayout /*layout*/) override {
    return std::make_unique<FaultyStep>(true);
  }
};

TEST(Measure, KeepsEveryKindAndTheVerdict) {
  TwoWayDevice device;
  FaultyStep wrong(false);
  FaultyStep right(true);
  const Measurement failed = measure(device, wrong, Plan(), {.repeats = 3});
  EXPECT_FALSE(failed.passed());
  EXPECT_EQ(failed.check->failure, "row 3 is off");
  const Measurement passed = measure(device, right, Plan(), {.repeats = 3});
  EXPECT_TRUE(passed.passed());
  EXPECT_EQ(passed.median_us(TimingKind::kEager), 7.0);
  EXPECT_EQ(passed.median_us(TimingKind::kGraphWarm), -1.0);
  EXPECT_EQ(passed.headline_us(), 3.0);
  EXPECT_EQ(passed.times_us.size(), 2u);
  const Measurement unchecked = measure(device, wrong, Plan(), {.repeats = 1, .no_check = true});
  EXPECT_FALSE(unchecked.check.has_value());
  EXPECT_TRUE(unchecked.passed());
}

TEST(CpuDevice, StepOfEveryLayoutIsRight) {
  const std::unique_ptr<TimedDevice> device = make_cpu_device(2);
  for (const char* layout : {"nhd", "hnd", "packed-page", "packed-dim", "cross-layer", "mixed"}) {
    SCOPED_TRACE(layout);
    Step step = ragged_step(3);
    step.shape = {4, 2, 64, 0, DType::kFloat16};
    const std::unique_ptr<MeasuredStep> measured =
        device->make_step("run", step, parse_layout("run", layout));
    const PlanReport report = make_plan_report(step, {}, builtin_h200());
    const Measurement measurement = measure(*device, *measured, report.plan, {.repeats = 2});
    EXPECT_TRUE(measurement.passed()) << measurement.check->failure;
    EXPECT_EQ(measurement.check->rows, static_cast<int64_t>(step.batch.seq_lens.size()) * 4);
    EXPECT_EQ(measurement.times_us.front().second.size(), 2u);
    EXPECT_GT(measurement.headline_us(), 0.0);
    EXPECT_GT(device->floor(report.summary).us, 0.0);
  }
}

TEST(CpuDevice, RefusesWhatMemoryCannotHold) {
  const std::unique_ptr<TimedDevice> device = make_cpu_device(1);
  Step step = step_of("64x131072", {128, 128}, 1024);
  step.batch.page_size = 1 << 20;  // 1024 times the tokens, without a table to match
  try {
    device->make_step("run", step, check::CacheLayout::kHnd);
    FAIL() << "accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("of host memory; must fit nine tenths of the"));
  }
}

}  // namespace
}  // namespace capillary::cli
