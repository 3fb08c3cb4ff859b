// SPDX-License-Identifier: MIT
// The oracle: attention in fp64, one request and one query head at a time, straight from the definition.
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

double dot(const std::vector<double>& query, const std::byte* key, DType dtype) {
  // Four sums only so that the processor can overlap them.
  double sums[4] = {};
  const size_t dim = query.size();
  for (size_t i = 0; i < dim; ++i) {
    sums[i % 4] += query[i] * static_cast<double>(load_float(key, dtype, static_cast<int64_t>(i)));
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

void attend_row(const std::vector<double>& query, double scale,
                const std::vector<const std::byte*>& keys,
                const std::vector<const std::byte*>& values, DType key_dtype, DType value_dtype,
                std::span<double> out, double& lse) {
  std::fill(out.begin(), out.end(), 0.0);
  lse = -std::numeric_limits<double>::infinity();
  if (keys.empty()) return;
  std::vector<double> scores(keys.size());
  for (size_t j = 0; j < keys.size(); ++j) scores[j] = dot(query, keys[j], key_dtype) * scale;
  const double max = *std::max_element(scores.begin(), scores.end());
  double sum = 0.0;
  for (size_t j = 0; j < values.size(); ++j) {
    const double weight = std::exp(scores[j] - max);
    sum += weight;
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] +=
          weight * static_cast<double>(load_float(values[j], value_dtype, static_cast<int64_t>(i)));
    }
  }
  for (double& value : out) value /= sum;
  lse = max + std::log(sum);
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
        std::vector<double> query(head_dim);
        for (int64_t head = kv_head * group_size; head < (kv_head + 1) * group_size; ++head) {
          const std::byte* q_row = element(input.q, request, head);
          for (size_t i = 0; i < head_dim; ++i) {
            query[i] =
                static_cast<double>(load_float(q_row, input.q.dtype, static_cast<int64_t>(i)));
          }
          const auto row = static_cast<size_t>(request * num_q_heads + head);
          attend_row(query, scale, keys, values, input.k_cache.dtype, input.v_cache.dtype,
                     std::span(result.out).subspan(row * head_dim_v, head_dim_v), result.lse[row]);
        }
      });
  return result;
}

}  // namespace capillary
