// SPDX-License-Identifier: MIT
#include "capillary/device_profile.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "capillary/error.h"
#include "core/hash.h"

namespace capillary {

namespace {

// No card is near these. Beyond them predictions leave the range of the planner's arithmetic, and what it compares
// stops being numbers.
constexpr double kLeastFigure = 1e-9, kMostFigure = 1e12;
constexpr int32_t kMostSms = 1 << 16;

void require_figure(const char* field, double value) {
  if (value >= kLeastFigure && value <= kMostFigure) return;
  char came[40];
  std::snprintf(came, sizeof came, "is %g", value);
  throw InvalidArgument(five_parts("validate_profile", field, came,
                                   "be a finite number above zero, from 1e-9 to 1e12",
                                   "correct the profile or run without one"));
}

std::string describe(const CardIdentity& card) {
  return card.name + " with " + std::to_string(card.num_sms) + " SMs at " +
         std::to_string(card.clock_mhz) + " MHz";
}

}  // namespace

uint64_t DeviceProfile::hash() const {
  Fnv1a hash;
  hash.add(num_sms);
  hash.add(l2_bytes);
  hash.add(smem_bytes_per_cta);
  for (const int32_t count : max_clusters) hash.add(count);
  for (const double figure :
       {hbm_gbps, hbm_gbps_per_cta, l2_gbps_per_cta, wide_gbps_per_cta, dsm_latency_us,
        cluster_barrier_us, l2_merge_latency_us, matrix_tflops, matrix_ceiling_tflops,
        narrow_tile_us, stream_item_us, launch_us, job_start_us, item_start_us, stream_start_us})
    hash.add(figure);
  for (const double rate : dsm_load_gbps_per_cta) hash.add(rate);
  return hash.value();
}

const DeviceProfile& builtin_h200() {
  static const DeviceProfile profile{};
  return profile;
}

void validate_profile(const DeviceProfile& profile) {
  require_figure("num_sms", profile.num_sms);
  if (profile.num_sms > kMostSms)
    throw InvalidArgument(five_parts(
        "validate_profile", "num_sms", "is " + std::to_string(profile.num_sms),
        "be at most " + std::to_string(kMostSms), "correct the profile or run without one"));
  require_figure("l2_bytes", static_cast<double>(profile.l2_bytes));
  require_figure("smem_bytes_per_cta", static_cast<double>(profile.smem_bytes_per_cta));
  require_figure("max_clusters[1]", profile.max_clusters[0]);
  for (int i = 0; i < kNumClusterSizes; ++i) {
    const auto index = static_cast<size_t>(i);
    const std::string size = std::to_string(1 << i);
    const int64_t ctas = static_cast<int64_t>(profile.max_clusters[index]) << i;
    if (profile.max_clusters[index] < 0 || ctas > profile.num_sms * 4ll)
      throw InvalidArgument(five_parts("validate_profile", "max_clusters[" + size + "]",
                                       "is " + std::to_string(profile.max_clusters[index]),
                                       "fit the card's SMs (0: cannot be launched)",
                                       "correct the profile or run without one"));
    require_figure(("dsm_load_gbps_per_cta[" + size + "]").c_str(),
                   profile.dsm_load_gbps_per_cta[index]);
  }
  require_figure("hbm_gbps", profile.hbm_gbps);
  require_figure("hbm_gbps_per_cta", profile.hbm_gbps_per_cta);
  require_figure("l2_gbps_per_cta", profile.l2_gbps_per_cta);
  require_figure("wide_gbps_per_cta", profile.wide_gbps_per_cta);
  require_figure("dsm_latency_us", profile.dsm_latency_us);
  require_figure("cluster_barrier_us", profile.cluster_barrier_us);
  require_figure("l2_merge_latency_us", profile.l2_merge_latency_us);
  require_figure("matrix_tflops", profile.matrix_tflops);
  require_figure("matrix_ceiling_tflops", profile.matrix_ceiling_tflops);
  require_figure("narrow_tile_us", profile.narrow_tile_us);
  require_figure("stream_item_us", profile.stream_item_us);
  require_figure("launch_us", profile.launch_us);
  require_figure("job_start_us", profile.job_start_us);
  require_figure("item_start_us", profile.item_start_us);
  require_figure("stream_start_us", profile.stream_start_us);
}

void require_profile_fits(const DeviceProfile& profile, const CardIdentity& here) {
  const CardIdentity& card = profile.card;
  if (card.name.empty()) return;
  const bool clocks_agree =
      std::abs(int64_t{card.clock_mhz} - here.clock_mhz) * 20 <= card.clock_mhz;
  if (card.name == here.name && card.num_sms == here.num_sms && clocks_agree) return;
  throw InvalidArgument(five_parts("require_profile_fits", "profile '" + profile.name + "'",
                                   "is of " + describe(card), "be of this card, " + describe(here),
                                   "run capillary calibrate on this card"));
}

}  // namespace capillary
