// SPDX-License-Identifier: MIT
// Paged decoding as a server does it (bug classes B4.58 and B4.59): thousands of steps over a radix cache whose pool
// is always nearly full, with plans that are updated from step to step, and pages of 8 tokens against pages of 64.
#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "capillary/decode.h"
#include "capillary/error.h"
#include "capillary/radix_cache.h"
#include "check/compare.h"
#include "check/rng.h"
#include "cpu/tensor_access.h"
#include "workload/kv_content.h"

namespace capillary {
namespace {

using check::Rng;

// A server of a few requests with its caches. A page is all NaN until its tokens are written, also when it comes back
// from another request, so that whoever reads a slot too many has a NaN in the result.
class SmallServer {
 public:
  static constexpr int32_t kPages = 120, kPageSize = 8, kColumns = 24, kMaxBatch = 8;
  static constexpr ModelShape kShape = {.num_q_heads = 4, .num_kv_heads = 2, .head_dim = 16};

  explicit SmallServer(uint64_t seed) : rng_(seed) {
    const std::array<int64_t, 4> shape = {kPages, kPageSize, kShape.num_kv_heads, kShape.head_dim};
    k_.assign(static_cast<size_t>(kPages) * kPageSize * 2 * 16, kNaNBits);
    v_ = k_;
    k_cache_ = view(k_.data(), DType::kBFloat16, shape);
    v_cache_ = view(v_.data(), DType::kBFloat16, shape);
  }

  // Joins, leaves and one token for everybody; then the step's tensors and lengths can be asked for.
  void step() {
    previous_row_.resize(requests_.size());
    for (size_t r = 0; r < requests_.size(); ++r) previous_row_[r] = static_cast<int32_t>(r);
    for (size_t r = requests_.size(); r-- > 0;)
      if (rng_.range(0, 39) == 0 || requests_[r].tokens.size() + 1 >= kColumns * kPageSize)
        leave(r);
    while (requests_.size() < kMaxBatch && (requests_.empty() || rng_.range(0, 9) == 0))
      if (!join()) break;
    for (size_t r = 0; r < requests_.size();) grow(r) ? static_cast<void>(++r) : leave(r);
    lay_out();
  }

  size_t size() const { return requests_.size(); }
  BlockTableView table() const {
    return {table_.data(), static_cast<int64_t>(size()), kColumns, kColumns};
  }
  std::span<const int32_t> seq_lens() const { return lens_; }
  std::span<const int32_t> previous_row() const { return previous_row_; }
  DecodeTensors tensors() {
    const auto n = static_cast<int64_t>(size());
    out_.assign(size() * 4 * 16, kNaNBits);
    lse_.assign(size() * 4, std::numeric_limits<float>::quiet_NaN());
    return {view(q_.data(), DType::kBFloat16, std::array<int64_t, 3>{n, 4, 16}),
            k_cache_,
            v_cache_,
            view(table_.data(), DType::kInt32, std::array<int64_t, 2>{n, kColumns}),
            view(out_.data(), DType::kBFloat16, std::array<int64_t, 3>{n, 4, 16}),
            view(lse_.data(), DType::kFloat32, std::array<int64_t, 2>{n, 4})};
  }
  const RadixCache& cache() const { return cache_; }

 private:
  static constexpr uint16_t kNaNBits = 0x7fc0;
  struct Request {
    std::vector<int32_t> tokens, pages;
    RadixCache::NodeId locked;
    int64_t key;
  };

  template <size_t kRank>
  static TensorView view(void* data, DType dtype, const std::array<int64_t, kRank>& shape) {
    TensorView view;
    view.data = data;
    view.dtype = dtype;
    view.ndim = static_cast<int32_t>(kRank);
    int64_t stride = 1;
    for (size_t i = kRank; i-- > 0; stride *= shape[i]) {
      view.shape[i] = shape[i];
      view.strides[i] = stride;
    }
    return view;
  }

  std::vector<int32_t> allocate(int64_t count) {
    const std::vector<int32_t> pages = cache_.allocate_pages(count);
    const int64_t page_elements = k_cache_.strides[0];
    for (const int32_t page : pages)
      for (auto* cache : {&k_, &v_})
        std::fill_n(cache->begin() + page * page_elements, page_elements, kNaNBits);
    return pages;
  }
  void write(const Request& request, size_t position) {
    const std::span token(&request.tokens[position], 1);
    const int32_t page = request.pages[position / kPageSize];
    const auto slot = static_cast<int32_t>(position % kPageSize);
    content_.fill_k(k_cache_, page, slot, token, static_cast<int32_t>(position));
    content_.fill_v(v_cache_, page, slot, token, static_cast<int32_t>(position));
  }
  static int64_t pages_for(size_t tokens) {
    return static_cast<int64_t>((tokens + kPageSize - 1) / kPageSize);
  }

