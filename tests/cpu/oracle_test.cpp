// SPDX-License-Identifier: MIT
// The oracle against closed forms, since everything else is measured against the oracle.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "capillary/decode.h"
#include "capillary/error.h"
#include "check/batch.h"

namespace capillary {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kInf = std::numeric_limits<double>::infinity();

// fp32 tensors, one KV head, group of heads query heads, NaN and wild ids wherever nothing is set.
struct Problem {
  Problem(int64_t num_requests, int64_t num_heads, int64_t num_dims, int64_t pages, int64_t tokens)
      : requests(num_requests),
        heads(num_heads),
        dim(num_dims),
        num_pages(pages),
        page_size(tokens),
        q(static_cast<size_t>(num_requests * num_heads * num_dims), 0.0f),
        k(static_cast<size_t>(pages * tokens * num_dims), std::nanf("")),
        v(k.size(), std::nanf("")),
        table(static_cast<size_t>(num_requests * 4), INT32_MAX),
        lens(static_cast<size_t>(num_requests), 0) {}

  void set_token(int64_t page, int64_t slot, std::vector<float> key, std::vector<float> value) {
    const auto at = (page * page_size + slot) * dim;
    std::copy(key.begin(), key.end(), k.begin() + at);
    std::copy(value.begin(), value.end(), v.begin() + at);
  }

  OracleInput input() {
    const auto cache = [&](std::vector<float>& values) {
      return TensorView{.data = values.data(),
                        .dtype = DType::kFloat32,
                        .ndim = 4,
                        .shape = {num_pages, page_size, 1, dim},
                        .strides = {page_size * dim, dim, dim, 1}};
    };
    OracleInput result;
    result.q = {.data = q.data(),
                .dtype = DType::kFloat32,
                .ndim = 3,
                .shape = {requests, heads, dim},
                .strides = {heads * dim, dim, 1}};
    result.k_cache = cache(k);
    result.v_cache = cache(v);
    result.block_table = {table.data(), requests, 4, 4};
    result.seq_lens = lens;
    return result;
  }

