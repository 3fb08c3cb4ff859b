// SPDX-License-Identifier: MIT
// merge_states: empty sides, both log bases, aliasing, associativity, and what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "capillary/decode.h"
#include "capillary/error.h"
#include "shared/half.h"

namespace capillary {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// fp32 states of rows x heads, dim numbers each.
struct State {
  State(int64_t num_rows, int64_t num_heads, int64_t num_dims)
      : rows(num_rows),
        heads(num_heads),
        dim(num_dims),
        v(static_cast<size_t>(num_rows * num_heads * num_dims)),
        lse(static_cast<size_t>(num_rows * num_heads)) {}

  TensorView v_view() {
    return {.data = v.data(),
            .dtype = DType::kFloat32,
            .ndim = 3,
            .shape = {rows, heads, dim},
            .strides = {heads * dim, dim, 1}};
  }
  TensorView lse_view() {
    return {.data = lse.data(),
            .dtype = DType::kFloat32,
            .ndim = 2,
            .shape = {rows, heads},
            .strides = {heads, 1}};
  }

  int64_t rows, heads, dim;
  std::vector<float> v, lse;
};

State merged(State a, State b, LseBase base = LseBase::kE) {
  State out(a.rows, a.heads, a.dim);
  std::fill(out.v.begin(), out.v.end(), kNaN);
  merge_states(a.v_view(), a.lse_view(), b.v_view(), b.lse_view(), out.v_view(), out.lse_view(),
               base);
  return out;
}

State random_state(uint32_t seed, int64_t rows, int64_t heads, int64_t dim, double empty_share) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<double> uniform;
  State state(rows, heads, dim);
  for (float& value : state.v) value = normal(rng);
  for (size_t i = 0; i < state.lse.size(); ++i) {
    state.lse[i] = 5.0f * normal(rng);
    if (uniform(rng) >= empty_share) continue;
    // What other libraries leave in an empty side's output is anything.
    state.lse[i] = uniform(rng) < 0.5 ? -kInf : kInf;
    for (int64_t d = 0; d < dim; ++d)
      state.v[i * static_cast<size_t>(dim) + static_cast<size_t>(d)] = d % 2 == 0 ? kNaN : kInf;
  }
  return state;
}

bool is_empty(float lse) {
  return std::isinf(lse);
}

TEST(MergeStates, TwoEmptySidesStayEmpty) {
  for (const float side : {-kInf, kInf}) {
    State a(1, 1, 64), b(1, 1, 64);
    a.lse[0] = side;
    b.lse[0] = -kInf;
    std::fill(b.v.begin(), b.v.end(), kNaN);
    for (const State& out : {merged(a, b), merged(b, a)}) {
      EXPECT_EQ(out.lse[0], -kInf);
      for (const float value : out.v) EXPECT_EQ(value, 0.0f);
    }
  }
}

TEST(MergeStates, EmptySideLeavesTheOtherExactly) {
  State a = random_state(1, 3, 2, 5, 0.0);
  State b(3, 2, 5);
  std::fill(b.v.begin(), b.v.end(), kNaN);
  for (const LseBase base : {LseBase::kE, LseBase::k2}) {
    for (const float side : {-kInf, kInf}) {
      std::fill(b.lse.begin(), b.lse.end(), side);
      for (const State& out : {merged(a, b, base), merged(b, a, base)}) {
        EXPECT_EQ(out.v, a.v);
        EXPECT_EQ(out.lse, a.lse);
      }
    }
  }
}

