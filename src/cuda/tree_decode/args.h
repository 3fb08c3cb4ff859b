// SPDX-License-Identifier: MIT
// Run-time parameters of the kernel, passed by value as one __grid_constant__.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/trace_layout.h"
#include "shared/fast_div.h"

namespace capillary::tree_decode {

// How the load role fetches tiles. Wide ones come in tensor boxes, but for kRows.
enum class TileCopy : uint32_t {
  kBulk = 0,  // narrow: runs of narrow_piece_tokens contiguous rows, a bulk copy each
  kTensor =
      1,      // narrow: one unswizzled tensor box (page size a multiple of 16, rows not contiguous)
  kRows = 2,  // pages of one token: rows gathered, of wide tiles, too (load_rows.cuh)
};

// One of the two caches, [num_pages, page_size, num_kv_heads, head_dim] by byte strides.
struct CacheArgs {
  const unsigned char* base;
  int64_t page_stride, token_stride, head_stride;
};

struct KernelArgs {
  // Wide, 128-byte swizzle: where wide_page_rows is set, 5-D maps whose box is a whole tile, 64 dims x 8 tokens x
  // head_dim / 64 x 2, addressed by page * wide_page_rows + kv head; else 4-D maps [page][kv head][token][dim] with
  // boxes of 64 dims x wide_piece tokens. Narrow, unswizzled (TileCopy::kTensor only): boxes of head_dim x 16 tokens.
  CUtensorMap wide_map[2], narrow_map[2];  // K, V
  uint32_t wide_page_rows[2];              // heads' rows from one page to the next

  const unsigned char* plan;  // device copy of the blob
  const void* q;              // [num_queries, num_q_heads, head_dim]
  CacheArgs cache[2];         // K, V; rows of head_dim elements are contiguous
  const int32_t* page_ids;
  void* out;                                  // [num_queries, num_q_heads, head_dim]
  float* lse;                                 // [num_queries, num_q_heads] natural log, or null
  void* workspace;                            // plan_layout.h: WorkspaceLayout
  int64_t q_token_stride, q_head_stride;      // elements
  int64_t out_token_stride, out_head_stride;  // elements
  int64_t lse_token_stride, lse_head_stride;  // elements
  float scale_log2;                           // softmax_scale * log2(e)
  FastDiv group_size;
  FastDiv page_size;
  // Tokens that one copy may take together. Wide 4-D boxes: 1, 2, 4 or 8, the largest power of two in the page
  // size. Narrow bulk copies: likewise, up to 16, if a head's rows are contiguous in a page, else 1.
  FastDiv wide_piece;
  uint32_t narrow_piece_tokens;
  TileCopy tile_copy;
#ifdef CAPILLARY_TRACE
  TraceRecord* trace;  // or null
#endif
};

}  // namespace capillary::tree_decode