  int64_t requests, heads, dim, num_pages, page_size;
  std::vector<float> q, k, v;
  std::vector<int32_t> table, lens;
};

TEST(Oracle, OneKeyGivesItsValue) {
  // However far below zero its score is.
  Problem problem(1, 2, 2, 3, 4);
  problem.q = {1, 0, -20000, 0};
  problem.set_token(2, 0, {1, 5}, {7, -3});
  problem.table[0] = 2;
  problem.lens = {1};
  OracleInput input = problem.input();
  input.softmax_scale = 1.0;
  const OracleResult result = oracle_decode(input);
  EXPECT_EQ(result.out, (std::vector<double>{7, -3, 7, -3}));
  EXPECT_DOUBLE_EQ(result.lse[0], 1.0);
  EXPECT_DOUBLE_EQ(result.lse[1], -20000.0);
}

TEST(Oracle, TwoKeysByHand) {
  Problem problem(1, 1, 2, 2, 1);
  problem.q = {2, 1};
  problem.set_token(1, 0, {1, 1}, {10, 0});  // score 3 / sqrt(2)
  problem.set_token(0, 0, {0, 1}, {0, 20});  // score 1 / sqrt(2)
  problem.table = {1, 0, -1, -1};
  problem.lens = {2};
  const OracleResult result = oracle_decode(problem.input());
  const double a = std::exp(3.0 / std::sqrt(2.0)), b = std::exp(1.0 / std::sqrt(2.0));
  EXPECT_NEAR(result.out[0], 10.0 * a / (a + b), 1e-14);
  EXPECT_NEAR(result.out[1], 20.0 * b / (a + b), 1e-14);
  EXPECT_NEAR(result.lse[0], std::log(a + b), 1e-14);
}

TEST(Oracle, EqualKeysGiveTheMean) {
  Problem problem(1, 1, 1, 2, 4);
  problem.q = {300};
  for (int64_t slot = 0; slot < 4; ++slot) problem.set_token(0, slot, {-200}, {float(slot)});
  problem.set_token(1, 0, {-200}, {14});
  problem.table = {0, 1, INT32_MIN, INT32_MIN};
  problem.lens = {5};
  const OracleResult result = oracle_decode(problem.input());
  EXPECT_DOUBLE_EQ(result.out[0], 4.0);
  EXPECT_NEAR(result.lse[0], -60000.0 + std::log(5.0), 1e-9);
}

TEST(Oracle, EmptyRequestsAndOnlySome) {
  Problem problem(3, 1, 1, 1, 1);
  problem.q = {1, 1, 1};
  problem.set_token(0, 0, {2}, {9});
  problem.table[4] = 0;
  problem.table[8] = 0;
  problem.lens = {0, 1, 1};
  OracleInput input = problem.input();
  OracleResult result = oracle_decode(input);
  EXPECT_EQ(result.out, (std::vector<double>{0, 9, 9}));
  EXPECT_EQ(result.lse, (std::vector<double>{-kInf, 2, 2}));

  const std::vector<int32_t> only = {1};
  input.only_requests = only;
  result = oracle_decode(input);
  EXPECT_EQ(result.out, (std::vector<double>{0, 9, 0}));
  EXPECT_EQ(result.lse, (std::vector<double>{-kInf, 2, -kInf}));
}

TEST(Oracle, ScaleAndGroupsOfHeads) {
  // Two KV heads, two query heads each: head h reads KV head h / 2.
  std::vector<float> q = {1, 1, 1, 1}, k = {3, 5}, v = {30, 50};
  const std::vector<int32_t> table = {0}, lens = {1};
  OracleInput input;
  input.q = {.data = q.data(),
             .dtype = DType::kFloat32,
             .ndim = 3,
             .shape = {1, 4, 1},
             .strides = {4, 1, 1}};
  input.k_cache = {.data = k.data(),
                   .dtype = DType::kFloat32,
                   .ndim = 4,
                   .shape = {1, 1, 2, 1},
                   .strides = {2, 2, 1, 1}};
  input.v_cache = input.k_cache;
  input.v_cache.data = v.data();
  input.block_table = {table.data(), 1, 1, 1};
  input.seq_lens = lens;
  input.softmax_scale = 0.5;
  const OracleResult result = oracle_decode(input);
  EXPECT_EQ(result.out, (std::vector<double>{30, 30, 50, 50}));
  EXPECT_EQ(result.lse, (std::vector<double>{1.5, 1.5, 2.5, 2.5}));
}

TEST(Oracle, RefusesWhatCannotBe) {
  const auto expect_refused = [](OracleInput input, const char* argument, const char* expected) {
    try {
      oracle_decode(input);
      FAIL() << argument << " was accepted";
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("oracle_decode: "), HasSubstr(argument),
                                      HasSubstr("; must "), HasSubstr(expected)));
    }
  };
  Problem problem(2, 1, 1, 1, 1);
  problem.lens = {1, 1};
  problem.table = {0, -1, -1, -1, 7, -1, -1, -1};
  problem.set_token(0, 0, {1}, {1});
  expect_refused(problem.input(), "block_table names page 7", "name pages of the cache");
  problem.table[4] = 0;
  problem.lens = {1, -5};
  expect_refused(problem.input(), "seq_lens has the negative length -5", "be >= 0");
  problem.lens = {1, 5};
  expect_refused(problem.input(), "block_table has 4 columns", "hold every page of a request");
  problem.lens = {1};
  expect_refused(problem.input(), "seq_lens has length 1", "one length for every query");
  problem.lens = {1, 1};
  OracleInput input = problem.input();
  const std::vector<int32_t> only = {2};
  input.only_requests = only;
  expect_refused(input, "only_requests names request 2", "name requests of the batch");
  input = problem.input();
  input.q.shape[2] = 2;
  expect_refused(input, "q has head_dim 2", "have the head_dim of k_cache");
  input = problem.input();
  input.v_cache.shape[1] = 2;
  expect_refused(input, "v_cache differs from k_cache in axis 1", "page_size");
  input = problem.input();
  input.k_cache.dtype = DType::kInt32;
  expect_refused(input, "k_cache has dtype int32", "be float16, bfloat16 or float32");
}

}  // namespace
}  // namespace capillary
