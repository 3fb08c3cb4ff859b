// SPDX-License-Identifier: MIT
// What a replay remembers and says: percentiles, a course of bounded size, and the report as text, JSON and page.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "nlohmann/json.hpp"
#include "support/html_check.h"
#include "workload/generate.h"
#include "workload/report.h"

namespace capillary {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(TimeHistogram, PercentilesAreWithinAPercent) {
  TimeHistogram times;
  EXPECT_EQ(times.percentile_us(0.5), 0);
  for (int us = 1000; us >= 1; --us) times.add(us);
  EXPECT_NEAR(times.percentile_us(0.5), 500, 5);
  EXPECT_NEAR(times.percentile_us(0.99), 990, 10);
  EXPECT_NEAR(times.percentile_us(0), 1, 0.01);
  EXPECT_EQ(times.percentile_us(1), 1000);
  EXPECT_EQ(times.count(), 1000);
  EXPECT_DOUBLE_EQ(times.total_us(), 500500);
}

TEST(TimeHistogram, ExtremesFallIntoTheOutermostBuckets) {
  TimeHistogram times;
  times.add(0);
  times.add(1e300);
  EXPECT_LE(times.percentile_us(0.5), 0.0101);
  EXPECT_GE(times.percentile_us(1), 1e9);
  EXPECT_EQ(times.max_us(), 1e300);
}

TEST(Series, AnyNumberOfStepsInABoundedNumberOfPoints) {
  Series series;
  constexpr int kSteps = 12345;
  for (int step = 0; step < kSteps; ++step) {
    SeriesPoint point;
    point.begin_ms = step;
    point.end_ms = step + 1;
    point.steps = 1;
    point.requests = step % 7;
    point.auto_us = 0.5;
    point.cluster_steps[static_cast<size_t>(step % 2)] = 1;
    series.add(point);
  }
  ASSERT_LE(series.points().size(), Series::kMaxPoints);
  ASSERT_GE(series.points().size(), Series::kMaxPoints / 2);
  SeriesPoint sum;
  double end_ms = 0;
  for (const SeriesPoint& point : series.points()) {
    EXPECT_EQ(point.begin_ms, end_ms);  // without gaps, in order
    EXPECT_EQ(point.end_ms - point.begin_ms, static_cast<double>(point.steps));
    end_ms = point.end_ms;
    sum.merge(point);
  }
  EXPECT_EQ(sum.steps, kSteps);
  EXPECT_EQ(end_ms, kSteps);
  EXPECT_EQ(sum.auto_us, kSteps * 0.5);
  EXPECT_EQ(sum.cluster_steps[0] + sum.cluster_steps[1], kSteps);
  int64_t requests = 0;
  for (int step = 0; step < kSteps; ++step) requests += step % 7;
  EXPECT_EQ(sum.requests, requests);
}

ReplayReport report_of(ReplayOptions options, int32_t num_requests = 30) {
  options.batching.max_batch = 8;
  options.shape = {.num_q_heads = 4, .num_kv_heads = 2, .head_dim = 16};
  const Trace trace = generate_trace({.kind = TraceKind::kMixed,
                                      .num_requests = num_requests,
                                      .block_size = 16,
                                      .length_scale = 0.05});
  const auto backend = check::make_cpu_backend(1);
  ReplayReport report = run_replay(trace, options, builtin_h200(), backend.get());
  report.trace_source = "a <trace> & \"more\"";
  return report;
}

TEST(ReplayReport, JsonSaysWhatTheReportSays) {
  ReplayOptions options;
  options.execute_every = 20;
  options.compare_every = 4;
  const ReplayReport report = report_of(options);
  const json object = json::parse(replay_json(report));
  EXPECT_EQ(object["schema_version"], 1);
  EXPECT_EQ(object["trace"], report.trace_source);
  EXPECT_EQ(object["interrupted"], false);
  EXPECT_EQ(object["requests"]["finished"], 30);
  EXPECT_EQ(object["steps"], report.steps);
  EXPECT_EQ(object["restructured_steps"], report.restructured_steps);
  EXPECT_EQ(object["cache"]["hit_rate"], report.hit_rate());
  EXPECT_EQ(object["sharing"], report.sharing());
  EXPECT_EQ(object["flat_bytes"].get<double>() / object["unique_bytes"].get<double>(),
            report.sharing());
  const json& predicted = object["predicted_us_a_step"];
  EXPECT_EQ(predicted["compared_steps"], (report.steps + 3) / 4);
  EXPECT_NEAR(predicted["auto"].get<double>() * static_cast<double>(report.steps), report.auto_us,
              1e-6 * report.auto_us);
  EXPECT_EQ(object["execution"]["steps"], (report.steps + 19) / 20);
  EXPECT_EQ(object["execution"]["failures"], 0);
  int64_t steps_of_clusters = 0;
  for (const auto& [size, steps] : object["cluster_steps"].items()) {
    steps_of_clusters += steps.get<int64_t>();
  }
  EXPECT_EQ(steps_of_clusters, report.steps);
  int64_t steps_of_series = 0;
  for (const json& point : object["series"]) steps_of_series += point["steps"].get<int64_t>();
  EXPECT_EQ(steps_of_series, report.steps);
  EXPECT_EQ(object["options"]["execute_every"], 20);
}

TEST(ReplayReport, JsonOfNothingExecutedAndNothingCompared) {
  ReplayOptions options;
  options.compare_every = 0;
  const json object = json::parse(replay_json(report_of(options)));
  EXPECT_EQ(object["execution"], nullptr);
  EXPECT_EQ(object["predicted_us_a_step"]["compared_steps"], 0);
  EXPECT_FALSE(object["series"][0].contains("compared"));
}

TEST(ReplayReport, TextSaysWhatHappened) {
  ReplayOptions options;
  options.execute_every = 20;
  ReplayReport report = report_of(options);
  EXPECT_THAT(replay_text(report), HasSubstr("30 of 30 finished, 0 preemptions"));
  EXPECT_THAT(replay_text(report), Not(HasSubstr("interrupted")));
  EXPECT_THAT(replay_text(report), HasSubstr("check          passed: "));
  report.interrupted = true;
  report.bad_lines = 2;
  report.first_bad_line = "trace line 3: is not JSON";
  report.execution.failures = 1;
  report.execution.first_failure = "executed step 4, request 9 of the trace: wrong";
  report.slower_than_flat_steps = 3;
  report.worst_over_flat = 1.014;
  const std::string text = replay_text(report);
  EXPECT_THAT(text, HasSubstr("check          FAILED: "));
  EXPECT_THAT(text, HasSubstr("interrupted    what follows is what was done so far"));
  EXPECT_THAT(text, HasSubstr("; 2 bad lines skipped, the first: trace line 3: is not JSON"));
  EXPECT_THAT(text, HasSubstr("; 1 failure, the first: executed step 4, request 9"));
  EXPECT_THAT(text, HasSubstr("flat was predicted faster on 3 of them, by at most 1.4 %"));
}

TEST(ReplayReport, PageIsWholeAndEscaped) {
  for (const int64_t compare_every : {0, 1, 5}) {
    ReplayOptions options;
    options.compare_every = compare_every;
    options.execute_every = compare_every * 10;
    const std::string page = replay_html(report_of(options));
    EXPECT_EQ(testing::page_fault(page), "") << compare_every;
    EXPECT_THAT(page, HasSubstr("Replay of a &lt;trace&gt; &amp; &quot;more&quot;"));
    EXPECT_THAT(page, HasSubstr("<svg"));
    EXPECT_THAT(page, HasSubstr("prefers-color-scheme: dark"));
    EXPECT_LT(page.size(), 1'000'000u);
  }
}

// Names of all fields, those of nested objects too.
void collect_fields(const json& value, std::set<std::string>& names) {
  for (const auto& [name, field] : value.items()) {
    if (value.is_object()) names.insert(name);
    if (name == "options" || name == "cluster_steps" || field.is_primitive()) continue;
    collect_fields(field, names);
  }
}

TEST(ReplayReport, DocsExplainEveryLineAndField) {
  std::stringstream docs;
  docs << std::ifstream(CAPILLARY_SOURCE_DIR "/docs/replay.md").rdbuf();
  ReplayOptions options;
  options.execute_every = 20;
  ReplayReport report = report_of(options);
  report.interrupted = true;
  report.execution.failures = 1;
  for (const ReportLine& line : replay_lines(report)) {
    EXPECT_THAT(docs.str(), HasSubstr("\n| `" + line.name + "` | "));
  }
  std::set<std::string> fields;
  collect_fields(json::parse(replay_json(report)), fields);
  EXPECT_GT(fields.size(), 40u);
  for (const std::string& field : fields) EXPECT_THAT(docs.str(), HasSubstr("`" + field + "`"));
}

TEST(ReplayReport, NothingWasDecoded) {
  ReplayReport report;
  report.trace_source = "empty";
  EXPECT_EQ(testing::page_fault(replay_html(report)), "");
  EXPECT_THAT(replay_text(report), HasSubstr("nothing was decoded"));
  EXPECT_EQ(json::parse(replay_json(report))["sharing"], 1);
}

}  // namespace
}  // namespace capillary
