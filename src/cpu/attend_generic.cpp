// SPDX-License-Identifier: MIT
// The attend kernel for any processor: 4 lanes, which every compiler maps to something.
#include "cpu/attend.h"

namespace capillary::cpu {
namespace generic {
namespace {

constexpr int kLanes = 4;
constexpr int kScoreTokens = 2;
constexpr int kOutRows = 4;
constexpr int kOutVecs = 2;

typedef uint32_t UInt4 __attribute__((vector_size(16)));
typedef float Float4 __attribute__((vector_size(16)));

// float16 bits, one a lane, without conversion instructions: shifted into a float's place the exponent is
// 112 too small, which a multiplication mends (subnormals too); infinity and NaN get theirs by hand.
inline Float4 widen_fp16(UInt4 bits) {
  const UInt4 sign = (bits & 0x8000u) << 16;
  const UInt4 magnitude = bits & 0x7fffu;
  const UInt4 scaled = (UInt4)((Float4)(magnitude << 13) * 0x1p112f);
  const UInt4 special = (magnitude << 13) | 0x7f800000u;
  return (Float4)((magnitude >= 0x7c00u ? special : scaled) | sign);
}

inline Float4 load_fp16(const std::byte* from) {
  typedef uint16_t Half4 __attribute__((vector_size(8)));
  Half4 bits;
  __builtin_memcpy(&bits, from, sizeof(bits));
  return widen_fp16(__builtin_convertvector(bits, UInt4));
}

#include "cpu/attend_impl.h"

constexpr AttendKernel kKernel = {"generic", packed_floats, scratch_floats, pack_queries, attend};

}  // namespace
}  // namespace generic

const AttendKernel* attend_kernel_generic() {
  return &generic::kKernel;
}

}  // namespace capillary::cpu
