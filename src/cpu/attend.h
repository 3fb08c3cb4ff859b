// SPDX-License-Identifier: MIT
// The arithmetic of one work item: online softmax of some query rows over a block of tokens, in fp32.
// Rows share every token of the block, so a token is read from the cache and converted once for all of them.
// State is (max in base 2, sum, un-normalised output) a row, updated in place.
#pragma once

#include <cstddef>
#include <cstdint>

#include "capillary/tensor_view.h"

namespace capillary::cpu {

// Tokens that one attend_block call takes at most.
inline constexpr int32_t kBlockTokens = 32;

// Query rows and their state. Output rows are out_stride floats apart.
struct AttendRows {
  int32_t num_rows;
  int32_t head_dim;
  int32_t head_dim_v;
  DType dtype;     // of the cache
  const float* q;  // [num_rows, head_dim], times softmax_scale * log2(e)
  float* max;      // [num_rows]
  float* sum;      // [num_rows]
  float* out;      // [num_rows, out_stride]
  int64_t out_stride;
};

void attend_block(const AttendRows& rows, const std::byte* const* k_tokens,
                  const std::byte* const* v_tokens, int32_t num_tokens);

}  // namespace capillary::cpu
