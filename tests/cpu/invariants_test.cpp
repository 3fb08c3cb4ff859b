// SPDX-License-Identifier: MIT
// What must hold whatever the right answer is: permutations, other page numbers, other layouts and page sizes,
// joined and split nodes, unrelated company, closed forms of V. Each runs on seeded random trees, in every
// mode. Bits are compared where the arithmetic is the same; elsewhere the difference is bounded by a few fp32
// roundings, as inputs are fp32 where that matters.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "check/batch.h"
#include "check/rng.h"
#include "check/trees.h"
#include "cpu/tensor_access.h"

namespace capillary {
namespace {

using check::BatchSpec;
using check::CacheLayout;
using check::HostBatch;
using check::Rng;
using check::Table;
using check::TreeSpec;

// fp32 inputs of variance 1 and at most a few hundred keys: what two orders of summation may differ by.
constexpr float kTolerance = 2e-5f;

struct Result {
  int64_t heads, dim;
  std::vector<float> out;  // [request][head][dim]
  std::vector<float> lse;  // [request][head]

  const float* row(int64_t request, int64_t head) const {
    return out.data() + (request * heads + head) * dim;
  }
  float row_lse(int64_t request, int64_t head) const {
    return lse[static_cast<size_t>(request * heads + head)];
  }
};

Result read_result(HostBatch& batch) {
  const DecodeTensors tensors = batch.tensors();
  Result result{tensors.out.shape[1], tensors.out.shape[2], {}, {}};
  for (int64_t request = 0; request < tensors.out.shape[0]; ++request) {
    for (int64_t head = 0; head < result.heads; ++head) {
      for (int64_t i = 0; i < result.dim; ++i) {
        result.out.push_back(
            cpu::load_float(cpu::element(tensors.out, request, head), tensors.out.dtype, i));
      }
      result.lse.push_back(
          cpu::load_float(cpu::element(tensors.lse, request, head), DType::kFloat32, 0));
    }
  }
  return result;
}

Result run(const ModelShape& shape, const PlanOptions& options, const PrefixForest& forest,
           HostBatch& batch) {
  Planner planner(shape, builtin_h200(), options);
  batch.poison_outputs();
  decode_cpu(planner.plan(forest), batch.tensors());
  return read_result(batch);
}

Result run(const BatchSpec& spec, const PlanOptions& options) {
  HostBatch batch = check::make_batch(spec);
  const PrefixForest forest = PrefixForest::from_block_table(batch.block_table_view(),
                                                             batch.seq_lens, spec.table.page_size);
  return run(spec.shape, options, forest, batch);
}

// Row of one result against a row of another.
void expect_row(const Result& a, int64_t request_a, int64_t head_a, const Result& b,
                int64_t request_b, int64_t head_b, float tolerance) {
  const float lse_a = a.row_lse(request_a, head_a), lse_b = b.row_lse(request_b, head_b);
  if (std::isinf(lse_a) || tolerance == 0.0f)
    EXPECT_EQ(lse_a, lse_b);
  else
    EXPECT_NEAR(lse_a, lse_b, tolerance);
  for (int64_t i = 0; i < a.dim; ++i) {
    const float x = a.row(request_a, head_a)[i], y = b.row(request_b, head_b)[i];
    // NaN fails either way.
    ASSERT_LE(std::abs(x - y), tolerance) << "request " << request_a << ", head " << head_a
                                          << ", element " << i << ": " << x << " and " << y;
  }
}

void expect_same(const Result& a, const Result& b, float tolerance) {
  ASSERT_EQ(a.out.size(), b.out.size());
  for (int64_t request = 0; request < static_cast<int64_t>(a.lse.size()) / a.heads; ++request)
    for (int64_t head = 0; head < a.heads; ++head)
      expect_row(a, request, head, b, request, head, tolerance);
}

struct Setting {
  uint64_t seed;
  Mode mode;
};

class Invariants : public ::testing::TestWithParam<Setting> {
 protected:
  Invariants() : rng_(GetParam().seed * 977), tree_(check::random_tree(GetParam().seed, 24, 150)) {
    const std::vector<int32_t> groups = {1, 3, 4, 7};
    const std::vector<int32_t> clusters = {0, 1, 2, 8};
    group_ = rng_.pick(groups);
    shape_ = {
        .num_q_heads = 2 * group_, .num_kv_heads = 2, .head_dim = 32, .dtype = DType::kFloat32};
    options_ = {.mode = GetParam().mode, .cluster_size = rng_.pick(clusters)};
  }