TEST(MergeStates, QuarterOfRowsEmptyOnBothSides) {
  for (const int64_t heads : {4, 32}) {
    for (const int64_t dim : {64, 128}) {
      const State a = random_state(2, 64, heads, dim, 0.5);
      const State b = random_state(3, 64, heads, dim, 0.5);
      const State out = merged(a, b);
      for (size_t i = 0; i < out.lse.size(); ++i) {
        const bool empty_a = is_empty(a.lse[i]), empty_b = is_empty(b.lse[i]);
        if (empty_a && empty_b)
          EXPECT_EQ(out.lse[i], -kInf);
        else
          EXPECT_TRUE(std::isfinite(out.lse[i]));
        for (size_t d = 0; d < static_cast<size_t>(dim); ++d) {
          const size_t at = i * static_cast<size_t>(dim) + d;
          if (empty_a && empty_b)
            EXPECT_EQ(out.v[at], 0.0f);
          else if (empty_a || empty_b)
            EXPECT_EQ(out.v[at], empty_a ? b.v[at] : a.v[at]);
          else
            EXPECT_TRUE(std::isfinite(out.v[at]));
        }
      }
    }
  }
}

TEST(MergeStates, MatchesTheDefinitionInBothBases) {
  const State a = random_state(4, 8, 3, 7, 0.0);
  const State b = random_state(5, 8, 3, 7, 0.0);
  const double ln2 = std::log(2.0);
  for (const LseBase base : {LseBase::kE, LseBase::k2}) {
    const double factor = base == LseBase::kE ? 1.0 : ln2;
    const State out = merged(a, b, base);
    for (size_t i = 0; i < out.lse.size(); ++i) {
      const double weight_a = std::exp(static_cast<double>(a.lse[i]) * factor);
      const double weight_b = std::exp(static_cast<double>(b.lse[i]) * factor);
      EXPECT_NEAR(out.lse[i], std::log(weight_a + weight_b) / factor, 2e-6 * 20);
      for (size_t d = 0; d < 7; ++d) {
        const double expected = (weight_a * static_cast<double>(a.v[i * 7 + d]) +
                                 weight_b * static_cast<double>(b.v[i * 7 + d])) /
                                (weight_a + weight_b);
        EXPECT_NEAR(out.v[i * 7 + d], expected, 1e-5);
      }
    }
  }
}

TEST(MergeStates, BasesRoundTrip) {
  State a = random_state(6, 4, 4, 8, 0.2), b = random_state(7, 4, 4, 8, 0.2);
  const State natural = merged(a, b, LseBase::kE);
  const float log2_e = 1.44269504f;
  for (State* side : {&a, &b})
    for (float& lse : side->lse) lse *= log2_e;
  const State binary = merged(a, b, LseBase::k2);
  for (size_t i = 0; i < natural.lse.size(); ++i) {
    if (is_empty(natural.lse[i]))
      EXPECT_EQ(binary.lse[i], natural.lse[i]);
    else
      EXPECT_NEAR(binary.lse[i] / log2_e, natural.lse[i], 1e-5);
  }
  for (size_t i = 0; i < natural.v.size(); ++i) EXPECT_NEAR(binary.v[i], natural.v[i], 1e-5);
}

TEST(MergeStates, AssociativeAndCommutative) {
  const State a = random_state(8, 16, 2, 16, 0.3);
  const State b = random_state(9, 16, 2, 16, 0.3);
  const State c = random_state(10, 16, 2, 16, 0.3);
  const State left = merged(merged(a, b), c);
  for (const State& other : {merged(a, merged(b, c)), merged(c, merged(b, a))}) {
    for (size_t i = 0; i < left.lse.size(); ++i) {
      if (is_empty(left.lse[i]))
        EXPECT_EQ(other.lse[i], left.lse[i]);
      else
        EXPECT_NEAR(other.lse[i], left.lse[i], 1e-5);
    }
    for (size_t i = 0; i < left.v.size(); ++i) EXPECT_NEAR(other.v[i], left.v[i], 1e-5);
  }
}

TEST(MergeStates, OutputMayBeEitherSide) {
  const State a = random_state(11, 5, 3, 9, 0.3);
  const State b = random_state(12, 5, 3, 9, 0.3);
  const State expected = merged(a, b);
  for (const bool into_a : {true, false}) {
    State x = a, y = b;
    State& out = into_a ? x : y;
    merge_states(x.v_view(), x.lse_view(), y.v_view(), y.lse_view(), out.v_view(), out.lse_view());
    EXPECT_EQ(out.v, expected.v);
    EXPECT_EQ(out.lse, expected.lse);
  }
}

