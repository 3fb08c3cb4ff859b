// SPDX-License-Identifier: MIT
// Plan accessors: everything is read off the blob.
#include "capillary/plan.h"

#include "shared/plan_layout.h"

namespace capillary {

const char* mode_name(Mode mode) {
  switch (mode) {
    case Mode::kAuto:
      return "auto";
    case Mode::kFlat:
      return "flat";
    case Mode::kSharedL2:
      return "shared-l2";
  }
  return "unknown";
}

size_t Plan::size_bytes() const {
  return words_.empty() ? 0 : PlanView(words_.data()).header().total_bytes;
}

int32_t Plan::num_requests() const {
  return words_.empty() ? 0 : PlanView(words_.data()).header().num_requests;
}

int32_t Plan::cluster_size() const {
  return words_.empty() ? 1 : PlanView(words_.data()).header().cluster_size;
}

int64_t Plan::workspace_bytes() const {
  if (words_.empty()) return 0;
  const PlanHeader& header = PlanView(words_.data()).header();
  return workspace_layout(header.num_kv_heads, header.split_rows, header.head_dim_v).total_bytes;
}

double Plan::predicted_us() const {
  return words_.empty() ? 0.0 : static_cast<double>(PlanView(words_.data()).header().predicted_us);
}

uint64_t Plan::profile_hash() const {
  return words_.empty() ? 0 : PlanView(words_.data()).header().profile_hash;
}

}  // namespace capillary
