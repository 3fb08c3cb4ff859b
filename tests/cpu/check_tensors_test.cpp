// SPDX-License-Identifier: MIT
// check_tensors: every way in which the tensors of a step can disagree with its plan is refused with a message
// of five parts (function, argument, what came, what was expected, what to do), and before anything is
// written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "capillary/decode.h"
#include "capillary/error.h"
#include "check/batch.h"
#include "shared/plan_layout.h"

namespace capillary {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class CheckTensors : public ::testing::Test {
 protected:
  CheckTensors()
      : shape_{.num_q_heads = 8, .num_kv_heads = 2, .head_dim = 64, .head_dim_v = 32},
        batch_(check::make_batch(
            {.shape = shape_,
             .table = check::make_table(check::star_tree(40, {3, 9, 20}), 16, 1)})),
        forest_(PrefixForest::from_block_table(batch_.block_table_view(), batch_.seq_lens, 16)),
        planner_(shape_),
        plan_(planner_.plan(forest_)),
        tensors_(batch_.tensors()) {
    batch_.poison_outputs();
  }

  // The call is refused, the message has its parts, nothing was written.
  void expect_refused(const std::string& argument, const std::string& expected,
                      const std::string& remedy) {
    const auto out = batch_.buffers[batch_.out.buffer].bytes;
    const auto lse = batch_.buffers[batch_.lse.buffer].bytes;
    try {
      decode_cpu(plan_, tensors_, options_);
      FAIL() << "accepted although: " << argument;
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), AllOf(StartsWith("decode: " + argument),
                                      HasSubstr("; must " + expected), HasSubstr("; " + remedy)));
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    }
    EXPECT_EQ(batch_.buffers[batch_.out.buffer].bytes, out);
    EXPECT_EQ(batch_.buffers[batch_.lse.buffer].bytes, lse);
    tensors_ = batch_.tensors();
  }

  // A copy of the plan with another header, for what the planner does not make.
  Plan with_header(const std::function<void(PlanHeader&)>& change) const {
    std::vector<uint64_t> words(plan_.size_bytes() / 8);
    std::memcpy(words.data(), plan_.data(), plan_.size_bytes());
    PlanHeader header;
    std::memcpy(&header, words.data(), sizeof header);
    change(header);
    std::memcpy(words.data(), &header, sizeof header);
    return Plan(std::move(words));
  }

  ModelShape shape_;
  check::HostBatch batch_;
  PrefixForest forest_;
  Planner planner_;
  Plan plan_;
  DecodeTensors tensors_;
  DecodeOptions options_;
};

TEST_F(CheckTensors, AcceptsTheRightOnes) {
  EXPECT_NO_THROW(check_tensors(plan_, tensors_, DeviceType::kCpu));
  tensors_.lse = TensorView{};
  EXPECT_NO_THROW(decode_cpu(plan_, tensors_));
}

TEST_F(CheckTensors, RunBeforePlan) {
  plan_ = Plan{};
  expect_refused("plan is empty", "be a plan", "plan before decoding");
}

TEST_F(CheckTensors, WrongDTypes) {
  tensors_.q.dtype = DType::kInt32;
  expect_refused("q has dtype int32", "be float16, bfloat16 or float32", "convert q");
  tensors_.k_cache.dtype = DType::kFloat16;
  expect_refused("k_cache has dtype float16", "have dtype bfloat16", "use one dtype");
  tensors_.v_cache.dtype = DType::kFloat16;
  expect_refused("v_cache has dtype float16", "have dtype bfloat16", "use one dtype");
  tensors_.out.dtype = DType::kFloat32;
  expect_refused("out has dtype float32", "have dtype bfloat16", "allocate the output");
  tensors_.lse.dtype = DType::kBFloat16;
  expect_refused("lse has dtype bfloat16", "have dtype float32", "allocate the LSE");
  tensors_.page_ids.dtype = DType::kInt64;
  expect_refused("page_ids has dtype int64", "have dtype int32", "convert the page ids");
}

