// SPDX-License-Identifier: MIT
// The arithmetic of one work item: online softmax of some query rows over a block of tokens, in fp32.
// A token is read from the cache and converted once, then used by every row; that is all there is to sharing
// on a CPU. State is (max in base 2, sum, un-normalised output) a row, updated in place.
//
// attend_impl.h holds the code; it is compiled once an instruction set (attend_generic.cpp, _avx2, _avx512)
// and chosen when the program runs. The instruction sets differ in the order of their sums, hence in last
// bits; one machine always takes the same.
#pragma once

#include <cstddef>
#include <cstdint>

namespace capillary::cpu {

// Tokens that one call takes at most.
inline constexpr int kBlockTokens = 32;
// Output rows and packed buffers are padded to this many floats, and aligned to as many bytes as they fill.
inline constexpr int kPadFloats = 16;

enum class CacheType : int { kFloat16 = 0, kBFloat16 = 1, kFloat32 = 2 };

constexpr int64_t padded_floats(int64_t count) {
  return (count + kPadFloats - 1) / kPadFloats * kPadFloats;
}

// Addresses of the first K and V element of some tokens of one KV head.
struct TokenBlock {
  int num_tokens = 0;
  const std::byte* k[kBlockTokens];
  const std::byte* v[kBlockTokens];
};

// Query rows and their state.
struct AttendRows {
  int num_rows;
  int head_dim;
  int head_dim_v;
  CacheType type;
  float score_scale;  // softmax_scale * log2(e)
  const float* packed_q;
  float* max;      // [num_rows]
  float* sum;      // [num_rows]
  float* out;      // [num_rows, padded_floats(head_dim_v)], aligned
  float* scratch;  // scratch_floats(), aligned, zeroed once
};

struct AttendKernel {
  const char* name;
  // What pack_queries writes for up to max_rows rows, and what attend needs.
  int64_t (*packed_floats)(int max_rows, int head_dim);
  int64_t (*scratch_floats)(int max_rows, int head_dim, int head_dim_v);
  // q [num_rows, head_dim], of the cache's type, -> the order in which attend reads it.
  void (*pack_queries)(int num_rows, int head_dim, CacheType type, const float* q, float* packed);
  // next: what the following call will take, fetched ahead; may be empty.
  void (*attend)(const AttendRows& rows, const TokenBlock& block, const TokenBlock& next);
};

// Null where this build or this processor has no such instructions.
const AttendKernel* attend_kernel_generic();
const AttendKernel* attend_kernel_avx2();
const AttendKernel* attend_kernel_avx512();
const AttendKernel* attend_kernel_avx512_bf16();

// The best one that runs here.
const AttendKernel& best_attend_kernel();

}  // namespace capillary::cpu
