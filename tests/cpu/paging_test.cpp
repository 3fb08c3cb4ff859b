// SPDX-License-Identifier: MIT
// Paging and index arithmetic (bug classes B4), and the numeric ones of B1 that the check table does not name:
// offsets past 2^31 and 2^32, the same page under lengths that do and do not fill it, ids and slots that must
// never be read, split against whole, depth of trees.
#include <gtest/gtest.h>
#if defined(__unix__)
#include <sys/mman.h>
#endif

#include <cmath>
#include <cstring>
#include <limits>

#include "check/compare.h"
#include "check/rng.h"
#include "check/runner.h"
#include "cpu/tensor_access.h"

namespace capillary {
namespace {

using check::Comparison;
using check::HostBatch;
using check::Table;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

void expect_right(HostBatch& batch, const PrefixForest& forest, const ModelShape& shape,
                  const PlanOptions& options = {}) {
  Planner planner(shape, builtin_h200(), options);
  const Plan& plan = planner.plan(forest);
  validate_plan(plan.data(), plan.size_bytes(), forest);
  batch.poison_outputs();
  const uint64_t fences = batch.fence_hash();
  decode_cpu(plan, batch.tensors());
  EXPECT_EQ(batch.fence_hash(), fences);
  const Comparison comparison = check::compare_with_oracle(batch, false);
  EXPECT_TRUE(comparison.passed) << comparison.first_failure;
}

// A table written out by hand, contents by page and slot.
void expect_table_right(const std::vector<std::vector<int32_t>>& rows,
                        const std::vector<int32_t>& seq_lens, int32_t page_size,
                        int32_t num_pages) {
  size_t columns = 1;
  for (const auto& row : rows) columns = std::max(columns, row.size());
  std::vector<int32_t> ids(rows.size() * columns, -1);
  for (size_t r = 0; r < rows.size(); ++r)
    std::copy(rows[r].begin(), rows[r].end(), ids.begin() + static_cast<int64_t>(r * columns));
  const BlockTableView view{ids.data(), static_cast<int64_t>(rows.size()),
                            static_cast<int64_t>(columns), static_cast<int64_t>(columns)};
  const ModelShape shape = {.num_q_heads = 8, .num_kv_heads = 2, .head_dim = 64};
  HostBatch batch = check::make_batch(
      {.shape = shape, .table = check::adopt_table(view, seq_lens, page_size, num_pages)});
  const PrefixForest forest =
      PrefixForest::from_block_table(batch.block_table_view(), batch.seq_lens, page_size);
  for (const Mode mode : {Mode::kAuto, Mode::kFlat, Mode::kSharedL2})
    expect_right(batch, forest, shape, {.mode = mode});
}

TEST(Paging, SamePagesUnderLengthsThatEndInsideThem) {
  // Rows name the same pages; the shorter request ends inside the third.
  const std::vector<int32_t> pages = {4, 0, 7, 2, 9, 1, 5};
  expect_table_right({pages, pages}, {100, 37}, 16, 10);
  expect_table_right({pages, pages, pages}, {100, 48, 47}, 16, 10);
  expect_table_right({pages, pages}, {97, 112}, 16, 10);
}

TEST(Paging, SixtyFourIdenticalRequests) {
  const std::vector<int32_t> pages = {3, 8, 1, 6};
  expect_table_right(std::vector<std::vector<int32_t>>(64, pages), std::vector<int32_t>(64, 64), 16,
                     10);
  expect_table_right(std::vector<std::vector<int32_t>>(64, pages), std::vector<int32_t>(64, 61), 16,
                     10);
}

TEST(Paging, SamePagesAtOtherPositionsAreNotShared) {
  expect_table_right({{1, 2, 3}, {2, 1, 3}, {3, 2, 1}, {1, 2}}, {48, 48, 40, 20}, 16, 5);
}

TEST(Paging, OnePageTwiceInOneRequest) {
  expect_table_right({{2, 2, 2}, {2, 2}}, {45, 32}, 16, 4);
}

TEST(Paging, StaleTailOfAnotherRequest) {
  // Past its length row 1 still names row 0's pages: no sharing, and nothing read there.
  expect_table_right({{0, 1, 2, 3}, {4, 1, 2, 3}, {0, 1, 2, 3}}, {64, 16, 17}, 16, 6);
}

TEST(Paging, OnePastAPageAndTwoShortRequests) {
  expect_table_right({{5}, {3}}, {3, 5}, 16, 8);
  expect_table_right({{5}, {3, 1, 0}}, {1, 3}, 1, 8);
}

TEST(Paging, AnyTableWithRandomSharing) {
  check::Rng rng(11);
  for (int round = 0; round < 40; ++round) {
    const int32_t page_size = rng.range(1, 20);
    std::vector<std::vector<int32_t>> rows;
    std::vector<int32_t> lens;
    for (int r = rng.range(1, 12); r > 0; --r) {
      // Few ids, so that prefixes, tails and repeats coincide by chance.
      const int32_t length = rng.range(0, 6 * page_size);
      std::vector<int32_t> row;
      for (int32_t i = 0; i < (length + page_size - 1) / page_size; ++i)
        row.push_back(rng.range(0, 2));
      rows.push_back(row);
      lens.push_back(length);
    }
    expect_table_right(rows, lens, page_size, 3);
  }
}

#if defined(__unix__)
// Memory that exists only where it is touched.
class SparseBytes {
 public:
  explicit SparseBytes(size_t size) : size_(size) {
    void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    data_ = memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
  }
  ~SparseBytes() {
    if (data_ != nullptr) munmap(data_, size_);
  }
  SparseBytes(const SparseBytes&) = delete;
  SparseBytes& operator=(const SparseBytes&) = delete;
  std::byte* data() const { return data_; }

