// SPDX-License-Identifier: MIT
// Deterministic K, V and query values (kv_content.h).
#include "workload/kv_content.h"

#include <bit>
#include <cstring>
#include <string>

#include "capillary/error.h"

namespace capillary {
namespace {

uint64_t mix(uint64_t value) {
  value ^= value >> 31;
  value *= 0x7fb5d329728ea185ull;
  value ^= value >> 27;
  value *= 0x81dadef4bc2dd44dull;
  return value ^ (value >> 33);
}

// Round to nearest, ties to even; the values here are finite and far from overflow.
uint16_t to_bfloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// Multiples of 2^-8 below 8 in magnitude are exact in half precision.
uint16_t small_multiple_to_float16(int32_t numerator) {
  if (numerator == 0) return 0;
  const auto magnitude = static_cast<uint32_t>(numerator < 0 ? -numerator : numerator);
  const auto exponent = static_cast<uint32_t>(std::bit_width(magnitude) - 1);
  const uint32_t fraction = (magnitude << (10 - exponent)) & 0x3ffu;
  return static_cast<uint16_t>((numerator < 0 ? 0x8000u : 0u) | ((exponent + 7) << 10) | fraction);
}

// dim values, uniform over the multiples of 2^-8 in [-scale, scale), scale 1, 2 or 4: at most eleven bits,
// which half precision holds exactly.
void write_row(void* destination, DType dtype, int64_t dim, uint64_t state, int32_t scale) {
  auto* out = static_cast<unsigned char*>(destination);
  const auto range = static_cast<uint32_t>(512 * scale);
  uint64_t bits = 0;
  for (int64_t i = 0; i < dim; ++i) {
    if (i % 4 == 0) bits = mix(state += 0x9e3779b97f4a7c15ull);
    const auto drawn = static_cast<uint32_t>(bits & 0xffffu) % range;
    bits >>= 16;
    const int32_t numerator = static_cast<int32_t>(drawn) - static_cast<int32_t>(range / 2);
    if (dtype == DType::kFloat32) {
      const float value = static_cast<float>(numerator) / 256.0f;
      std::memcpy(out + i * 4, &value, 4);
      continue;
    }
    const uint16_t value = dtype == DType::kBFloat16
                               ? to_bfloat16(static_cast<float>(numerator) / 256.0f)
                               : small_multiple_to_float16(numerator);
    std::memcpy(out + i * 2, &value, 2);
  }
}

void check_view(const TensorView& view, int32_t ndim, const char* function, const char* argument) {
  const bool fits = view.ndim == ndim && view.device == DeviceType::kCpu &&
                    (dtype_bytes(view.dtype) == 2 || view.dtype == DType::kFloat32) &&
                    view.strides[static_cast<size_t>(ndim - 1)] == 1;
  if (!fits) {
    throw InvalidArgument(five_parts(function, argument,
                                     std::string("is ") + dtype_name(view.dtype) + " of " +
                                         std::to_string(view.ndim) + " dimensions",
                                     "be a floating point CPU tensor of " + std::to_string(ndim) +
                                         " dimensions with last stride 1",
                                     "fill on the CPU and copy"));
  }
}

}  // namespace

void KvContent::fill(const TensorView& cache, int64_t page, int32_t begin,
                     std::span<const int32_t> token_ids, int32_t position, uint64_t which) const {
  check_view(cache, 4, "KvContent::fill", "cache");
  const int64_t element = dtype_bytes(cache.dtype);
  auto* base = static_cast<unsigned char*>(cache.data);
  for (size_t i = 0; i < token_ids.size(); ++i) {
    const auto token = static_cast<uint64_t>(static_cast<uint32_t>(token_ids[i]));
    const auto place = static_cast<uint64_t>(position) + i;
    const uint64_t state = mix(seed_ ^ (token << 32) ^ place) + which;
    for (int64_t head = 0; head < cache.shape[2]; ++head) {
      const int64_t offset = page * cache.strides[0] +
                             (begin + static_cast<int64_t>(i)) * cache.strides[1] +
                             head * cache.strides[2];
      write_row(base + offset * element, cache.dtype, cache.shape[3],
                mix(state ^ (static_cast<uint64_t>(head) << 40)), 1);
    }
  }
}

void KvContent::fill_q(const TensorView& q, int64_t row, int64_t request, int32_t position) const {
  check_view(q, 3, "KvContent::fill_q", "q");
  auto* base = static_cast<unsigned char*>(q.data);
  const uint64_t state =
      mix(seed_ ^ (static_cast<uint64_t>(request) << 32) ^ static_cast<uint64_t>(position)) + 3;
  for (int64_t head = 0; head < q.shape[1]; ++head) {
    const int64_t offset = row * q.strides[0] + head * q.strides[1];
    // Wider than K and V: scores then spread over several units and the softmax has something to choose.
    write_row(base + offset * dtype_bytes(q.dtype), q.dtype, q.shape[2],
              mix(state ^ (static_cast<uint64_t>(head) << 40)), 4);
  }
}

}  // namespace capillary
