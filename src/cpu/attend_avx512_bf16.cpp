// SPDX-License-Identifier: MIT
// The attend kernel for AVX-512 with bfloat16 dot products, which halve the work of Q times K.
#include "cpu/attend.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && \
    defined(__AVX512VL__) && defined(__AVX512BF16__)
#include <immintrin.h>

namespace capillary::cpu {
namespace avx512_bf16 {
namespace {

#include "cpu/attend_avx512_traits.h"

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
  static const bool kRuns = avx512_bf16::has_avx512() && __builtin_cpu_supports("avx512bf16");
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
