// SPDX-License-Identifier: MIT
// The attend kernel for AVX-512 with bfloat16 dot products, which halve the work of Q times K.
#include "cpu/attend.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && \
    defined(__AVX512VL__) && defined(__AVX512BF16__)
#include <immintrin.h>

namespace capillary::cpu {
namespace avx512_bf16 {
namespace {

constexpr int kLanes = 16;
constexpr int kScoreTokens = 8;
constexpr int kOutRows = 4;
constexpr int kOutVecs = 4;

inline __m512 load_fp16(const std::byte* from) {
  // The unmasked form makes GCC 12 warn about its own header's undefined operand.
  return _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

// acc + q[2i] * k[2i] + q[2i + 1] * k[2i + 1] in every lane.
inline __m512 dot_pairs(__m512 acc, __m512i q, __m512i k) {
  return _mm512_dpbf16_ps(acc, (__m512bh)q, (__m512bh)k);
}

#include "cpu/attend_impl.h"

constexpr AttendKernel kKernel = {"avx512_bf16", packed_floats, scratch_floats, pack_queries,
                                  attend};

}  // namespace
}  // namespace avx512_bf16

const AttendKernel* attend_kernel_avx512_bf16() {
  static const bool kRuns =
      __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("fma") && __builtin_cpu_supports("avx512bf16");
  return kRuns ? &avx512_bf16::kKernel : nullptr;
}

}  // namespace capillary::cpu
#else
namespace capillary::cpu {
const AttendKernel* attend_kernel_avx512_bf16() {
  return nullptr;
}
}  // namespace capillary::cpu
#endif
