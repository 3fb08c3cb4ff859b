// SPDX-License-Identifier: MIT
#include "check/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/parallel.h"
#include "cpu/tensor_access.h"

namespace capillary::check {
namespace {

using cpu::element;
using cpu::load_float;

// Largest relative error of one rounding to the dtype.
double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return 0x1p-8;
    case DType::kFloat16:
      return 0x1p-11;
    default:
      return 0x1p-24;
  }
}

// Half the distance between the smallest numbers of the dtype; float16 alone gets there.
double absolute_roundoff(DType dtype) {
  return dtype == DType::kFloat16 ? 0x1p-25 : 0.0;
}

float rounded(float value, DType dtype) {
  std::byte bytes[4];
  cpu::store_float(bytes, dtype, 0, value);
  return load_float(bytes, dtype, 0);
}

void plain_row(const DecodeTensors& tensors, const BlockTableView& table, int64_t length,
               int64_t query, int64_t head, bool round_weights, float* out) {
  const TensorView& keys = tensors.k_cache;
  const int64_t page_size = keys.shape[1];
  const int64_t kv_head = head / (tensors.q.shape[1] / keys.shape[2]);
  const int64_t dim = keys.shape[3];
  const int64_t dim_v = tensors.v_cache.shape[3];
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  std::vector<float> q(static_cast<size_t>(dim)), run(static_cast<size_t>(std::max(dim, dim_v)));
  cpu::load_floats(element(tensors.q, query, head), tensors.q.dtype, dim, q.data());
  std::vector<float> scores(static_cast<size_t>(length));
  const int32_t* row = table.data + query * table.row_stride;
  float max = -std::numeric_limits<float>::infinity();
  for (int64_t j = 0; j < length; ++j) {
    cpu::load_floats(element(keys, row[j / page_size], j % page_size, kv_head), keys.dtype, dim,
                     run.data());
    float score = 0.0f;
    for (int64_t i = 0; i < dim; ++i)
      score += q[static_cast<size_t>(i)] * run[static_cast<size_t>(i)];
    scores[static_cast<size_t>(j)] = score * scale;
    max = std::max(max, score * scale);
  }
  std::fill_n(out, dim_v, 0.0f);
  float sum = 0.0f;
  for (int64_t j = 0; j < length; ++j) {
    float weight = std::exp(scores[static_cast<size_t>(j)] - max);
    sum += weight;
    if (round_weights) weight = rounded(weight, keys.dtype);
    cpu::load_floats(element(tensors.v_cache, row[j / page_size], j % page_size, kv_head),
                     keys.dtype, dim_v, run.data());
    for (int64_t i = 0; i < dim_v; ++i) out[i] += weight * run[static_cast<size_t>(i)];
  }
  for (int64_t i = 0; i < dim_v && length > 0; ++i)
    out[i] = rounded(out[i] / sum, tensors.out.dtype);
}

template <class Value>
double relative_error(const Value* got, const double* wanted, int64_t count) {
  double error = 0.0;
  double norm = 0.0;
  for (int64_t i = 0; i < count; ++i) {
    const double difference = static_cast<double>(got[i]) - wanted[i];
    error += difference * difference;
    norm += wanted[i] * wanted[i];
  }
  return norm > 0.0 ? std::sqrt(error / norm) : (error > 0.0 ? 1.0 : 0.0);
}

double norm_of(const double* values, int64_t count) {
  double sum = 0.0;
  for (int64_t i = 0; i < count; ++i) sum += values[i] * values[i];
  return std::sqrt(sum);
}

