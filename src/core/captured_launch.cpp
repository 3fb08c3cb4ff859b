// SPDX-License-Identifier: MIT
#include "core/captured_launch.h"

#include <cinttypes>
#include <cstdio>
#include <string>

#include "capillary/error.h"
#include "capillary/plan.h"

namespace capillary {

namespace {

std::string hex(uint64_t hash) {
  char text[20];
  std::snprintf(text, sizeof text, "%016" PRIx64, hash);
  return text;
}

std::string grid_of(const PlanHeader& plan) {
  return std::to_string(plan.num_clusters) + " clusters of " + std::to_string(plan.cluster_size);
}

std::string shape_of(const PlanHeader& plan) {
  return std::to_string(plan.num_q_heads) + "/" + std::to_string(plan.num_kv_heads) +
         " heads, head_dim " + std::to_string(plan.head_dim) + ":" +
         std::to_string(plan.head_dim_v) + ", page_size " + std::to_string(plan.page_size);
}

}  // namespace

int64_t page_id_reach(const TensorView& page_ids) {
  if (page_ids.numel() == 0) return 0;
  return page_ids.ndim == 1 ? page_ids.shape[0]
                            : (page_ids.shape[0] - 1) * page_ids.strides[0] + page_ids.shape[1];
}

void check_replay(const PlanHeader& plan, const CapturedLaunch& captured) {
  const PlanHeader& fixed = captured.header;
  const auto refuse = [](const std::string& came, const std::string& expected, const char* remedy) {
    throw InvalidArgument(five_parts("PlanBuffer::upload", "plan", came, expected, remedy));
  };
  if (plan.cluster_size != fixed.cluster_size || plan.num_clusters != fixed.num_clusters)
    refuse("wants " + grid_of(plan), "keep the captured " + grid_of(fixed),
           "plan with PlanOptions::fixed_grid and the captured cluster_size");
  if (shape_of(plan) != shape_of(fixed))
    refuse("is for " + shape_of(plan), "be for the captured " + shape_of(fixed),
           "capture a launch of its own for each shape");
  if (plan.profile_hash != fixed.profile_hash)
    refuse("was made for device profile " + hex(plan.profile_hash),
           "be made for the captured " + hex(fixed.profile_hash),
           "plan with the DeviceProfile of the captured launch");
  if (plan.num_queries > fixed.num_queries)
    refuse("has " + std::to_string(plan.num_queries) + " queries",
           "have at most the captured " + std::to_string(fixed.num_queries),
           "capture a launch of the largest batch");
  if (plan.num_page_ids > captured.num_page_ids)
    refuse("reaches " + std::to_string(plan.num_page_ids) + " page ids",
           "reach at most the captured " + std::to_string(captured.num_page_ids),
           "capture with a block table that has room for the longest request");
  const int64_t needed =
      workspace_layout(plan.num_kv_heads, plan.split_rows, plan.head_dim_v).total_bytes;
  if (needed > captured.workspace_bytes)
    throw WorkspaceTooSmall(
        five_parts("PlanBuffer::upload", "plan",
                   "needs a workspace of " + std::to_string(needed) + " bytes",
                   "need at most the captured " + std::to_string(captured.workspace_bytes),
                   "capture with a larger workspace"),
        needed, captured.workspace_bytes);
}

void check_profile(const Plan& plan, const DeviceProfile& profile) {
  if (plan.profile_hash() == profile.hash()) return;
  throw InvalidArgument(five_parts("check_profile", "plan",
                                   "was made for device profile " + hex(plan.profile_hash()),
                                   "be made for " + hex(profile.hash()) + " (" + profile.name + ")",
                                   "plan again with this profile"));
}

}  // namespace capillary
