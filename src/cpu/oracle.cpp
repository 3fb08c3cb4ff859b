// SPDX-License-Identifier: MIT
// The oracle: attention in fp64, one request at a time, straight from the definition.
// It shares nothing with the planner or the interpreter (not even the LSE formula), so that a mistake
// there cannot hide here. Query token r belongs to request r.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "capillary/decode.h"
#include "capillary/error.h"
#include "cpu/parallel.h"
#include "cpu/tensor_access.h"

namespace capillary {
namespace {

using cpu::element;
using cpu::load_float;

void check(bool ok, const char* argument, const std::string& came, const char* expected,
           const char* remedy) {
  if (!ok) throw InvalidArgument(five_parts("oracle_decode", argument, came, expected, remedy));
}

void check_cache(const TensorView& cache, const char* name) {
  check(cache.ndim == 4, name, "has " + std::to_string(cache.ndim) + " dimensions",
        "be [num_pages, page_size, num_kv_heads, head_dim]", "permute the view");
  check(cpu::is_floating(cache.dtype) && cache.device == DeviceType::kCpu, name,
        std::string("has dtype ") + dtype_name(cache.dtype),
        "be float16, bfloat16 or float32 in host memory", "copy and convert it");
}

void check_input(const OracleInput& input) {
  const TensorView& q = input.q;
  check(q.ndim == 3, "q", "has " + std::to_string(q.ndim) + " dimensions",
        "be [num_queries, num_q_heads, head_dim]", "reshape the view");
  check_cache(input.k_cache, "k_cache");
  check_cache(input.v_cache, "v_cache");
  for (size_t axis = 0; axis < 3; ++axis) {
    check(input.k_cache.shape[axis] == input.v_cache.shape[axis], "v_cache",
          "differs from k_cache in axis " + std::to_string(axis),
          "have the pages, page_size and KV heads of k_cache", "pass the two halves of one cache");
  }
  check(q.shape[2] == input.k_cache.shape[3], "q", "has head_dim " + std::to_string(q.shape[2]),
        "have the head_dim of k_cache", "pass the query of the same layer");
  check(input.k_cache.shape[2] > 0 && q.shape[1] % input.k_cache.shape[2] == 0, "q",
        "has " + std::to_string(q.shape[1]) + " heads", "have a multiple of the KV heads",
        "pass the query of the same layer");
  const auto num_requests = static_cast<int64_t>(input.seq_lens.size());
  check(q.shape[0] == num_requests, "seq_lens", "has length " + std::to_string(num_requests),
        "have one length for every query", "pass the lengths of this batch");
  check(input.block_table.num_requests == num_requests, "block_table",
        "has " + std::to_string(input.block_table.num_requests) + " rows",
        "have one row for every length", "pass the table of this batch");
}

// One key's address for every position of a request; wild entries past the length are never looked at.
std::vector<const std::byte*> gather(const OracleInput& input, const TensorView& cache,
                                     int64_t request, int64_t kv_head) {
  const int64_t page_size = cache.shape[1];
  const int64_t length = input.seq_lens[static_cast<size_t>(request)];
  check(length >= 0, "seq_lens", "has the negative length " + std::to_string(length), "be >= 0",
        "use 0 for a request without keys");
  const BlockTableView& table = input.block_table;
  check((length + page_size - 1) / page_size <= table.num_columns, "block_table",
        "has " + std::to_string(table.num_columns) + " columns", "hold every page of a request",
        "widen the table");
  std::vector<const std::byte*> rows(static_cast<size_t>(length));
  for (int64_t position = 0; position < length; ++position) {
    const int64_t page = table.data[request * table.row_stride + position / page_size];
    check(page >= 0 && page < cache.shape[0], "block_table", "names page " + std::to_string(page),
          "name pages of the cache", "pass the cache that the table belongs to");
    rows[static_cast<size_t>(position)] = element(cache, page, position % page_size, kv_head);
  }
  return rows;
}

double dot(const double* query, const double* key, size_t dim) {
  // Four sums only so that the processor can overlap them.
  double sums[4] = {};
  for (size_t i = 0; i < dim; ++i) sums[i % 4] += query[i] * key[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

void load_doubles(const std::byte* run, DType dtype, std::span<double> values) {
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<double>(load_float(run, dtype, static_cast<int64_t>(i)));
}

// The query heads of one KV head; each is on its own, only the conversion of a key is shared.
// queries [num_heads, dim], out [num_heads, dim_v], lse [num_heads].
void attend_heads(const std::vector<double>& queries, double scale,
                  const std::vector<const std::byte*>& keys,
                  const std::vector<const std::byte*>& values, const OracleInput& input,
                  std::span<double> out, std::span<double> lse) {
  const size_t num_heads = lse.size();
  const size_t length = keys.size();
  const size_t dim = queries.size() / num_heads;
  const size_t dim_v = out.size() / num_heads;
  std::fill(out.begin(), out.end(), 0.0);
  std::fill(lse.begin(), lse.end(), -std::numeric_limits<double>::infinity());
  if (length == 0) return;

  std::vector<double> run(std::max(dim, dim_v));
  std::vector<double> weights(num_heads * length);
  for (size_t j = 0; j < length; ++j) {
    load_doubles(keys[j], input.k_cache.dtype, std::span(run).first(dim));
    for (size_t head = 0; head < num_heads; ++head)
      weights[head * length + j] = dot(&queries[head * dim], run.data(), dim) * scale;
  }
  std::vector<double> sums(num_heads, 0.0);
  for (size_t head = 0; head < num_heads; ++head) {
    const auto scores = std::span(weights).subspan(head * length, length);
    // Where no score is above -inf, no key has any weight, and the row is as one without keys.
    double max = -std::numeric_limits<double>::infinity();
    for (const double score : scores) max = score > max || std::isnan(score) ? score : max;
    const double from = std::isinf(max) && max < 0 ? 0.0 : max;
    for (double& score : scores) {
      score = std::exp(score - from);
      sums[head] += score;
    }
    lse[head] = from + std::log(sums[head]);
  }
  for (size_t j = 0; j < length; ++j) {
    load_doubles(values[j], input.v_cache.dtype, std::span(run).first(dim_v));
    for (size_t head = 0; head < num_heads; ++head) {
      const double weight = weights[head * length + j];
      for (size_t i = 0; i < dim_v; ++i) out[head * dim_v + i] += weight * run[i];
    }
  }
  for (size_t head = 0; head < num_heads; ++head)
    for (size_t i = 0; sums[head] != 0 && i < dim_v; ++i) out[head * dim_v + i] /= sums[head];
}

}  // namespace

OracleResult oracle_decode(const OracleInput& input) {
  check_input(input);
  const int64_t num_requests = input.q.shape[0];
  const int64_t num_q_heads = input.q.shape[1];
  const int64_t num_kv_heads = input.k_cache.shape[2];
  const int64_t group_size = num_q_heads / num_kv_heads;
  const auto head_dim = static_cast<size_t>(input.q.shape[2]);
  const auto head_dim_v = static_cast<size_t>(input.v_cache.shape[3]);
  const double scale = input.softmax_scale != 0.0 ? input.softmax_scale
                                                  : 1.0 / std::sqrt(static_cast<double>(head_dim));

  std::vector<int32_t> requests(input.only_requests.begin(), input.only_requests.end());
  if (requests.empty()) {
    requests.resize(static_cast<size_t>(num_requests));
    std::iota(requests.begin(), requests.end(), 0);
  }
  for (const int32_t request : requests) {
    check(request >= 0 && request < num_requests, "only_requests",
          "names request " + std::to_string(request), "name requests of the batch",
          "pass indices below num_requests");
  }

  OracleResult result;
  result.out.assign(static_cast<size_t>(num_requests * num_q_heads) * head_dim_v, 0.0);
  result.lse.assign(static_cast<size_t>(num_requests * num_q_heads),
                    -std::numeric_limits<double>::infinity());
  const int64_t num_tasks = static_cast<int64_t>(requests.size()) * num_kv_heads;
  cpu::parallel_for(
      num_tasks, cpu::resolve_threads(input.num_threads, num_tasks), [&](int64_t task, int32_t) {
        const int64_t request = requests[static_cast<size_t>(task / num_kv_heads)];
        const int64_t kv_head = task % num_kv_heads;
        const auto keys = gather(input, input.k_cache, request, kv_head);
        const auto values = gather(input, input.v_cache, request, kv_head);
        const auto heads = static_cast<size_t>(group_size);
        std::vector<double> queries(heads * head_dim);
        for (size_t i = 0; i < heads; ++i) {
          load_doubles(element(input.q, request, kv_head * group_size + static_cast<int64_t>(i)),
                       input.q.dtype, std::span(queries).subspan(i * head_dim, head_dim));
        }
        const auto row = static_cast<size_t>(request * num_q_heads + kv_head * group_size);
        attend_heads(queries, scale, keys, values, input,
                     std::span(result.out).subspan(row * head_dim_v, heads * head_dim_v),
                     std::span(result.lse).subspan(row, heads));
      });
  return result;
}

}  // namespace capillary