  BatchSpec spec(int32_t page_size = 16, uint64_t page_seed = 1) const {
    return {.shape = shape_, .table = check::make_table(tree_, page_size, page_seed)};
  }
  int64_t num_requests() const { return static_cast<int64_t>(tree_.request_node.size()); }

  Rng rng_;
  TreeSpec tree_;
  int32_t group_;
  ModelShape shape_;
  PlanOptions options_;
};

TEST_P(Invariants, I1_PermutedRequestsPermuteOutputs) {
  const BatchSpec plain = spec();
  std::vector<int64_t> order(static_cast<size_t>(num_requests()));
  std::iota(order.begin(), order.end(), 0);
  rng_.shuffle(order);
  BatchSpec permuted = plain;
  for (size_t i = 0; i < order.size(); ++i) {
    const auto from = static_cast<size_t>(order[i]);
    permuted.table.rows[i] = plain.table.rows[from];
    permuted.table.seq_lens[i] = plain.table.seq_lens[from];
    permuted.table.request_keys[i] = plain.table.request_keys[from];
  }
  const Result a = run(plain, options_), b = run(permuted, options_);
  for (size_t i = 0; i < order.size(); ++i)
    for (int64_t head = 0; head < a.heads; ++head)
      expect_row(a, order[i], head, b, static_cast<int64_t>(i), head, kTolerance);
}

TEST_P(Invariants, I2_PageNumbersDoNotMatter) {
  // Sorting requests may follow page ids, so the plan, and with it the order of sums, may differ.
  expect_same(run(spec(16, 1), options_), run(spec(16, 99), options_), kTolerance);
}

TEST_P(Invariants, I3_PermutedHeadsOfAGroup) {
  BatchSpec plain = spec();
  HostBatch batch = check::make_batch(plain);
  const PrefixForest forest =
      PrefixForest::from_block_table(batch.block_table_view(), batch.seq_lens, 16);
  const Result a = run(shape_, options_, forest, batch);
  // Reverses the heads of every group by exchanging the query's rows.
  const TensorView q = batch.tensors().q;
  for (int64_t request = 0; request < num_requests(); ++request) {
    for (int64_t kv_head = 0; kv_head < 2; ++kv_head) {
      for (int64_t i = 0; i < group_ / 2; ++i) {
        auto* x = reinterpret_cast<float*>(cpu::element(q, request, kv_head * group_ + i));
        auto* y =
            reinterpret_cast<float*>(cpu::element(q, request, kv_head * group_ + group_ - 1 - i));
        std::swap_ranges(x, x + shape_.head_dim, y);
      }
    }
  }
  const Result b = run(shape_, options_, forest, batch);
  for (int64_t request = 0; request < num_requests(); ++request) {
    for (int64_t head = 0; head < a.heads; ++head) {
      const int64_t mirrored = head / group_ * group_ + group_ - 1 - head % group_;
      expect_row(a, request, head, b, request, mirrored, kTolerance);
    }
  }
}

TEST_P(Invariants, I4_NodesSplitAtAnyPageEdge) {
  const BatchSpec plain = spec();
  HostBatch batch = check::make_batch(plain);
  const BlockTableView table = batch.block_table_view();
  const PrefixForest forest = PrefixForest::from_block_table(table, batch.seq_lens, 16);
  const Result a = run(shape_, options_, forest, batch);

  // CSR arrays with every node cut into runs of one to three pages, which from_csr has to see through.
  std::vector<int32_t> parent, num_tokens, indptr = {0}, ids, last_piece;
  for (const ForestNode& node : forest.nodes()) {
    int32_t above = node.parent < 0 ? -1 : last_piece[static_cast<size_t>(node.parent)];
    for (int32_t begin = 0; begin < node.num_tokens;) {
      const int32_t count = std::min(16 * rng_.range(1, 3), node.num_tokens - begin);
      parent.push_back(above);
      num_tokens.push_back(count);
      above = static_cast<int32_t>(parent.size()) - 1;
      for (int32_t page = begin / 16; page < (begin + count + 15) / 16; ++page)
        ids.push_back(table.data[node.page_offset + page]);
      indptr.push_back(static_cast<int32_t>(ids.size()));
      begin += count;
    }
    last_piece.push_back(above);
  }
  std::vector<int32_t> request_node(static_cast<size_t>(num_requests()));
  for (size_t position = 0; position < request_node.size(); ++position) {
    const int32_t node = forest.request_node()[position];
    request_node[static_cast<size_t>(forest.leaf_order()[position])] =
        node < 0 ? -1 : last_piece[static_cast<size_t>(node)];
  }
  const PrefixForest joined =
      PrefixForest::from_csr(parent, num_tokens, indptr, ids, request_node, 16);
  batch.use_page_list(joined.page_ids());
  expect_same(a, run(shape_, options_, joined, batch), kTolerance);
}

TEST_P(Invariants, I5_UnrelatedRequestChangesNobody) {
  const Result a = run(spec(), options_);
  tree_.add_leaf(-1, 75);
  const Result b = run(spec(), options_);
  for (int64_t request = 0; request + 1 < num_requests(); ++request)
    for (int64_t head = 0; head < a.heads; ++head)
      expect_row(a, request, head, b, request, head, kTolerance);
}

TEST_P(Invariants, I6_ConstantVGivesTheConstant) {
  BatchSpec constant = spec();
  constant.values = check::ValuePattern::kConstantV;
  const Result result = run(constant, options_);
  for (int64_t request = 0; request < num_requests(); ++request) {
    const bool empty = constant.table.seq_lens[static_cast<size_t>(request)] == 0;
    for (int64_t head = 0; head < result.heads; ++head)
      for (int64_t i = 0; i < result.dim; ++i)
        EXPECT_NEAR(result.row(request, head)[i], empty ? 0.0f : 1.5f, 1e-5f);
  }
}

TEST_P(Invariants, I6_OneHotVShowsWeightsThatSumToOne) {
  // V of the token at position p is the unit vector p mod 32: the output is a histogram of weights, and
  // zero where a request has no such position.
  BatchSpec one_hot = spec();
  HostBatch batch = check::make_batch(one_hot);
  const TensorView v = batch.tensors().v_cache;
  const BlockTableView table = batch.block_table_view();
  for (int64_t request = 0; request < num_requests(); ++request) {
    for (int32_t p = 0; p < one_hot.table.seq_lens[static_cast<size_t>(request)]; ++p) {
      const int32_t page = table.data[request * table.row_stride + p / 16];
      for (int64_t head = 0; head < 2; ++head) {
        auto* row = reinterpret_cast<float*>(cpu::element(v, page, p % 16, head));
        for (int32_t i = 0; i < 32; ++i) row[i] = i == p % 32 ? 1.0f : 0.0f;
      }
    }
  }
  const PrefixForest forest = PrefixForest::from_block_table(table, batch.seq_lens, 16);
  const Result result = run(shape_, options_, forest, batch);
  for (int64_t request = 0; request < num_requests(); ++request) {
    const int32_t length = one_hot.table.seq_lens[static_cast<size_t>(request)];
    for (int64_t head = 0; head < result.heads; ++head) {
      const float* row = result.row(request, head);
      EXPECT_NEAR(std::accumulate(row, row + 32, 0.0f), length > 0 ? 1.0f : 0.0f, 1e-5f);
      for (int32_t i = 0; i < 32; ++i) {
        if (i < length)
          EXPECT_GT(row[i], 0.0f);
        else
          EXPECT_EQ(row[i], 0.0f);
      }
    }
  }
}

TEST_P(Invariants, I7_ShiftOfAllKeysMovesOnlyTheLse) {
  HostBatch batch = check::make_batch(spec());
  const BlockTableView table = batch.block_table_view();
  const PrefixForest forest = PrefixForest::from_block_table(table, batch.seq_lens, 16);
  const Result a = run(shape_, options_, forest, batch);
  // Every key moves by the same vector c, so every score of a row by q.c / sqrt(dim).
  const DecodeTensors tensors = batch.tensors();
  for (int64_t page = 0; page < tensors.k_cache.shape[0]; ++page)
    for (int64_t slot = 0; slot < 16; ++slot)
      for (int64_t head = 0; head < 2; ++head)
        for (int64_t i = 0; i < 32; ++i)
          reinterpret_cast<float*>(cpu::element(tensors.k_cache, page, slot, head))[i] +=
              i % 2 == 0 ? 1.5f : -0.5f;
  const Result b = run(shape_, options_, forest, batch);
  for (int64_t request = 0; request < num_requests(); ++request) {
    for (int64_t head = 0; head < a.heads; ++head) {
      const auto* q = reinterpret_cast<const float*>(cpu::element(tensors.q, request, head));
      float shift = 0.0f;
      for (int64_t i = 0; i < 32; ++i) shift += q[i] * (i % 2 == 0 ? 1.5f : -0.5f);
      if (batch.seq_lens[static_cast<size_t>(request)] > 0) {
        EXPECT_NEAR(b.row_lse(request, head) - a.row_lse(request, head), shift / std::sqrt(32.0f),
                    1e-4f);
      }
      for (int64_t i = 0; i < 32; ++i)
        EXPECT_NEAR(a.row(request, head)[i], b.row(request, head)[i], 1e-4f);
    }
  }
}

TEST_P(Invariants, I9_TwoRunsAndTwoPlannersGiveTheSameBits) {
  expect_same(run(spec(), options_), run(spec(), options_), 0.0f);
}

TEST_P(Invariants, I12_LayoutsGiveTheSameBits) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat32}) {
    BatchSpec layout = spec();
    layout.shape.dtype = dtype;
    const Result a = run(layout, options_);
    for (const CacheLayout other :
         {CacheLayout::kHnd, CacheLayout::kPackedPage, CacheLayout::kPackedDim,
          CacheLayout::kCrossLayer, CacheLayout::kMixed}) {
      layout.layout = other;
      expect_same(a, run(layout, options_), 0.0f);
    }
  }
}

