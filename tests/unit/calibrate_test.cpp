// SPDX-License-Identifier: MIT
// What calibration makes of timed steps: on a card that behaves as the cost model says, the figures that come out are the
// figures that went in. Plans of the synthetic steps are proved right as they are made.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "calibrate/calibration.h"
#include "calibrate/fit.h"
#include "calibrate/kernel_figures.h"
#include "calibrate/synthetic_step.h"
#include "capillary/error.h"
#include "plan_time.h"

namespace capillary::calibrate {
namespace {

using ::testing::HasSubstr;

TEST(Fit, MedianAndSpread) {
  const Timing timing = summarise({5, 1, 2, 4, 3});
  EXPECT_EQ(timing.median, 3);
  EXPECT_EQ(timing.samples, 5);
  EXPECT_DOUBLE_EQ(timing.spread, 2.0 / 3);
  EXPECT_THROW(summarise({}), InvalidArgument);
  EXPECT_THROW(summarise({1, std::numeric_limits<double>::quiet_NaN()}), InvalidArgument);
}

TEST(Fit, LineThroughPoints) {
  const std::vector<Point> exact = {{1, 5}, {2, 7}, {4, 11}};
  const Line line = fit_line(exact);
  EXPECT_NEAR(line.slope, 2, 1e-12);
  EXPECT_NEAR(line.intercept, 3, 1e-12);
  EXPECT_NEAR(line.worst_residual, 0, 1e-12);
  const std::vector<Point> bent = {{0, 0}, {1, 2}, {2, 2}};
  EXPECT_GT(fit_line(bent).worst_residual, 0.2);
  const std::vector<Point> one_x = {{1, 5}, {1, 6}};
  EXPECT_THROW(fit_line(one_x), InvalidArgument);
  const std::vector<Point> infinite = {{1, 5}, {2, std::numeric_limits<double>::infinity()}};
  EXPECT_THROW(fit_line(infinite), InvalidArgument);
}

TEST(Fit, TwoTermsNeverBelowZero) {
  const std::vector<Sample> exact = {{2, 2, 10}, {2, 4, 16}, {2, 8, 28}};
  EXPECT_NEAR(fit_two_terms(exact).a, 2, 1e-9);
  EXPECT_NEAR(fit_two_terms(exact).b, 3, 1e-9);
  // Falls with v: the best that is allowed has no such term.
  const std::vector<Sample> falling = {{1, 1, 10}, {1, 2, 9}, {1, 4, 7}};
  EXPECT_EQ(fit_two_terms(falling).b, 0);
  EXPECT_NEAR(fit_two_terms(falling).a, 26.0 / 3, 1e-9);
  const std::vector<Sample> without_v = {{1, 0, 1}, {2, 0, 2}};
  EXPECT_THROW(fit_two_terms(without_v), InvalidArgument);
}

// A card that takes as long as the cost model says.
class ModelTimer final : public StepTimer {
 public:
  explicit ModelTimer(const DeviceProfile& profile) : cold_(profile), warm_(profile) {
    warm_.hbm_gbps = warm_.hbm_gbps_per_cta = warm_.l2_gbps_per_cta = 1e9;
  }
  std::vector<double> time_us(const SyntheticStep& step, Cache cache) override {
    ++steps;
    const CostModel model(step.shape, cache == Cache::kCold ? cold_ : warm_);
    const double us = plan_time(step.plan, model).us;
    return {us, us, us};
  }
  int steps = 0;

