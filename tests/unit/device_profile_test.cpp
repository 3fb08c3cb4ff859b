// SPDX-License-Identifier: MIT
// The built-in profile is sound, every figure counts in the hash, and absurd figures are refused by name.
#include "capillary/device_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <vector>

#include "capillary/error.h"
#include "capillary/plan.h"

namespace capillary {
namespace {

using ::testing::HasSubstr;

struct Figure {
  const char* name;
  double DeviceProfile::*field;
};
const std::vector<Figure> kFigures = {
    {"hbm_gbps", &DeviceProfile::hbm_gbps},
    {"hbm_gbps_per_cta", &DeviceProfile::hbm_gbps_per_cta},
    {"l2_gbps_per_cta", &DeviceProfile::l2_gbps_per_cta},
    {"wide_gbps_per_cta", &DeviceProfile::wide_gbps_per_cta},
    {"dsm_latency_us", &DeviceProfile::dsm_latency_us},
    {"cluster_barrier_us", &DeviceProfile::cluster_barrier_us},
    {"l2_merge_latency_us", &DeviceProfile::l2_merge_latency_us},
    {"matrix_tflops", &DeviceProfile::matrix_tflops},
    {"matrix_ceiling_tflops", &DeviceProfile::matrix_ceiling_tflops},
    {"narrow_tile_us", &DeviceProfile::narrow_tile_us},
    {"stream_item_us", &DeviceProfile::stream_item_us},
    {"launch_us", &DeviceProfile::launch_us},
    {"job_start_us", &DeviceProfile::job_start_us},
    {"item_start_us", &DeviceProfile::item_start_us},
    {"stream_start_us", &DeviceProfile::stream_start_us},
};

std::string refusal(const DeviceProfile& profile) {
  try {
    validate_profile(profile);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(DeviceProfile, BuiltInIsSound) {
  EXPECT_EQ(refusal(builtin_h200()), "");
  EXPECT_EQ(builtin_h200().num_sms, 132);
  EXPECT_EQ(builtin_h200().hash(), DeviceProfile{}.hash());
}

TEST(DeviceProfile, EveryFigureCountsInTheHash) {
  std::set<uint64_t> hashes = {DeviceProfile{}.hash()};
  const auto add = [&](const std::function<void(DeviceProfile&)>& change) {
    DeviceProfile profile;
    change(profile);
    EXPECT_TRUE(hashes.insert(profile.hash()).second) << "change " << hashes.size();
  };
  for (const Figure& figure : kFigures)
    add([&](DeviceProfile& profile) { profile.*figure.field *= 1.5; });
  add([](DeviceProfile& profile) { profile.num_sms = 114; });
  add([](DeviceProfile& profile) { profile.l2_bytes += 1; });
  add([](DeviceProfile& profile) { profile.smem_bytes_per_cta -= 1024; });
  for (size_t i = 0; i < kNumClusterSizes; ++i) {
    add([&](DeviceProfile& profile) { profile.max_clusters[i] -= 1; });
    add([&](DeviceProfile& profile) { profile.dsm_load_gbps_per_cta[i] += 1; });
  }
  // Names are for people.
  DeviceProfile renamed;
  renamed.name = "another";
  renamed.source = "calibrated";
  renamed.card = {"another", 1, 2};
  EXPECT_EQ(renamed.hash(), DeviceProfile{}.hash());
}

TEST(DeviceProfile, RefusesAbsurdFigures) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const Figure& figure : kFigures) {
    for (const double value : {0.0, -1.0, kNaN, kInfinity, 1e-10, 1e13}) {
      DeviceProfile profile;
      profile.*figure.field = value;
      EXPECT_THAT(refusal(profile), HasSubstr(std::string("validate_profile: ") + figure.name));
    }
  }
  DeviceProfile profile;
  profile.dsm_load_gbps_per_cta[3] = kNaN;
  EXPECT_THAT(refusal(profile), HasSubstr("dsm_load_gbps_per_cta[8]"));
  profile = {};
  profile.max_clusters[2] = -1;
  EXPECT_THAT(refusal(profile), HasSubstr("max_clusters[4] is -1"));
  profile.max_clusters[2] = 100000;
  EXPECT_THAT(refusal(profile), HasSubstr("max_clusters[4] is 100000; must fit the card's SMs"));
  profile = {};
  profile.max_clusters[0] = 0;
  EXPECT_THAT(refusal(profile), HasSubstr("max_clusters[1]"));
  profile = {};
  profile.num_sms = 0;
  EXPECT_THAT(refusal(profile), HasSubstr("num_sms"));
  profile.num_sms = profile.max_clusters[0] = INT32_MAX;
  EXPECT_THAT(refusal(profile), HasSubstr("num_sms is 2147483647; must be at most 65536"));
  // A cluster size that cannot be launched is a fact, not a fault.
  profile = {};
  profile.max_clusters[4] = 0;
  EXPECT_EQ(refusal(profile), "");
}

// Smaller and larger figures than these are refused: with them cutting into runs went on forever, or rows were in no job.
TEST(DeviceProfile, WhatIsNotRefusedCanBePlannedWith) {
  const std::vector<int32_t> parent = {-1, 0, 0, 0}, tokens = {1 << 20, 100000, 512, 1};
  const PrefixForest forest = PrefixForest::from_parents(parent, tokens, 16);
  for (const Figure& figure : kFigures) {
    for (const double value : {1e-9, 1e12}) {
      DeviceProfile profile;
      profile.*figure.field = value;
      for (const int32_t cluster_size : {0, 16}) {
        Planner planner({32, 8, 128}, profile, {Mode::kAuto, cluster_size});
        const Plan& plan = planner.plan(forest);
        EXPECT_NO_THROW(validate_plan(plan.data(), plan.size_bytes(), forest)) << figure.name;
      }
    }
  }
}

TEST(DeviceProfile, FitsItsCardAlone) {
  const CardIdentity here = {"NVIDIA H200", 132, 1980};
  DeviceProfile profile;
  require_profile_fits(profile, here);  // the built-in figures are of no card in particular
  const auto refusal_of = [&](const CardIdentity& card) -> std::string {
    profile.card = card;
    try {
      require_profile_fits(profile, here);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal_of(here), "");
  EXPECT_EQ(refusal_of({"NVIDIA H200", 132, 1900}), "");
  EXPECT_EQ(refusal_of({"NVIDIA H200", 132, 2050}), "");
  EXPECT_THAT(refusal_of({"NVIDIA H100", 132, 1980}),
              HasSubstr("is of NVIDIA H100 with 132 SMs at 1980 MHz; must be of this card, NVIDIA "
                        "H200 with 132 SMs at 1980 MHz; run capillary calibrate on this card"));
  EXPECT_THAT(refusal_of({"NVIDIA H200", 114, 1980}), HasSubstr("114 SMs"));
  EXPECT_THAT(refusal_of({"NVIDIA H200", 132, 1755}), HasSubstr("1755 MHz"));
  EXPECT_THAT(refusal_of({"NVIDIA H200", 132, 0}), HasSubstr("0 MHz"));
  EXPECT_THAT(refusal_of({"NVIDIA H200", 132, INT32_MAX}), HasSubstr("2147483647 MHz"));
}

TEST(DeviceProfile, ThePlannerRefusesThemToo) {
  DeviceProfile profile;
  profile.hbm_gbps = 0;
  EXPECT_THROW(Planner({32, 8, 128}, profile), InvalidArgument);
}

TEST(DeviceProfile, ClusterSizes) {
  EXPECT_EQ(cluster_size_index(1), 0);
  EXPECT_EQ(cluster_size_index(16), 4);
  for (const int32_t none : {-1, 0, 3, 5, 6, 12, 17, 32}) EXPECT_EQ(cluster_size_index(none), -1);
}

}  // namespace
}  // namespace capillary
