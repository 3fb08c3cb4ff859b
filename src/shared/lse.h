// SPDX-License-Identifier: MIT
// The one place where log-sum-exp state is merged and finished on the CPU, by the interpreter and by merge_states. (The
// kernel folds many partials at once and makes them itself, so it knows no foreign way to say empty.)
//   - a partial is (max, sum, output): max in base 2, output not yet divided by sum;
//   - a side whose max or LSE is -inf (or +inf, as some libraries report it) has no keys: its weight is 0
//     and its values are never used, whatever they are (weighted() below);
//   - two empty sides merge to an empty side: output 0, LSE -inf, never NaN;
//   - NaN is not empty: it survives merging, so that a poisoned partial cannot hide.
#pragma once

#include <cmath>
#include <limits>

#include "shared/host_device.h"

namespace capillary {

inline constexpr float kLog2E = 1.44269504088896340736f;
inline constexpr float kLn2 = 0.69314718055994530942f;
inline constexpr float kEmptyMax = -std::numeric_limits<float>::infinity();

CAPILLARY_HOST_DEVICE constexpr bool is_empty_lse(float value) {
  return value == kEmptyMax || value == -kEmptyMax;
}

// What two sides are multiplied by to meet at their common maximum.
struct MergeScales {
  float max;      // -inf when both sides are empty
  float scale_a;  // 0 for an empty side, else in (0, 1] (or 0 by underflow)
  float scale_b;
};

// The sides' maxima (or LSEs) in base 2.
CAPILLARY_HOST_DEVICE inline MergeScales merge_scales_base2(float max_a, float max_b) {
  const bool empty_a = is_empty_lse(max_a);
  const bool empty_b = is_empty_lse(max_b);
  if (empty_a) return {empty_b ? kEmptyMax : max_b, 0.0f, empty_b ? 0.0f : 1.0f};
  if (empty_b) return {max_a, 1.0f, 0.0f};
  const float max = max_a > max_b ? max_a : max_b;
  return {max, exp2f(max_a - max), exp2f(max_b - max)};
}

CAPILLARY_HOST_DEVICE inline MergeScales merge_scales_base_e(float lse_a, float lse_b) {
  const bool empty_a = is_empty_lse(lse_a);
  const bool empty_b = is_empty_lse(lse_b);
  if (empty_a) return {empty_b ? kEmptyMax : lse_b, 0.0f, empty_b ? 0.0f : 1.0f};
  if (empty_b) return {lse_a, 1.0f, 0.0f};
  const float max = lse_a > lse_b ? lse_a : lse_b;
  return {max, expf(lse_a - max), expf(lse_b - max)};
}

// value * scale, where a scale of 0 wins over NaN and infinity.
CAPILLARY_HOST_DEVICE constexpr float weighted(float value, float scale) {
  return scale == 0.0f ? 0.0f : value * scale;
}

// What the un-normalised output is multiplied by at the end; 0 for a row without keys.
CAPILLARY_HOST_DEVICE constexpr float normaliser(float sum) {
  return sum == 0.0f ? 0.0f : 1.0f / sum;
}

// Natural-log LSE of a finished partial.
CAPILLARY_HOST_DEVICE inline float natural_lse(float max_base2, float sum) {
  return sum == 0.0f ? kEmptyMax : (max_base2 + log2f(sum)) * kLn2;
}

}  // namespace capillary