  // A prompt: some of one of three long texts, then a few tokens of its own.
  bool join() {
    Request request;
    request.key = next_key_++;
    const int32_t text = rng_.range(0, 2), common = rng_.range(0, 90), own = rng_.range(1, 30);
    for (int32_t i = 0; i < common; ++i) request.tokens.push_back(text * 1000 + i);
    for (int32_t i = 0; i < own; ++i) request.tokens.push_back(5000 + rng_.range(0, 3));
    const std::span<const int32_t> tokens = request.tokens;
    const RadixCache::Match match = cache_.match_prefix(tokens.first(tokens.size() - 1));
    cache_.lock(match.node);
    request.pages = match.page_ids;
    const size_t hit = request.pages.size();
    try {
      const std::vector<int32_t> fresh =
          allocate(pages_for(tokens.size()) - static_cast<int64_t>(hit));
      request.pages.insert(request.pages.end(), fresh.begin(), fresh.end());
    } catch (const OutOfPages&) {
      cache_.unlock(match.node);
      return false;
    }
    for (size_t i = hit * kPageSize; i < tokens.size(); ++i) write(request, i);
    const auto inserted =
        cache_.insert(tokens, std::span(request.pages).first(tokens.size() / kPageSize));
    std::copy(inserted.page_ids.begin(), inserted.page_ids.end(), request.pages.begin());
    cache_.lock(inserted.node);
    cache_.unlock(match.node);
    request.locked = inserted.node;
    requests_.push_back(std::move(request));
    previous_row_.push_back(-1);
    return true;
  }

  void leave(size_t row) {
    const Request& request = requests_[row];
    const size_t whole = request.tokens.size() / kPageSize;
    const std::span pages(request.pages);
    static_cast<void>(cache_.insert(request.tokens, pages.first(whole)));
    cache_.free_pages(pages.subspan(whole));
    cache_.unlock(request.locked);
    requests_.erase(requests_.begin() + static_cast<int64_t>(row));
    previous_row_.erase(previous_row_.begin() + static_cast<int64_t>(row));
  }

  // False: no page is left for the token.
  bool grow(size_t row) {
    Request& request = requests_[row];
    if (request.tokens.size() % kPageSize == 0) {
      try {
        request.pages.push_back(allocate(1).front());
      } catch (const OutOfPages&) {
        return false;
      }
    }
    request.tokens.push_back(6000 + rng_.range(0, 2));
    write(request, request.tokens.size() - 1);
    return true;
  }

  void lay_out() {
    table_.assign(size() * kColumns, std::numeric_limits<int32_t>::max());
    q_.assign(size() * 4 * 16, 0);
    lens_.clear();
    for (size_t r = 0; r < size(); ++r) {
      const Request& request = requests_[r];
      std::copy(request.pages.begin(), request.pages.end(),
                table_.begin() + static_cast<int64_t>(r * kColumns));
      lens_.push_back(static_cast<int32_t>(request.tokens.size()));
      content_.fill_q(view(q_.data(), DType::kBFloat16,
                           std::array<int64_t, 3>{static_cast<int64_t>(size()), 4, 16}),
                      static_cast<int64_t>(r), request.key, lens_.back());
    }
  }

