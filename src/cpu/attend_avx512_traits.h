// SPDX-License-Identifier: MIT
// Vector width, block sizes and float16 loads of the two AVX-512 attend kernels. Included inside the namespace
// of each, before attend_impl.h.

constexpr int kLanes = 16;
constexpr int kScoreTokens = 8;
constexpr int kOutRows = 4;
constexpr int kOutVecs = 4;

inline __m512 load_fp16(const std::byte* from) {
  // The unmasked form makes GCC 12 warn about its own header's undefined operand.
  return _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

inline bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("fma");
}