TEST(MergeStates, FarApartSidesDoNotOverflow) {
  State a(1, 1, 1), b(1, 1, 1);
  a.v[0] = 3.0f;
  b.v[0] = 5.0f;
  for (const float low : {-1e30f, -6e4f, -200.0f}) {
    a.lse[0] = low;
    b.lse[0] = 3e4f;
    const State out = merged(a, b);
    EXPECT_EQ(out.v[0], 5.0f);
    EXPECT_EQ(out.lse[0], 3e4f);
  }
}

TEST(MergeStates, StridesAndSixteenBitValues) {
  // [heads, rows, dim] in memory, bfloat16, read as [rows, heads, dim]; LSEs transposed too.
  constexpr int64_t kRows = 3, kHeads = 2, kDim = 4;
  std::vector<uint16_t> v(static_cast<size_t>(2 * kRows * kHeads * kDim));
  for (size_t i = 0; i < v.size(); ++i) v[i] = float_to_bf16(static_cast<float>(i));
  std::vector<float> lse(2 * kRows * kHeads, 0.0f);
  const auto v_view = [&](size_t side) {
    return TensorView{.data = v.data() + side * kRows * kHeads * kDim,
                      .dtype = DType::kBFloat16,
                      .ndim = 3,
                      .shape = {kRows, kHeads, kDim},
                      .strides = {kDim, kRows * kDim, 1}};
  };
  const auto lse_view = [&](size_t side) {
    return TensorView{.data = lse.data() + side * kRows * kHeads,
                      .dtype = DType::kFloat32,
                      .ndim = 2,
                      .shape = {kRows, kHeads},
                      .strides = {1, kRows}};
  };
  merge_states(v_view(0), lse_view(0), v_view(1), lse_view(1), v_view(0), lse_view(0));
  for (size_t i = 0; i < static_cast<size_t>(kRows * kHeads * kDim); ++i)
    EXPECT_EQ(bf16_to_float(v[i]), static_cast<float>(i) + 12.0f);
  for (size_t i = 0; i < static_cast<size_t>(kRows * kHeads); ++i)
    EXPECT_NEAR(lse[i], std::log(2.0f), 1e-6f);
}

TEST(MergeStates, RefusesWhatCannotBe) {
  State a(2, 3, 4);
  const TensorView v = a.v_view(), lse = a.lse_view();
  const auto expect_refused = [&](const char* argument, const char* expected, TensorView v_b,
                                  TensorView lse_b, TensorView lse_out) {
    try {
      merge_states(v, lse, v_b, lse_b, v, lse_out);
      FAIL() << argument << " was accepted";
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("merge_states: "), HasSubstr(argument),
                                      HasSubstr("; must "), HasSubstr(expected)));
    }
  };
  TensorView wrong = v;
  wrong.shape[1] = 2;
  expect_refused("v_b has shape [2, 2, 4]", "have the shape of v_a", wrong, lse, lse);
  wrong = v;
  wrong.dtype = DType::kInt32;
  expect_refused("v_b has dtype int32", "be float16, bfloat16 or float32", wrong, lse, lse);
  wrong = v;
  wrong.strides[2] = 2;
  expect_refused("v_b has last stride 2", "have last stride 1", wrong, lse, lse);
  wrong = v;
  wrong.device = DeviceType::kCuda;
  expect_refused("v_b is in device memory", "be in host memory", wrong, lse, lse);
  wrong = lse;  // [heads, rows] where [rows, heads] is meant
  std::swap(wrong.shape[0], wrong.shape[1]);
  expect_refused("lse_b has shape [3, 2]", "be [rows, heads] of v_a", v, wrong, lse);
  wrong = lse;
  wrong.dtype = DType::kBFloat16;
  expect_refused("lse_out has dtype bfloat16", "be float32", v, lse, wrong);
}

}  // namespace
}  // namespace capillary