  Rng rng_;
  KvContent content_{7};
  RadixCache cache_{kPages, kPageSize};
  std::vector<uint16_t> k_, v_, q_, out_;
  std::vector<float> lse_;
  TensorView k_cache_, v_cache_;
  std::vector<Request> requests_;
  std::vector<int32_t> table_, lens_, previous_row_;
  int64_t next_key_ = 0;
};

// Every row of the step like the oracle's: a NaN is near nothing.
void expect_rows_right(const DecodeTensors& tensors, const OracleResult& wanted) {
  const int64_t dim = tensors.out.shape[2];
  for (int64_t row = 0; row < tensors.out.shape[0]; ++row) {
    for (int64_t head = 0; head < tensors.out.shape[1]; ++head) {
      const auto index = static_cast<size_t>(row * tensors.out.shape[1] + head);
      const float lse = cpu::load_float(cpu::element(tensors.lse, row, head), DType::kFloat32, 0);
      ASSERT_NEAR(lse, wanted.lse[index], 1e-4) << "row " << row;
      for (int64_t i = 0; i < dim; ++i) {
        const float out =
            cpu::load_float(cpu::element(tensors.out, row, head), DType::kBFloat16, i);
        // A unit in the last place of bfloat16, of values up to 4.
        ASSERT_NEAR(out, wanted.out[index * static_cast<size_t>(dim) + static_cast<size_t>(i)],
                    0.02)
            << "row " << row;
      }
    }
  }
}

TEST(Serving, TwoThousandRandomStepsHaveNoNaN) {
  constexpr int kSteps = 2000;
  SmallServer server(59);
  ForestTracker tracker(SmallServer::kPageSize);
  // The planner's own choice, which rarely cuts requests as short as these, and two that cut them.
  struct Side {
    Planner planner;
    int updated = 0, split = 0;
  };
  Side sides[] = {{Planner(SmallServer::kShape)},
                  {Planner(SmallServer::kShape, builtin_h200(), {.cluster_size = 4})},
                  {Planner(SmallServer::kShape, builtin_h200(), {.num_pieces = 20})}};
  int64_t requests = 0, shared = 0;
  for (int step = 0; step < kSteps; ++step) {
    server.step();
    requests += static_cast<int64_t>(server.size());
    const PrefixForest& forest =
        tracker.update(server.table(), server.seq_lens(), server.previous_row());
    shared += forest.flat_tokens() > forest.unique_tokens() ? 1 : 0;
    const DecodeTensors inputs = server.tensors();
    const OracleResult wanted = oracle_decode({.q = inputs.q,
                                               .k_cache = inputs.k_cache,
                                               .v_cache = inputs.v_cache,
                                               .block_table = server.table(),
                                               .seq_lens = server.seq_lens(),
                                               .num_threads = 1});
    for (Side& side : sides) {
      const Plan& plan = side.planner.update(forest);
      side.updated += side.planner.planned_anew() ? 0 : 1;
      side.split += plan.workspace_bytes() > 0 || plan.cluster_size() > 1 ? 1 : 0;
      const DecodeTensors tensors = server.tensors();  // outputs are NaN again
      decode_cpu(plan, tensors, {.num_threads = 1});
      SCOPED_TRACE(::testing::Message() << "step " << step << ", planner " << &side - sides);
      ASSERT_NO_FATAL_FAILURE(expect_rows_right(tensors, wanted));
    }
  }
  server.cache().check_invariants();
  // What the run is there for did happen.
  EXPECT_GT(requests, 3 * kSteps);
  EXPECT_GT(shared, kSteps / 4);
  EXPECT_GT(server.cache().stats().evictions, 50);
  for (const Side& side : sides) EXPECT_GT(side.updated, kSteps / 4);
  EXPECT_GT(sides[1].split, kSteps / 2) << "rows that meet in the exchange";
  EXPECT_GT(sides[2].split, kSteps / 4) << "rows that meet in the workspace";
}

double cpu_seconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// A page table's look-ups must not show: 8 tokens a page take at most half as long again as 64. Least of several
// turns, since what else runs on the machine only adds.
TEST(Serving, SmallPagesAreNotSlow) {
  constexpr ModelShape kShape = {.num_q_heads = 8, .num_kv_heads = 2, .head_dim = 64};
  struct Side {
    int32_t page_size;
    check::HostBatch batch;
    PrefixForest forest;
    Plan plan;
    double seconds = 1e9;
  };
  std::vector<Side> sides;
  for (const int32_t page_size : {8, 64}) {
    Side side{page_size,
              check::make_batch(
                  {.shape = kShape,
                   .table = check::make_table(check::flat_tree({20000, 4000}), page_size, 5)}),
              {},
              {}};
    side.forest = PrefixForest::from_block_table(side.batch.block_table_view(), side.batch.seq_lens,
                                                 page_size);
    Planner planner(kShape);
    side.plan = planner.plan(side.forest);
    sides.push_back(std::move(side));
  }
  for (int turn = 0; turn < 7; ++turn) {
    for (Side& side : sides) {
      side.batch.poison_outputs();
      const double begin = cpu_seconds();
      decode_cpu(side.plan, side.batch.tensors(), {.num_threads = 1});
      side.seconds = std::min(side.seconds, cpu_seconds() - begin);
    }
  }
  for (Side& side : sides) {
    const check::Comparison comparison = check::compare_with_oracle(side.batch, false);
    EXPECT_TRUE(comparison.passed) << comparison.first_failure;
  }
  EXPECT_LE(sides[0].seconds, 1.5 * sides[1].seconds)
      << "pages of 8: " << sides[0].seconds << " s, of 64: " << sides[1].seconds << " s";
}

}  // namespace
}  // namespace capillary