// The kernel's wide path looks for the largest score before it multiplies by the scale.
TEST_F(CheckTensors, WrongScales) {
  for (const float scale :
       {-0.125f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    options_.softmax_scale = scale;
    expect_refused("softmax_scale is ", "be a finite number above zero", "negate q");
  }
}

TEST_F(CheckTensors, WrongDevices) {
  TensorView* const views[] = {&tensors_.q,        &tensors_.k_cache, &tensors_.v_cache,
                               &tensors_.page_ids, &tensors_.out,     &tensors_.lse};
  const char* const names[] = {"q", "k_cache", "v_cache", "page_ids", "out", "lse"};
  for (size_t i = 0; i < 6; ++i) {
    views[i]->device = DeviceType::kCuda;
    views[i]->device_index = 1;
    expect_refused(std::string(names[i]) + " is on cuda:1", "be on cpu", "copy it to the host");
  }
}

TEST_F(CheckTensors, MixedCudaDevices) {
  for (TensorView* view : {&tensors_.q, &tensors_.k_cache, &tensors_.v_cache, &tensors_.page_ids,
                           &tensors_.out, &tensors_.lse}) {
    view->device = DeviceType::kCuda;
    view->device_index = 1;
  }
  EXPECT_NO_THROW(check_tensors(plan_, tensors_, DeviceType::kCuda));
  tensors_.v_cache.device_index = 0;
  try {
    check_tensors(plan_, tensors_, DeviceType::kCuda);
    FAIL() << "tensors of two devices were accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("v_cache is on cuda:0"), HasSubstr("be on cuda:1"),
                                    HasSubstr("copy it to the device of q")));
  }
  tensors_.v_cache.device_index = 1;
  tensors_.q.dtype = DType::kFloat32;
  EXPECT_THROW(check_tensors(plan_, tensors_, DeviceType::kCuda), InvalidArgument);
}

TEST_F(CheckTensors, LastStrideNotOne) {
  TensorView* const views[] = {&tensors_.q, &tensors_.k_cache, &tensors_.v_cache, &tensors_.out};
  const char* const names[] = {"q", "k_cache", "v_cache", "out"};
  for (size_t i = 0; i < 4; ++i) {
    views[i]->strides[static_cast<size_t>(views[i]->ndim - 1)] = 2;
    expect_refused(std::string(names[i]) + " has strides [", "have last stride 1",
                   "make the last dimension contiguous");
  }
  tensors_.page_ids.strides[1] = 2;
  expect_refused("page_ids has strides [", "have last stride 1",
                 "make the last dimension contiguous");
}

TEST_F(CheckTensors, WrongShapes) {
  tensors_.q.shape[1] = 6;
  expect_refused("q has shape [3, 6, 64]", "be [num_queries, num_q_heads, head_dim] = [3, 8, 64]",
                 "plan again for this batch and layer");
  tensors_.q.shape[2] = 128;
  expect_refused("q has shape [3, 8, 128] (bfloat16, cpu)", "be [num_queries", "plan again");
  tensors_.q.ndim = 2;
  expect_refused("q has shape [3, 8]", "be [num_queries", "plan again");
  tensors_.k_cache.shape[2] = 8;
  expect_refused("k_cache has shape [", "be [num_pages, page_size, num_kv_heads, head_dim]",
                 "pass the cache in this logical order");
  tensors_.v_cache.shape[3] = 64;
  expect_refused("v_cache has shape [", "be [num_pages, page_size, num_kv_heads, head_dim_v]",
                 "pass the cache in this logical order");
  tensors_.v_cache.shape[0] -= 1;
  expect_refused("v_cache has shape [", "be [num_pages", "pass the cache in this logical order");
  tensors_.out.shape[2] = 64;
  expect_refused("out has shape [3, 8, 64]", "be [num_queries, num_q_heads, head_dim_v]",
                 "allocate the output for this plan");
  std::swap(tensors_.lse.shape[0], tensors_.lse.shape[1]);
  expect_refused("lse has shape [8, 3]", "be [num_queries, num_q_heads] = [3, 8]",
                 "allocate the LSE as [num_queries, num_q_heads]");
}