double median_positive(std::vector<double> values) {
  std::erase_if(values, [](double value) { return value <= 0.0; });
  if (values.empty()) return 0.0;
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

class Comparer {
 public:
  explicit Comparer(Comparison& result) : result_(result) {}

  void fail(int64_t query, int64_t head, const std::string& what) {
    result_.passed = false;
    if (result_.num_failures++ == 0)
      result_.first_failure = fmt::format("request {}, query head {}: {}", query, head, what);
  }

  // Positions of NaN and infinity: none in the output, -inf in the LSE exactly where there is no key.
  bool check_special(int64_t query, int64_t head, bool is_empty, const float* out, int64_t dim,
                     float lse) {
    for (int64_t i = 0; i < dim; ++i) {
      if (std::isfinite(out[i]) && !(is_empty && out[i] != 0.0f)) continue;
      fail(
          query, head,
          fmt::format("out[{}] is {}, must be {}", i, out[i], is_empty ? "0 (no keys)" : "finite"));
      return false;
    }
    const bool lse_is_empty = lse == -std::numeric_limits<float>::infinity();
    if (is_empty ? lse_is_empty : std::isfinite(lse)) return true;
    fail(query, head,
         fmt::format("LSE is {}, must be {}", lse, is_empty ? "-inf (no keys)" : "finite"));
    return false;
  }

  void check_error(int64_t query, int64_t head, double error, double bound) {
    result_.worst_error = std::max(result_.worst_error, error);
    result_.worst_of_bound = std::max(result_.worst_of_bound, error / bound);
    if (error > bound)
      fail(query, head,
           fmt::format("relative error {:.3e} is above its bound {:.3e}", error, bound));
  }

  void check_lse(int64_t query, int64_t head, double got, double wanted) {
    // 1e-3 as users are promised; far from zero fp32 itself has no more than these digits.
    const double bound = 1e-3 + 4.0 * 0x1p-24 * std::abs(wanted);
    const double error = std::abs(got - wanted);
    result_.worst_lse_error = std::max(result_.worst_lse_error, error);
    if (error > bound)
      fail(query, head,
           fmt::format("LSE is {:.6f}, must be {:.6f} within {:.1e}", got, wanted, bound));
  }

 private:
  Comparison& result_;
};

}  // namespace

std::vector<float> plain_decode(HostBatch& batch, bool round_weights) {
  const DecodeTensors tensors = batch.tensors();
  const BlockTableView table = batch.block_table_view();
  const int64_t heads = tensors.q.shape[1];
  const int64_t dim_v = tensors.v_cache.shape[3];
  const int64_t num_rows = tensors.q.shape[0] * heads;
  std::vector<float> out(static_cast<size_t>(num_rows * dim_v));
  cpu::parallel_for(num_rows, cpu::resolve_threads(0, num_rows), [&](int64_t row, int32_t) {
    const int64_t query = row / heads;
    plain_row(tensors, table, batch.seq_lens[static_cast<size_t>(query)], query, row % heads,
              round_weights, out.data() + row * dim_v);
  });
  return out;
}

Comparison compare_with_oracle(HostBatch& batch, bool round_weights) {
  const DecodeTensors tensors = batch.tensors();
  const OracleResult oracle = oracle_decode(batch.oracle_input());
  const std::vector<float> plain = plain_decode(batch, round_weights);
  const int64_t heads = tensors.q.shape[1];
  const int64_t dim = tensors.out.shape[2];
  const auto num_rows = static_cast<size_t>(tensors.q.shape[0] * heads);

  std::vector<double> plain_errors(num_rows);
  for (size_t row = 0; row < num_rows; ++row) {
    const auto at = static_cast<int64_t>(row) * dim;
    plain_errors[row] = relative_error(plain.data() + at, oracle.out.data() + at, dim);
  }
  // A row of few keys may be exact by luck in one order of rounding and not in another.
  const double typical = median_positive(plain_errors);

  Comparison result;
  Comparer comparer(result);
  std::vector<float> out(static_cast<size_t>(dim));
  for (size_t row = 0; row < num_rows; ++row) {
    const int64_t query = static_cast<int64_t>(row) / heads;
    const int64_t head = static_cast<int64_t>(row) % heads;
    cpu::load_floats(element(tensors.out, query, head), tensors.out.dtype, dim, out.data());
    const float lse = load_float(element(tensors.lse, query, head), DType::kFloat32, 0);
    const bool is_empty = batch.seq_lens[static_cast<size_t>(query)] == 0;
    if (!comparer.check_special(query, head, is_empty, out.data(), dim, lse) || is_empty) continue;

    const double* wanted = oracle.out.data() + static_cast<int64_t>(row) * dim;
    const double norm = norm_of(wanted, dim);
    const double bound =
        2.0 * std::max(plain_errors[row], typical) + unit_roundoff(tensors.out.dtype) +
        (norm > 0.0
             ? absolute_roundoff(tensors.out.dtype) * std::sqrt(static_cast<double>(dim)) / norm
             : 0.0);
    comparer.check_error(query, head, relative_error(out.data(), wanted, dim), bound);
    comparer.check_lse(query, head, static_cast<double>(lse), oracle.lse[row]);
  }
  return result;
}

}  // namespace capillary::check