TEST_P(Invariants, I13_PageSizesOfOneLogicalCache) {
  // Page size decides what is shared (whole pages), hence the plan; never the result.
  const Result a = run(spec(1), options_);
  for (const int32_t page_size : {3, 16, 48, 1024})
    expect_same(a, run(spec(page_size), options_), kTolerance);
}

TEST_P(Invariants, EveryModeAndClusterSizeAgree) {
  const Result a = run(spec(), {.mode = Mode::kFlat, .cluster_size = 1});
  for (const Mode mode : {Mode::kAuto, Mode::kFlat, Mode::kSharedL2})
    for (const int32_t cluster_size : {1, 2, 4, 8, 16})
      expect_same(a, run(spec(), {.mode = mode, .cluster_size = cluster_size}), kTolerance);
}

TEST_P(Invariants, LseIsOptional) {
  HostBatch batch = check::make_batch(spec());
  const PrefixForest forest =
      PrefixForest::from_block_table(batch.block_table_view(), batch.seq_lens, 16);
  const Result a = run(shape_, options_, forest, batch);
  Planner planner(shape_, builtin_h200(), options_);
  batch.poison_outputs();
  DecodeTensors tensors = batch.tensors();
  tensors.lse = TensorView{};
  decode_cpu(planner.plan(forest), tensors);
  EXPECT_EQ(read_result(batch).out, a.out);
}

std::vector<Setting> settings() {
  std::vector<Setting> result;
  for (uint64_t seed = 1; seed <= 6; ++seed)
    for (const Mode mode : {Mode::kAuto, Mode::kFlat, Mode::kSharedL2})
      result.push_back({seed, mode});
  return result;
}

INSTANTIATE_TEST_SUITE_P(RandomTrees, Invariants, ::testing::ValuesIn(settings()),
                         [](const auto& test) {
                           std::string mode = mode_name(test.param.mode);
                           std::erase(mode, '-');
                           return mode + std::to_string(test.param.seed);
                         });

}  // namespace
}  // namespace capillary