TEST_F(CheckTensors, WrongPageSizeAndHndPassedAsNhd) {
  tensors_.k_cache.shape[1] = 32;
  expect_refused("k_cache has shape [", "be [num_pages, page_size", "pass the cache");
  std::swap(tensors_.k_cache.shape[1], tensors_.k_cache.shape[2]);
  expect_refused("k_cache has shape [",
                 "be [num_pages, page_size, num_kv_heads, head_dim] = [any, 16, 2, 64]",
                 "pass the cache in this logical order");
}

TEST_F(CheckTensors, OtherBatchThanPlanned) {
  tensors_.q.shape[0] = 4;
  expect_refused("q has shape [4, 8, 64]", "be [num_queries, num_q_heads, head_dim] = [3, 8, 64]",
                 "plan again for this batch and layer");
  tensors_.page_ids.shape[0] = 2;
  expect_refused("page_ids has shape [2, ", "have 3 rows (num_requests of the plan)", "plan again");
}

TEST_F(CheckTensors, PageIdsTooFew) {
  tensors_.page_ids.strides[0] = 2;
  tensors_.page_ids.shape[1] = 2;
  expect_refused("page_ids has shape [3, 2] (int32, cpu) and reaches 6 entries", "reach ",
                 "pass the block table that the forest was built from");
  tensors_.page_ids.ndim = 1;
  tensors_.page_ids.strides[0] = 1;
  expect_refused("page_ids has shape [3] (int32, cpu) and reaches 3 entries", "reach ",
                 "pass the block table that the forest was built from");
  tensors_.page_ids.ndim = 3;
  expect_refused("page_ids has shape [", "be the block table [num_requests, max_pages] or a list",
                 "pass what the forest was built from");
}

TEST_F(CheckTensors, AbsentTensors) {
  TensorView* const views[] = {&tensors_.q,        &tensors_.k_cache, &tensors_.v_cache,
                               &tensors_.page_ids, &tensors_.out,     &tensors_.lse};
  const char* const names[] = {"q", "k_cache", "v_cache", "page_ids", "out", "lse"};
  for (size_t i = 0; i < 6; ++i) {
    views[i]->data = nullptr;
    expect_refused(std::string(names[i]) + " has shape [", "point at its elements",
                   "pass the tensor's address");
  }
  tensors_.out = TensorView{};
  expect_refused("out has shape []", "be [num_queries, num_q_heads, head_dim_v]", "allocate");
}

TEST_F(CheckTensors, BroadcastOutputs) {
  tensors_.out.strides[0] = 0;
  expect_refused("out has strides [0, ", "have an element of its own for every output",
                 "pass a tensor that is not broadcast");
  tensors_.lse.strides[1] = 0;
  expect_refused("lse has strides [", "have an element of its own", "pass a tensor");
}

TEST_F(CheckTensors, VariantsOfLaterVersions) {
  const std::function<void(PlanHeader&)> changes[] = {
      [](PlanHeader& header) { header.window_left = 128; },
      [](PlanHeader& header) { header.softcap = 30.0f; },
      [](PlanHeader& header) { header.features = 1; },
      [](PlanHeader& header) {
        header.causal = 1;
        header.num_queries = 6;
      },
  };
  for (const auto& change : changes) {
    EXPECT_THROW(check_tensors(with_header(change), tensors_, DeviceType::kCpu), UnsupportedConfig);
  }
}

TEST(HndAsNhd, SwapsHeadsAndTokens) {
  const TensorView hnd = {.ndim = 4, .shape = {7, 2, 16, 64}, .strides = {2048, 1024, 64, 1}};
  const TensorView nhd = hnd_as_nhd(hnd);
  EXPECT_EQ(nhd.shape, (std::array<int64_t, 5>{7, 16, 2, 64}));
  EXPECT_EQ(nhd.strides, (std::array<int64_t, 5>{2048, 64, 1024, 1}));
  const TensorView five = {.ndim = 5, .shape = {7, 2, 2, 16, 64}};
  try {
    hnd_as_nhd(five);
    FAIL() << "five dimensions were accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("hnd_as_nhd: hnd has shape [7, 2, 2, 16, 64]"),
                                    HasSubstr("be [pages, heads, page_size, dim]")));
  }
}

}  // namespace
}  // namespace capillary
