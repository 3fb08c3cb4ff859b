// SPDX-License-Identifier: MIT
// What the ablation concludes from times, on rows whose right answers are plain to see.
#include "cli/ablation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "capillary/error.h"
#include "cli/ablation_record.h"
#include "cli/ablation_report.h"
#include "support/html_check.h"

namespace capillary::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Times in the order of the arms: flat, shared-l2, dsm-1, -2, -4, -8, -16, auto; negative: skipped.
AblationRow row_of(const std::string& name, std::vector<double> times_us) {
  AblationRow row;
  row.workload = name;
  row.heads = "32/8";
  row.floor_us = 10;
  row.sharing = 3;
  for (size_t i = 0; i < times_us.size(); ++i) {
    ArmResult arm;
    arm.time_us = times_us[i];
    arm.predicted_us = times_us[i];
    arm.measured = static_cast<int32_t>(i);
    arm.cluster_size = 1 << std::clamp(static_cast<int>(i) - 2, 0, 4);
    if (times_us[i] < 0) arm.skipped = "cannot be launched here";
    row.arms.push_back(arm);
  }
  return row;
}

TEST(Ablation, ArmsEndWithAuto) {
  const std::vector<Arm>& arms = ablation_arms();
  ASSERT_EQ(arms.size(), 8u);
  EXPECT_EQ(arms[0].name, "flat");
  EXPECT_EQ(arms[0].options.mode, Mode::kFlat);
  EXPECT_EQ(arms[1].options.mode, Mode::kSharedL2);
  EXPECT_EQ(arms[6].name, "dsm-16");
  EXPECT_EQ(arms[6].options.cluster_size, 16);
  EXPECT_EQ(arms[7].name, "auto");
  EXPECT_EQ(arms[7].options.cluster_size, 0);
}

TEST(Ablation, BestAndRegret) {
  const AblationRow row = row_of("w", {90, 60, 61, 50, 40, 45, 70, 44});
  EXPECT_EQ(row.best_forced(), 4);
  EXPECT_EQ(row.best_cluster(), 4);
  EXPECT_DOUBLE_EQ(row.regret(), 1.1);
  EXPECT_DOUBLE_EQ(row.time_of("shared-l2"), 60);
  // A better plan than any forced is no regret; a skipped arm is not the best; equal times: the first.
  EXPECT_DOUBLE_EQ(row_of("w", {90, 60, 61, 50, 40, 45, 70, 36}).regret(), 0.9);
  EXPECT_EQ(row_of("w", {90, 60, 60, 70, 70, 70, -1, 60}).best_forced(), 1);
  EXPECT_EQ(row_of("w", {90, 60, 60, -1, -1, -1, -1, 60}).best_cluster(), -1);
}

TEST(Ablation, Summary) {
  std::vector<AblationRow> rows = {row_of("tree", {100, 50, 50, 40, 45, 60, -1, 40}),
                                   row_of("late", {100, 80, 80, 80, 80, 80, 80, 80}),
                                   row_of("flat", {30, 32, 32, 33, 34, 35, 36, 40})};
  rows[0].partial_traffic = 0.5;
  rows[0].arms[7].measured = 3;
  rows[1].one_kv_head = true;
  rows[2].sharing = 1;
  rows[2].arms[7].predicted_us = 20;
  const AblationSummary summary = summarise(rows);
  EXPECT_EQ(summary.rows, 3);
  EXPECT_EQ(summary.same_plan, 1);
  EXPECT_NEAR(summary.regret.geomean, std::cbrt(1.0 * 1.0 * 40 / 30), 1e-12);
  EXPECT_EQ(summary.regret.most_row, "flat 32/8");
  EXPECT_EQ(summary.regret_over_bound, 1);
  EXPECT_NEAR(summary.flat.geomean, std::cbrt(2.5 * 1.25 * 0.75), 1e-12);
  EXPECT_EQ(summary.slower_than_flat, 1);
  EXPECT_EQ(summary.flat_batches.rows, 1);
  EXPECT_DOUBLE_EQ(summary.flat_batches.geomean, 0.75);
  EXPECT_EQ(summary.cluster_partials.rows, 1);
  EXPECT_DOUBLE_EQ(summary.cluster_partials.geomean, 1.25);
  EXPECT_EQ(summary.cluster_latency.rows, 1);
  EXPECT_DOUBLE_EQ(summary.cluster_latency.geomean, 1.0);
  EXPECT_EQ(summary.cluster_all.rows, 3);
  EXPECT_DOUBLE_EQ(summary.median_error, 0);
}

TEST(Ablation, PartialTraffic) {
  ModelShape shape{.num_q_heads = 8, .num_kv_heads = 2, .head_dim = 128};
  const auto traffic = [&](const char* tree) {
    const Workload workload = workload_from_shorthand(tree);
    const Batch batch = make_batch(workload, 16);
    return partial_traffic_of(PrefixForest::from_block_table(batch.view(), batch.seq_lens, 16),
                              shape);
  };
  EXPECT_EQ(traffic("4x64"), 0);
  // 10 requests, two nodes each, 8 query heads, 128 floats and two more: written and read.
  const double partials = 2.0 * 10 * 2 * 8 * (4 * 128 + 8);
  const double unique = (4096 + 10 * 416) * 2.0 * 2 * 128 * 2;
  EXPECT_DOUBLE_EQ(traffic("1x4096,10x416"), partials / unique);
  EXPECT_EQ(partial_traffic_of(PrefixForest(), shape), 0);
}

