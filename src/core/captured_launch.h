// SPDX-License-Identifier: MIT
// A launch recorded in a CUDA graph has its grid, its tensors and its workspace for good; plans that are written
// into its buffer later have to fit. Checked on the host before anything is copied or launched.
#pragma once

#include <cstdint>

#include "capillary/decode.h"
#include "shared/plan_layout.h"

namespace capillary {

struct CapturedLaunch {
  PlanHeader header;  // of the plan that was captured: grid, shape, profile, most queries
  int64_t num_page_ids;
  int64_t workspace_bytes;
};

// Entries of the page id array that a plan may reach, by how it was passed.
int64_t page_id_reach(const TensorView& page_ids);

// Throws InvalidArgument or WorkspaceTooSmall naming what the plan asks for and what was captured.
void check_replay(const PlanHeader& plan, const CapturedLaunch& captured);

}  // namespace capillary
