// SPDX-License-Identifier: MIT
// One decode step of eight requests that share a 512-token prefix, on the CPU: describe the tree, plan it,
// run the plan, and compare one row with attention written out by hand.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <limits>
#include <random>
#include <vector>

#include "capillary/capillary.h"

namespace {

constexpr int32_t kPageSize = 16;
constexpr int32_t kPrefixTokens = 512;
constexpr int32_t kOwnTokens = 70;
constexpr int32_t kNumRequests = 8;

// bfloat16 is the upper half of a float.
uint16_t to_bf16(float value) {
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
}
float from_bf16(uint16_t value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value) << 16);
}

std::vector<uint16_t> random_tensor(size_t size, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> values(size);
  for (uint16_t& value : values) value = to_bf16(normal(generator));
  return values;
}

capillary::TensorView view(void* data, capillary::DType dtype, std::vector<int64_t> shape) {
  capillary::TensorView tensor;
  tensor.data = data;
  tensor.dtype = dtype;
  tensor.ndim = static_cast<int32_t>(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    tensor.shape[i] = shape[i];
    tensor.strides[i] = stride;
    stride *= shape[i];
  }
  return tensor;
}

// The pages of one request, in order: those of its path from the root down.
std::vector<int32_t> pages_of(const capillary::PrefixForest& forest, int32_t position) {
  std::vector<int32_t> pages;
  for (const capillary::ForestNode& node : forest.nodes()) {  // parents come before children
    if (position < node.request_begin || position >= node.request_end) continue;
    const int32_t num_pages = (node.num_tokens + kPageSize - 1) / kPageSize;
    for (int32_t i = 0; i < num_pages; ++i) {
      pages.push_back(forest.page_ids()[static_cast<size_t>(node.page_offset + i)]);
    }
  }
  return pages;
}

int run() {
  // Node 0 is the shared prefix; nodes 1..8 hang under it and are one request each.
  std::vector<int32_t> parent = {-1};
  std::vector<int32_t> num_tokens = {kPrefixTokens};
  for (int32_t i = 0; i < kNumRequests; ++i) {
    parent.push_back(0);
    num_tokens.push_back(kOwnTokens);
  }
  const auto forest = capillary::PrefixForest::from_parents(parent, num_tokens, kPageSize);

  capillary::ModelShape shape;
  shape.num_q_heads = 8;
  shape.num_kv_heads = 2;
  shape.head_dim = 64;
  capillary::Planner planner(shape);
  const capillary::Plan& plan = planner.plan(forest);
  std::printf("%d requests: %lld KV tokens counted once, %lld counted per request\n",
              forest.num_requests(), static_cast<long long>(forest.unique_tokens()),
              static_cast<long long>(forest.flat_tokens()));
  std::printf("plan: %d jobs a KV head on clusters of %d, %.1f us predicted; %s\n",
              planner.summary().num_jobs, plan.cluster_size(), plan.predicted_us(),
              planner.summary().reason.c_str());

  const auto num_pages = static_cast<int64_t>(forest.page_ids().size());
  const int64_t cache_elements = num_pages * kPageSize * shape.num_kv_heads * shape.head_dim;
  const int64_t row_elements = int64_t{kNumRequests} * shape.num_q_heads * shape.head_dim;
  auto q = random_tensor(static_cast<size_t>(row_elements), 1);
  auto k = random_tensor(static_cast<size_t>(cache_elements), 2);
  auto v = random_tensor(static_cast<size_t>(cache_elements), 3);
  std::vector<uint16_t> out(static_cast<size_t>(row_elements));
  std::vector<int32_t> page_ids(forest.page_ids().begin(), forest.page_ids().end());

  using capillary::DType;
  const std::vector<int64_t> rows = {kNumRequests, shape.num_q_heads, shape.head_dim};
  const std::vector<int64_t> cache = {num_pages, kPageSize, shape.num_kv_heads, shape.head_dim};
  capillary::DecodeTensors tensors;
  tensors.q = view(q.data(), DType::kBFloat16, rows);
  tensors.k_cache = view(k.data(), DType::kBFloat16, cache);
  tensors.v_cache = view(v.data(), DType::kBFloat16, cache);
  tensors.page_ids = view(page_ids.data(), DType::kInt32, {num_pages});
  tensors.out = view(out.data(), DType::kBFloat16, rows);
  capillary::decode_cpu(plan, tensors);

  // By hand: the last request in leaf order, its first query head, hence KV head 0.
  const int32_t position = kNumRequests - 1;
  const int32_t request = forest.leaf_order()[position];
  const auto dim = static_cast<size_t>(shape.head_dim);
  const size_t row = static_cast<size_t>(request * shape.num_q_heads) * dim;
  const std::vector<int32_t> pages = pages_of(forest, position);
  const int32_t length = forest.seq_lens()[position];
  const auto key = [&](int32_t token) {
    const size_t slot =
        static_cast<size_t>(pages[static_cast<size_t>(token / kPageSize)]) * kPageSize +
        static_cast<size_t>(token % kPageSize);
    return slot * static_cast<size_t>(shape.num_kv_heads) * dim;
  };
  std::vector<double> scores(static_cast<size_t>(length));
  double max_score = -std::numeric_limits<double>::infinity();
  for (int32_t token = 0; token < length; ++token) {
    double dot = 0;
    for (size_t d = 0; d < dim; ++d)
      dot += double{from_bf16(q[row + d])} * from_bf16(k[key(token) + d]);
    scores[static_cast<size_t>(token)] = dot / std::sqrt(static_cast<double>(dim));
    max_score = std::max(max_score, scores[static_cast<size_t>(token)]);
  }
  double sum = 0;
  std::vector<double> expected(dim);
  for (int32_t token = 0; token < length; ++token) {
    const double weight = std::exp(scores[static_cast<size_t>(token)] - max_score);
    sum += weight;
    for (size_t d = 0; d < dim; ++d) expected[d] += weight * from_bf16(v[key(token) + d]);
  }
  double worst = 0;
  for (size_t d = 0; d < dim; ++d) {
    worst = std::max(worst, std::abs(expected[d] / sum - from_bf16(out[row + d])));
  }
  std::printf("largest difference from attention by hand: %.2g\n", worst);
  // Outputs here are below 1, where half a bfloat16 step is at most 2^-9; the rest is fp32 arithmetic.
  return worst < 4e-3 ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
