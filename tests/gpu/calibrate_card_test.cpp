// SPDX-License-Identifier: MIT
// A calibration of the card in this machine: within its time, every figure with its note, inside what any Hopper card
// can be, and good for this card alone.
#include "calibrate/calibrate_card.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "capillary/cuda.h"
#include "capillary/error.h"

namespace capillary::calibrate {
namespace {

class CalibrateCard : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
    try {
      cuda::require_supported(0);
    } catch (const UnsupportedArch& error) {
      GTEST_SKIP() << error.what();
    }
  }
};

TEST_F(CalibrateCard, MeasuresEveryFigureInTime) {
  const auto begin = std::chrono::steady_clock::now();
  const Calibration calibration = calibrate_card(0, [](const std::string&) {});
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(seconds.count(), 30);

  const DeviceProfile& profile = calibration.profile;
  for (const ProfileField& field : profile_fields()) {
    ASSERT_TRUE(calibration.record.notes.count(field.key)) << field.key;
    EXPECT_GT(calibration.record.notes.at(field.key).samples, 0) << field.key;
  }
  // Bounds that no Hopper card leaves, far apart: a unit that is wrong shows, a slow card does not.
  const auto expect_between = [](const char* what, double value, double low, double high) {
    EXPECT_TRUE(value > low && value < high) << what << " is " << value;
  };
  expect_between("hbm_gbps", profile.hbm_gbps, 500, 8000);
  expect_between("hbm_gbps_per_cta", profile.hbm_gbps_per_cta, 5, 150);
  expect_between("l2_gbps_per_cta", profile.l2_gbps_per_cta, 10, 150);
  expect_between("wide_gbps_per_cta", profile.wide_gbps_per_cta, 5, 150);
  expect_between("matrix_tflops", profile.matrix_tflops, 50, 1000);
  expect_between("matrix_ceiling_tflops", profile.matrix_ceiling_tflops, 200, 1100);
  expect_between("narrow_tile_us", profile.narrow_tile_us, 0.1, 5);
  expect_between("launch_us", profile.launch_us, 0.5, 30);
  for (const double gbps : profile.dsm_load_gbps_per_cta)
    expect_between("dsm_load_gbps_per_cta", gbps, 5, 300);

  EXPECT_NO_THROW(cuda::profile_for_device(0, DType::kBFloat16, 128, profile));
  DeviceProfile other = profile;
  other.card.name = "another card";
  EXPECT_THROW(cuda::profile_for_device(0, DType::kBFloat16, 128, other), InvalidArgument);
}

}  // namespace
}  // namespace capillary::calibrate
