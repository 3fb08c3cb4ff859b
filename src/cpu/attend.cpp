// SPDX-License-Identifier: MIT
#include "cpu/attend.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu/tensor_access.h"
#include "shared/lse.h"

namespace capillary::cpu {

void attend_block(const AttendRows& rows, const std::byte* const* k_tokens,
                  const std::byte* const* v_tokens, int32_t num_tokens) {
  const int32_t dim = rows.head_dim;
  const int32_t dim_v = rows.head_dim_v;
  std::vector<float> keys(static_cast<size_t>(num_tokens * dim));
  std::vector<float> values(static_cast<size_t>(num_tokens * dim_v));
  for (int32_t t = 0; t < num_tokens; ++t) {
    load_floats(k_tokens[t], rows.dtype, dim, &keys[static_cast<size_t>(t * dim)]);
    load_floats(v_tokens[t], rows.dtype, dim_v, &values[static_cast<size_t>(t * dim_v)]);
  }
  float scores[kBlockTokens];
  for (int32_t row = 0; row < rows.num_rows; ++row) {
    const float* q = rows.q + row * dim;
    float block_max = kEmptyMax;
    for (int32_t t = 0; t < num_tokens; ++t) {
      float score = 0.0f;
      for (int32_t i = 0; i < dim; ++i) score += q[i] * keys[static_cast<size_t>(t * dim + i)];
      scores[t] = score;
      block_max = std::max(block_max, score);
    }
    const float max = std::max(rows.max[row], block_max);
    const float rescale = std::exp2(rows.max[row] - max);
    float* out = rows.out + row * rows.out_stride;
    float sum = rows.sum[row] * rescale;
    for (int32_t i = 0; i < dim_v; ++i) out[i] *= rescale;
    for (int32_t t = 0; t < num_tokens; ++t) {
      const float weight = std::exp2(scores[t] - max);
      sum += weight;
      for (int32_t i = 0; i < dim_v; ++i) {
        out[i] += weight * values[static_cast<size_t>(t * dim_v + i)];
      }
    }
    rows.max[row] = max;
    rows.sum[row] = sum;
  }
}

}  // namespace capillary::cpu