 private:
  size_t size_;
  std::byte* data_;
};

// The same step with its pages so far apart that page id times stride passes 2^31 and 2^32.
void expect_far_pages_right(int64_t page_stride, int32_t num_far_pages) {
  const ModelShape shape = {.num_q_heads = 4, .num_kv_heads = 2, .head_dim = 64};
  HostBatch batch = check::make_batch(
      {.shape = shape, .table = check::make_table(check::star_tree(48, {20, 33}), 16, 5)});
  const PrefixForest forest =
      PrefixForest::from_block_table(batch.block_table_view(), batch.seq_lens, 16);
  Planner planner(shape);
  const Plan plan = planner.plan(forest);
  decode_cpu(plan, batch.tensors());
  const auto expected = batch.buffers[batch.out.buffer].bytes;

  const DecodeTensors near = batch.tensors();
  const auto bytes = static_cast<size_t>(page_stride) * static_cast<size_t>(num_far_pages) * 2;
  const SparseBytes k(bytes), v(bytes);
  if (k.data() == nullptr || v.data() == nullptr) GTEST_SKIP() << "no address space of this size";
  DecodeTensors far = near;
  const int64_t first = num_far_pages - near.k_cache.shape[0];
  for (const auto& [view, memory] :
       {std::pair{&far.k_cache, k.data()}, std::pair{&far.v_cache, v.data()}}) {
    view->data = memory;
    view->strides[0] = page_stride;
    view->shape[0] = num_far_pages;
  }
  const size_t page_bytes = 16 * 2 * 64 * 2;
  auto* ids = const_cast<int32_t*>(batch.block_table_view().data);
  for (int64_t page = 0; page < near.k_cache.shape[0]; ++page) {
    std::memcpy(cpu::element(far.k_cache, page + first), cpu::element(near.k_cache, page),
                page_bytes);
    std::memcpy(cpu::element(far.v_cache, page + first), cpu::element(near.v_cache, page),
                page_bytes);
  }
  const BlockTableView table = batch.block_table_view();
  for (int64_t r = 0; r < table.num_requests; ++r)
    for (int64_t c = 0; c * 16 < batch.seq_lens[static_cast<size_t>(r)]; ++c)
      ids[r * table.row_stride + c] += static_cast<int32_t>(first);
  batch.poison_outputs();
  decode_cpu(plan, far);
  EXPECT_EQ(batch.buffers[batch.out.buffer].bytes, expected);
}

TEST(Paging, OffsetsPastTwoToThe31) {
  expect_far_pages_right(16384, 140'000);
}
TEST(Paging, OffsetsPastTwoToThe32) {
  expect_far_pages_right(276'480, 20'000);
}
TEST(Paging, AMillionPages) {
  expect_far_pages_right(4096, 1'100'000);
}
#endif

TEST(Numerics, SplitRowsAreAsGoodAsWholeOnes) {
  // Partials are fp32 on their way, so cutting a request must not cost accuracy.
  const ModelShape shape = {.num_q_heads = 8, .num_kv_heads = 1, .head_dim = 128};
  HostBatch batch = check::make_batch(
      {.shape = shape, .table = check::make_table(check::flat_tree({2000}), 16, 1)});
  const PrefixForest forest =
      PrefixForest::from_block_table(batch.block_table_view(), batch.seq_lens, 16);
  double whole = 0;
  for (const int32_t pieces : {1, 2, 8, 17}) {
    expect_right(batch, forest, shape, {.cluster_size = 1, .num_pieces = pieces});
    const double error = check::compare_with_oracle(batch, false).worst_error;
    if (pieces == 1)
      whole = error;
    else
      EXPECT_LE(error, 1.1 * whole) << pieces << " pieces";
  }
}

TEST(Numerics, DeepTreesAreAsGoodAsFlat) {
  for (const int32_t node_tokens : {1, 16, 33, 257}) {
    for (const int32_t depth : {1, 4, 16}) {
      const check::TreeSpec tree = check::comb_tree(depth, node_tokens, 5);
      ModelShape shape = {.num_q_heads = 4, .num_kv_heads = 1, .head_dim = 64};
      HostBatch batch = check::make_batch({.shape = shape, .table = check::make_table(tree, 1, 1)});
      const PrefixForest forest =
          PrefixForest::from_block_table(batch.block_table_view(), batch.seq_lens, 1);
      expect_right(batch, forest, shape, {.mode = Mode::kFlat});
      const double flat = check::compare_with_oracle(batch, false).worst_error;
      expect_right(batch, forest, shape, {.mode = Mode::kAuto});
      const double deep = check::compare_with_oracle(batch, false).worst_error;
      EXPECT_LE(deep, 1.5 * flat) << depth << " nodes of " << node_tokens;
    }
  }
}

TEST(Numerics, FarFromZeroScoresOfOneKey) {
  const ModelShape shape = {.num_q_heads = 4, .num_kv_heads = 2, .head_dim = 128};
  HostBatch batch =
      check::make_batch({.shape = shape,
                         .values = check::ValuePattern::kFarBelowZero,
                         .table = check::make_table(check::flat_tree({1, 2, 300}), 16, 1)});
  const PrefixForest forest =
      PrefixForest::from_block_table(batch.block_table_view(), batch.seq_lens, 16);
  expect_right(batch, forest, shape);
  const DecodeTensors tensors = batch.tensors();
  // One key: the output is its value, bit for bit.
  const int32_t page = batch.block_table_view().data[0];
  for (int64_t head = 0; head < 4; ++head)
    EXPECT_EQ(std::memcmp(cpu::element(tensors.out, 0, head),
                          cpu::element(tensors.v_cache, page, 0, head / 2), 256),
              0);
}

TEST(Numerics, NaNOfALiveKeyReachesItsRequestsOnly) {
  const ModelShape shape = {.num_q_heads = 4, .num_kv_heads = 2, .head_dim = 64};
  HostBatch batch = check::make_batch(
      {.shape = shape, .table = check::make_table(check::flat_tree({20, 30}), 16, 1)});
  const PrefixForest forest =
      PrefixForest::from_block_table(batch.block_table_view(), batch.seq_lens, 16);
  const DecodeTensors tensors = batch.tensors();
  cpu::store_float(cpu::element(tensors.k_cache, batch.block_table_view().data[0], 3, 0),
                   tensors.k_cache.dtype, 5, std::nanf(""));
  Planner planner(shape);
  decode_cpu(planner.plan(forest), tensors);
  for (int64_t request = 0; request < 2; ++request) {
    for (int64_t head = 0; head < 4; ++head) {
      const bool poisoned = request == 0 && head < 2;  // KV head 0
      const float value =
          cpu::load_float(cpu::element(tensors.out, request, head), tensors.out.dtype, 0);
      const float lse =
          cpu::load_float(cpu::element(tensors.lse, request, head), DType::kFloat32, 0);
      EXPECT_EQ(std::isnan(value), poisoned);
      EXPECT_EQ(std::isnan(lse), poisoned);
    }
  }
}

// Scores that are no numbers: NaN and +inf make output and LSE of their row NaN, -inf is a key without weight, and a
// row of nothing else is an empty one. However the row is cut, and like the oracle.
TEST(Numerics, ScoresThatAreNoNumbers) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr int32_t kLength = 300;
  struct Case {
    const char* name;
    int32_t first, last;  // tokens whose scores are `score`
    float score;
    bool nan, empty;  // what the row is to be
  };
  const Case cases[] = {
      {"NaN first", 0, 1, kNaN, true, false},
      {"NaN last", kLength - 1, kLength, kNaN, true, false},
      {"NaN within", 150, 151, kNaN, true, false},
      {"all NaN", 0, kLength, kNaN, true, false},
      {"+inf first", 0, 1, kInf, true, false},
      {"+inf within", 170, 171, kInf, true, false},
      {"all +inf", 0, kLength, kInf, true, false},
      {"-inf first", 0, 1, -kInf, false, false},
      {"-inf for a while", 0, 200, -kInf, false, false},
      {"all -inf", 0, kLength, -kInf, false, true},
  };
  const ModelShape shape = {
      .num_q_heads = 2, .num_kv_heads = 1, .head_dim = 64, .dtype = DType::kFloat32};
  HostBatch batch = check::make_batch(
      {.shape = shape, .table = check::make_table(check::flat_tree({kLength, 40}), 16, 1)});
  const PrefixForest forest =
      PrefixForest::from_block_table(batch.block_table_view(), batch.seq_lens, 16);
  const DecodeTensors tensors = batch.tensors();
  // One element of q is 1 for the first request and 0 for the other; that of its keys is then the score, nearly. The
  // first 200 keys weigh nothing against the others: what is wrong with them is merged at a scale of 0.
  const auto key = [&](int32_t token) {
    return cpu::element(tensors.k_cache, batch.block_table_view().data[token / 16], token % 16, 0);
  };
  for (int64_t head = 0; head < 2; ++head)
    cpu::store_float(cpu::element(tensors.q, 0, head), DType::kFloat32, 0, 1.0f);
  for (const Case& c : cases) {
    for (int32_t token = 0; token < kLength; ++token) {
      const bool special = token >= c.first && token < c.last;
      cpu::store_float(key(token), DType::kFloat32, 0,
                       special       ? c.score
                       : token < 200 ? -4000.0f
                                     : 4000.0f);
    }
    const OracleResult oracle = oracle_decode(batch.oracle_input());
    for (const int32_t cluster_size : {1, 4})
      for (const int32_t pieces : {1, 3, 17}) {
        Planner planner(shape, builtin_h200(),
                        {.cluster_size = cluster_size, .num_pieces = pieces});
        batch.poison_outputs();
        decode_cpu(planner.plan(forest), tensors);
        for (int64_t request = 0; request < 2; ++request)
          for (int64_t head = 0; head < 2; ++head) {
            const auto row = static_cast<size_t>(request * 2 + head);
            const float out =
                cpu::load_float(cpu::element(tensors.out, request, head), DType::kFloat32, 63);
            const float lse =
                cpu::load_float(cpu::element(tensors.lse, request, head), DType::kFloat32, 0);
            SCOPED_TRACE(::testing::Message()
                         << c.name << ", request " << request << ", clusters of " << cluster_size
                         << ", " << pieces << " pieces: out " << out << ", LSE " << lse);
            const bool nan = c.nan && request == 0, empty = c.empty && request == 0;
            EXPECT_EQ(std::isnan(out), nan);
            EXPECT_EQ(std::isnan(lse), nan);
            EXPECT_EQ(lse == -kInf, empty);
            EXPECT_EQ(std::isnan(oracle.out[row * 64 + 63]), nan);
            EXPECT_EQ(std::isnan(oracle.lse[row]), nan);
            EXPECT_EQ(std::isinf(oracle.lse[row]), empty);
            if (empty) {
              EXPECT_EQ(out, 0.0f);
            }
            if (!nan) {
              EXPECT_NEAR(out, oracle.out[row * 64 + 63], 1e-4);
            }
          }
      }
  }
}

TEST(Shapes, SeventyThousandRequests) {
  const ModelShape shape = {.num_q_heads = 1, .num_kv_heads = 1, .head_dim = 16};
  std::vector<int32_t> lengths(70'000);
  for (size_t i = 0; i < lengths.size(); ++i) lengths[i] = static_cast<int32_t>(i % 3);
  HostBatch batch = check::make_batch(
      {.shape = shape, .table = check::make_table(check::flat_tree(lengths), 2, 1)});
  const PrefixForest forest =
      PrefixForest::from_block_table(batch.block_table_view(), batch.seq_lens, 2);
  expect_right(batch, forest, shape);
}

}  // namespace
}  // namespace capillary