TEST(Ablation, ReportsNameEveryRowAndWhatWasSkipped) {
  std::vector<AblationRow> rows = {row_of("tree", {100, 50, 50, 40, 45, 60, -1, 40}),
                                   row_of("<odd> & name", {30, 32, 32, 33, 34, 35, 36, 40})};
  const std::string text = ablation_text(rows);
  EXPECT_THAT(text, HasSubstr("regret, auto / the best forced: geomean 1.155 over 2 rows"));
  EXPECT_THAT(text, HasSubstr("not measured: dsm-16: cannot be launched here"));
  EXPECT_THAT(text, HasSubstr("tree"));
  const std::string page = ablation_markdown(rows, "a card");
  EXPECT_THAT(page, HasSubstr("| <odd> & name | 32/8 |"));
  EXPECT_THAT(page, HasSubstr("\na card.\n"));
  EXPECT_THAT(ablation_markdown({}, "a card"), HasSubstr("Nothing was measured"));
  const std::string plot = ablation_svg(rows, "a <card>");
  EXPECT_EQ(testing::markup_fault(plot), "");
  EXPECT_THAT(plot, HasSubstr("&lt;odd&gt; &amp; name"));
  EXPECT_THAT(plot, Not(HasSubstr("nan")));
  EXPECT_EQ(testing::markup_fault(ablation_svg({}, "nothing")), "");
}

TEST(Ablation, SampleIsSeededAndInOrder) {
  std::vector<StepChoice> all(40);
  for (int i = 0; i < 40; ++i) all[static_cast<size_t>(i)].workload.page_size = i;
  const auto pages = [](const std::vector<StepChoice>& choices) {
    std::vector<int32_t> values;
    for (const StepChoice& choice : choices) values.push_back(choice.workload.page_size);
    return values;
  };
  const std::vector<int32_t> sample = pages(sample_choices(all, 7, 1));
  ASSERT_EQ(sample.size(), 7u);
  EXPECT_TRUE(std::is_sorted(sample.begin(), sample.end()));
  EXPECT_EQ(sample, pages(sample_choices(all, 7, 1)));
  EXPECT_NE(sample, pages(sample_choices(all, 7, 2)));
  EXPECT_EQ(sample_choices(all, 0, 1).size(), 40u);
  EXPECT_EQ(sample_choices(all, 60, 1).size(), 40u);
}

// One row's lines, as bench --ablate --out writes them; two arms could not be launched.
std::vector<nlohmann::ordered_json> row_lines(const std::string& workload) {
  std::vector<nlohmann::ordered_json> lines;
  for (size_t i = 0; i < ablation_arms().size(); ++i) {
    const std::string& arm = ablation_arms()[i].name;
    if (i == 5 || i == 6) {
      lines.push_back(
          {{"workload", workload}, {"heads", "32/8"}, {"arm", arm}, {"skipped", "cannot be"}});
      continue;
    }
    lines.push_back({{"workload", workload},     {"heads", "32/8"},     {"arm", arm},
                     {"measured_as", arm},       {"device", "a card"},  {"commit", "1234"},
                     {"date", "2026-11-30"},     {"dtype", "bfloat16"}, {"head_dim", 128},
                     {"time_us_graph_cold", 20}, {"repeats", 7},        {"checked", true},
                     {"path", "auto"},           {"cluster_size", 1},   {"predicted_us", 21},
                     {"passed", true},           {"floor_us", 10},      {"partial_traffic", 0},
                     {"unique_bytes", 100},      {"flat_bytes", 300}});
  }
  return lines;
}

std::string told(const std::vector<nlohmann::ordered_json>& lines) {
  std::string text;
  for (const nlohmann::ordered_json& line : lines) text += line.dump() + "\n";
  try {
    return "rows: " + std::to_string(ablation_from_lines(text, "a.jsonl").rows.size());
  } catch (const InvalidArgument& error) {
    return error.what();
  }
}

TEST(AblationRecord, LinesOfSeveralRunsAreNotTakenForOne) {
  const auto one = row_lines("one"), two = row_lines("two");
  auto both = one;
  both.insert(both.end(), two.begin(), two.end());
  EXPECT_EQ(told(both), "rows: 2");
  auto spliced = one;
  std::copy(two.begin() + 3, two.end(), spliced.begin() + 3);
  EXPECT_THAT(told(spliced), HasSubstr("line 4 has workload \"two\" where \"one\" came before"));
  auto skipped = one;
  skipped[5]["heads"] = "64/8";
  EXPECT_THAT(told(skipped), HasSubstr("line 6 has heads"));
  auto commits = both;
  for (size_t i = one.size(); i < commits.size(); ++i) commits[i]["commit"] = "5678";
  EXPECT_THAT(told(commits), HasSubstr("line 9 has commit \"5678\" where \"1234\" came before"));
  auto unknown = one;
  unknown[2]["measured_as"] = "dsm-3";
  EXPECT_THAT(told(unknown), HasSubstr("line 3 is measured_as \"dsm-3\""));
}

}  // namespace
}  // namespace capillary::cli
