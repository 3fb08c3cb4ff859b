// SPDX-License-Identifier: MIT
// Random forests x heads that nothing was tuned on: no list of shapes, no model and no measurement of ours goes
// into them, only a seed. What a planner chooses well here it did not learn by heart.
#pragma once

#include <cstdint>
#include <vector>

#include "workload/workload.h"

namespace capillary {

struct HeldOutOptions {
  int32_t num_forests = 500;
  uint64_t seed = 1;
};

// Each has one head count; one to six levels, 1 to 700 requests, uneven fan-outs and, most of them, ragged lengths.
// Lengths are such that one step takes about 20 us to 2 ms on an H200, evenly on a logarithmic scale. The same
// options give the same forests. Throws InvalidArgument on options that cannot be.
std::vector<Workload> held_out_forests(const HeldOutOptions& options);

// By the plainest of estimates: unique bytes at a card's read rate or the arithmetic at a usual matrix rate, and
// what a launch takes. Fixed figures, so that no later model moves the forests.
double held_out_estimate_us(const Workload& workload, const Heads& heads);

}  // namespace capillary
