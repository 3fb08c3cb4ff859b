// SPDX-License-Identifier: MIT
// Element addresses and conversions for strided host tensors. Offsets are 64 bits wide everywhere.
#pragma once

#include <cstdint>
#include <cstring>

#include "capillary/tensor_view.h"
#include "shared/half.h"

namespace capillary::cpu {

template <class... Index>
std::byte* element(const TensorView& view, Index... index) {
  int64_t offset = 0;
  size_t axis = 0;
  ((offset += static_cast<int64_t>(index) * view.strides[axis++]), ...);
  return static_cast<std::byte*>(view.data) + offset * dtype_bytes(view.dtype);
}

// Value number idx of a run of values of a floating dtype.
inline float load_float(const std::byte* run, DType dtype, int64_t idx) {
  if (dtype == DType::kFloat32) {
    float value;
    std::memcpy(&value, run + idx * 4, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, run + idx * 2, 2);
  return dtype == DType::kBFloat16 ? bf16_to_float(bits) : fp16_to_float(bits);
}

inline void store_float(std::byte* run, DType dtype, int64_t idx, float value) {
  if (dtype == DType::kFloat32) {
    std::memcpy(run + idx * 4, &value, 4);
    return;
  }
  const uint16_t bits = dtype == DType::kBFloat16 ? float_to_bf16(value) : float_to_fp16(value);
  std::memcpy(run + idx * 2, &bits, 2);
}

// Runs of values; the dtype is looked at once.
inline void load_floats(const std::byte* run, DType dtype, int64_t count, float* values) {
  if (dtype == DType::kFloat32) {
    std::memcpy(values, run, static_cast<size_t>(count) * 4);
  } else if (dtype == DType::kBFloat16) {
    for (int64_t i = 0; i < count; ++i) values[i] = load_float(run, DType::kBFloat16, i);
  } else {
    for (int64_t i = 0; i < count; ++i) values[i] = load_float(run, DType::kFloat16, i);
  }
}

constexpr bool is_floating(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kBFloat16 || dtype == DType::kFloat32;
}

}  // namespace capillary::cpu
