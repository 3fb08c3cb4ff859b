// SPDX-License-Identifier: MIT
// Run-time parameters of the kernel, passed by value as one __grid_constant__.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace capillary::tree_decode {

// How the producers fetch a narrow tile's rows.
enum class NarrowCopy : uint32_t {
  kBulk = 0,    // runs of piece_tokens contiguous rows, a bulk copy each
  kTensor = 1,  // one unswizzled tensor box of 16 tokens (page size a multiple of 16, rows not contiguous)
};

struct KernelArgs {
  // 4-D maps [page][kv head][token][dim]: boxes of 64 dims x piece_tokens, 128-byte swizzle (wide), and of
  // head_dim x 16 tokens, unswizzled (narrow, NarrowCopy::kTensor only).
  CUtensorMap k_wide, v_wide, k_narrow, v_narrow;

  const unsigned char* plan;  // device copy of the blob
  const void* q;              // [num_queries, num_q_heads, head_dim]
  const void* k;              // byte strides below; rows of head_dim elements are contiguous
  const void* v;
  const int32_t* page_ids;
  void* out;         // [num_queries, num_q_heads, head_dim]
  float* lse;        // [num_queries, num_q_heads] natural log, or null
  void* workspace;   // plan_layout.h: WorkspaceLayout
  int64_t q_token_stride, q_head_stride;      // elements
  int64_t out_token_stride, out_head_stride;  // elements
  int64_t lse_token_stride, lse_head_stride;  // elements
  int64_t k_page_stride, k_token_stride, k_head_stride;  // bytes
  int64_t v_page_stride, v_token_stride, v_head_stride;  // bytes
  float scale_log2;  // softmax_scale * log2(e)
  uint32_t group_size;
  uint32_t page_size;
  // 1, 2, 4, 8 or 16: tokens that one copy may take together. Wide boxes: the largest power of two in the page
  // size. Narrow bulk copies: the same if a head's rows are contiguous in a page, else 1.
  uint32_t wide_piece_tokens;
  uint32_t narrow_piece_tokens;
  NarrowCopy narrow_copy;
#ifdef CAPILLARY_TRACE
  long long* trace;  // [CTAs][TraceEvent::kNumEvents], zeroed; or null
#endif
};

}  // namespace capillary::tree_decode
