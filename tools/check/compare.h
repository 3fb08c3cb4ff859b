// SPDX-License-Identifier: MIT
// How right an output is: against the fp64 oracle, measured with what a plain computation of the same
// precision gets wrong on the same inputs.
#pragma once

#include <string>
#include <vector>

#include "check/batch.h"

namespace capillary::check {

struct Comparison {
  bool passed = true;
  std::string first_failure;  // row, head, what and by how much
  int64_t num_failures = 0;
  double worst_error = 0;     // relative Frobenius error of a (row, head)
  double worst_of_bound = 0;  // the largest error / bound of a (row, head); passed: <= 1
  double worst_lse_error = 0;
};

// Attention one row at a time in fp32 from left to right, flat, the output rounded to its dtype.
// round_weights: softmax weights are rounded to the cache's dtype before they meet V.
std::vector<float> plain_decode(HostBatch& batch, bool round_weights);

// Bound of a (row, head): twice the plain computation's error there (or its median over the batch, where
// it was lucky) plus one rounding of the output. Rows without keys must be 0 and -inf exactly; every other
// value must be finite.
Comparison compare_with_oracle(HostBatch& batch, bool round_weights);

}  // namespace capillary::check
