// SPDX-License-Identifier: MIT
// The attend kernel for AVX-512: 16 lanes, 32 registers.
#include "cpu/attend.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#include <immintrin.h>

namespace capillary::cpu {
namespace avx512 {
namespace {

#include "cpu/attend_avx512_traits.h"
#include "cpu/attend_impl.h"

constexpr AttendKernel kKernel = {"avx512", packed_floats, scratch_floats, pack_queries, attend};

}  // namespace
}  // namespace avx512

const AttendKernel* attend_kernel_avx512() {
  static const bool kRuns = avx512::has_avx512();
  return kRuns ? &avx512::kKernel : nullptr;
}

}  // namespace capillary::cpu
#else
namespace capillary::cpu {
const AttendKernel* attend_kernel_avx512() {
  return nullptr;
}
}  // namespace capillary::cpu
#endif
