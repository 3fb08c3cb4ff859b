// SPDX-License-Identifier: MIT
// The attend kernel for AVX2 with FMA: 8 lanes, 16 registers.
#include "cpu/attend.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>

namespace capillary::cpu {
namespace avx2 {
namespace {

constexpr int kLanes = 8;
constexpr int kScoreTokens = 4;
constexpr int kOutRows = 4;
constexpr int kOutVecs = 2;

inline __m256 load_fp16(const std::byte* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

#include "cpu/attend_impl.h"

constexpr AttendKernel kKernel = {"avx2", packed_floats, scratch_floats, pack_queries, attend};

}  // namespace
}  // namespace avx2

const AttendKernel* attend_kernel_avx2() {
  // Every processor with AVX2 has F16C; not every compiler can ask for it.
  static const bool kRuns = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return kRuns ? &avx2::kKernel : nullptr;
}

}  // namespace capillary::cpu
#else
namespace capillary::cpu {
const AttendKernel* attend_kernel_avx2() {
  return nullptr;
}
}  // namespace capillary::cpu
#endif
