// SPDX-License-Identifier: MIT
// Numbers for K, V and queries that are a function of what they stand for: a token's K and V of (token id,
// position, KV head), a query of (request, position, query head). So equal prefixes have equal KV wherever
// their pages lie, and a page that holds another request's tokens, or the right tokens at the wrong place,
// gives a wrong result instead of an unnoticed one.
#pragma once

#include <cstdint>
#include <span>

#include "capillary/tensor_view.h"

namespace capillary {

class KvContent {
 public:
  explicit KvContent(uint64_t seed) : seed_(seed) {}

  // Writes tokens [begin, begin + count) of one page of a cache [pages, page_size, kv_heads, dim] (16 bit,
  // any strides but the last, which is 1). token_ids[i] and position + i describe token begin + i.
  void fill_k(const TensorView& cache, int64_t page, int32_t begin,
              std::span<const int32_t> token_ids, int32_t position) const {
    fill(cache, page, begin, token_ids, position, 1);
  }
  void fill_v(const TensorView& cache, int64_t page, int32_t begin,
              std::span<const int32_t> token_ids, int32_t position) const {
    fill(cache, page, begin, token_ids, position, 2);
  }
  // Writes row `row` of q [num_queries, q_heads, dim].
  void fill_q(const TensorView& q, int64_t row, int64_t request, int32_t position) const;

 private:
  void fill(const TensorView& cache, int64_t page, int32_t begin,
            std::span<const int32_t> token_ids, int32_t position, uint64_t which) const;
  uint64_t seed_;
};

}  // namespace capillary
