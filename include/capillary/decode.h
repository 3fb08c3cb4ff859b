// SPDX-License-Identifier: MIT
// Running a plan. All tensors are borrowed; nothing here allocates device memory, synchronises or copies.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "capillary/plan.h"
#include "capillary/tensor_view.h"

namespace capillary {

// Tensors of one decode step of one layer.
struct DecodeTensors {
  TensorView q;  // [num_queries, num_q_heads, head_dim], last stride 1
  TensorView
      k_cache;  // [num_pages, page_size, num_kv_heads, head_dim] in this logical order; any strides
  TensorView
      v_cache;  // [num_pages, page_size, num_kv_heads, head_dim_v]; (HND, packed K|V, ...), last 1
  // int32: the block table [num_requests, max_pages] the forest was built from, or forest.page_ids() [n].
  TensorView page_ids;
  TensorView out;  // [num_queries, num_q_heads, head_dim_v], dtype of q
  TensorView lse;  // float32 [num_queries, num_q_heads], natural log; optional
};

struct DecodeOptions {
  float softmax_scale = 0.0f;  // 0: 1/sqrt(head_dim); else above zero
  int32_t num_threads = 0;     // CPU only; 0: all
  // CUDA only: programmatic dependent launch. Our start may overlap the tail of the kernel before us on the
  // stream (which must have triggered it), and the kernel after us may do the same.
  bool dependent_launch = false;
};

// Views of a cache stored [pages, 2, heads, page_size, head_dim]-like are made with permute; this one turns
// an HND tensor [pages, heads, page_size, dim] into the logical NHD order without copying.
TensorView hnd_as_nhd(const TensorView& hnd);

// Checks every shape, dtype, stride and device against the plan; throws InvalidArgument/UnsupportedConfig.
// Called by every decode function.
void check_tensors(const Plan& plan, const DecodeTensors& tensors, DeviceType device);

// Executes the plan on the CPU in fp32, work item by work item as the kernel would. A row without keys, or whose scores
// are all -inf, has output 0 and LSE -inf; a score of NaN or +inf makes both NaN.
void decode_cpu(const Plan& plan, const DecodeTensors& tensors, const DecodeOptions& options = {});

// The oracle: flat fp64 attention over seq_lens and block table rows; knows no trees and no plans.
// Writes fp64 results: out [num_queries, num_q_heads, head_dim_v], lse [num_queries, num_q_heads].
struct OracleInput {
  TensorView q, k_cache, v_cache;
  BlockTableView block_table;
  std::span<const int32_t> seq_lens;
  double softmax_scale = 0.0;                   // 0: 1/sqrt(head_dim)
  std::span<const int32_t> only_requests = {};  // empty: all
  int32_t num_threads = 0;
};
struct OracleResult {
  std::vector<double> out;
  std::vector<double> lse;
};
OracleResult oracle_decode(const OracleInput& input);

// (v, lse) pairs of disjoint key sets -> the pair of their union; -inf LSE is an empty side and its v is
// ignored, as is +inf. v: [rows, heads, dim] float32/16-bit, lse: float32 [rows, heads], base e or 2.
// In place (out aliases a side) is allowed.
enum class LseBase { kE, k2 };
void merge_states(const TensorView& v_a, const TensorView& lse_a, const TensorView& v_b,
                  const TensorView& lse_b, const TensorView& v_out, const TensorView& lse_out,
                  LseBase base = LseBase::kE);

}  // namespace capillary