 private:
  DeviceProfile cold_, warm_;
};

CardLimits limits_of(const DeviceProfile& profile) {
  return {profile.num_sms, profile.max_clusters, profile.dsm_load_gbps_per_cta};
}

Measurements measure(const DeviceProfile& profile) {
  ModelTimer timer(profile);
  return measure_kernel(timer, limits_of(profile), [](const std::string&) {});
}

void expect_recovers(const DeviceProfile& profile) {
  const Measurements found = measure(profile);
  const auto expect = [&](const char* key, double value, double tolerance) {
    ASSERT_TRUE(found.figures.count(key)) << key;
    const Figure& figure = found.figures.at(key);
    EXPECT_NEAR(figure.value / value, 1, tolerance) << key << ": " << figure.value;
    EXPECT_GT(figure.note.samples, 0) << key;
    EXPECT_FALSE(figure.note.method.empty()) << key;
  };
  expect("narrow_tile_us", profile.narrow_tile_us, 0.01);
  expect("stream_item_us", profile.stream_item_us, 0.01);
  expect("wide_gbps_per_cta", profile.wide_gbps_per_cta, 0.01);
  expect("matrix_tflops", profile.matrix_tflops, 0.01);
  expect("item_start_us", profile.item_start_us, 0.01);
  expect("job_start_us", profile.job_start_us, 0.02);
  expect("stream_start_us", profile.stream_start_us, 0.02);
  expect("launch_us", profile.launch_us, 0.02);
  // The CTAs that take part differ a little from count to count of parts, and so does each one's share of HBM.
  expect("l2_merge_latency_us", profile.l2_merge_latency_us, 0.05);
  expect("cluster_barrier_us", profile.cluster_barrier_us, 0.02);
  expect("dsm_latency_us", profile.dsm_latency_us, 0.05);
  expect("hbm_gbps_per_cta", profile.hbm_gbps_per_cta, 0.02);
}

TEST(KernelFigures, RecoversTheBuiltInCard) {
  expect_recovers(builtin_h200());
}

TEST(KernelFigures, RecoversAnotherCard) {
  DeviceProfile card;
  card.num_sms = 114;
  card.max_clusters = {114, 57, 26, 12, 0};
  card.hbm_gbps = 3000;
  card.hbm_gbps_per_cta = 30;
  card.wide_gbps_per_cta = 25;
  card.cluster_barrier_us = 0.6;
  card.dsm_latency_us = 0.2;
  card.l2_merge_latency_us = 5;
  card.matrix_tflops = 300;
  card.narrow_tile_us = 1.4;
  card.stream_item_us = 0.5;
  card.launch_us = 3.5;
  card.job_start_us = 2.1;
  card.item_start_us = 2.2;
  card.stream_start_us = 1.2;
  expect_recovers(card);
}

TEST(KernelFigures, CardWithoutClustersSaysSo) {
  DeviceProfile card;
  card.num_sms = 16;
  card.max_clusters = {16, 0, 0, 0, 0};
  const Measurements found = measure(card);
  EXPECT_THAT(found.figures.at("cluster_barrier_us").note.method, HasSubstr("not measured"));
  EXPECT_EQ(found.figures.at("cluster_barrier_us").note.samples, 0);
}

TEST(KernelFigures, ProgressMayStop) {
  ModelTimer timer(builtin_h200());
  const auto stop = [](const std::string&) { throw InvalidArgument("stop"); };
  EXPECT_THROW(measure_kernel(timer, limits_of(builtin_h200()), stop), InvalidArgument);
  EXPECT_EQ(timer.steps, 0);
}

// Noise on every timing must not turn a figure negative or absurd.
TEST(KernelFigures, NoiseLeavesASoundProfile) {
  class NoisyTimer final : public StepTimer {
   public:
    std::vector<double> time_us(const SyntheticStep&, Cache) override {
      value_ = value_ * 1103515245u + 12345u;
      return {10.0 + static_cast<double>(value_ >> 16 & 0xff) / 1000};
    }

   private:
    uint32_t value_ = 1;
  } timer;
  Measurements found = measure_kernel(timer, limits_of(builtin_h200()), [](const std::string&) {});
  for (const char* key :
       {"stream_item_us", "item_start_us", "job_start_us", "stream_start_us", "launch_us",
        "l2_merge_latency_us", "cluster_barrier_us", "dsm_latency_us"})
    EXPECT_GT(found.figures.at(key).value, 0) << key;
}

TEST(SyntheticStep, SharedLevelsAndGroups) {
  SyntheticShape shape;
  shape.num_queries = 3;
  shape.levels = {{3, 4}, {2, 2}};
  shape.private_tiles = 1;
  const SyntheticStep step = make_synthetic_step(shape);
  EXPECT_EQ(step.forest.num_requests(), 3);
  EXPECT_EQ(step.forest.unique_tokens(), (4 + 2 + 3) * 16);
  EXPECT_EQ(step.forest.flat_tokens(), (7 + 7 + 5) * 16);
  EXPECT_EQ(even_groups(5, 2).size(), 3u);
  EXPECT_EQ(even_groups(5, 2).back().query_end, 5);
  shape.num_queries = 0;
  EXPECT_THROW(make_synthetic_step(shape), InvalidArgument);
}

Measurements complete_measurements() {
  Measurements found = measure(builtin_h200());
  for (const char* key : {"hbm_gbps", "l2_gbps_per_cta", "matrix_ceiling_tflops"})
    found.figures[key] = {1000, {"by hand", 1, 0}};
  for (const char* size : {"1", "2", "4", "8", "16"})
    found.figures["dsm_load_gbps_per_cta[" + std::string(size) + "]"] = {20, {"by hand", 1, 0}};
  return found;
}

TEST(Calibration, NeedsEveryFigure) {
  const Measurements whole = complete_measurements();
  const Calibration calibration = make_calibration(builtin_h200(), whole);
  EXPECT_EQ(calibration.profile.hbm_gbps, 1000);
  EXPECT_EQ(calibration.profile.dsm_load_gbps_per_cta[3], 20);
  EXPECT_EQ(calibration.record.notes.size(), whole.figures.size());
  for (const auto& [key, figure] : whole.figures) {
    Measurements torn = whole;
    torn.figures.erase(key);
    try {
      make_calibration(builtin_h200(), torn);
      ADD_FAILURE() << key;
    } catch (const InternalError& error) {
      EXPECT_THAT(error.what(), HasSubstr(key + " was not measured"));
    }
  }
  Measurements absurd = whole;
  absurd.figures["hbm_gbps"].value = -1;
  EXPECT_THROW(make_calibration(builtin_h200(), absurd), InvalidArgument);
}

// What is written is read again with notes and curves.
TEST(Calibration, RoundTripsThroughJson) {
  const Calibration calibration = make_calibration(builtin_h200(), complete_measurements());
  ProfileRecord record;
  const DeviceProfile back = profile_from_json(
      profile_to_json(calibration.profile, calibration.record), "card.json", &record);
  EXPECT_EQ(back.hash(), calibration.profile.hash());
  ASSERT_EQ(record.notes.size(), calibration.record.notes.size());
  for (const auto& [key, note] : calibration.record.notes) {
    EXPECT_EQ(record.notes.at(key).method, note.method);
    EXPECT_EQ(record.notes.at(key).samples, note.samples);
    EXPECT_EQ(record.notes.at(key).spread, note.spread);
  }
  ASSERT_EQ(record.curves.size(), calibration.record.curves.size());
  EXPECT_GT(record.curves.size(), 5u);
  for (size_t i = 0; i < record.curves.size(); ++i) {
    EXPECT_EQ(record.curves[i].name, calibration.record.curves[i].name);
    EXPECT_EQ(record.curves[i].points.size(), calibration.record.curves[i].points.size());
  }
}

}  // namespace
}  // namespace capillary::calibrate
