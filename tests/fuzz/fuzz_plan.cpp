// SPDX-License-Identifier: MIT
// Fuzzing of the planner and of validate_plan. The input describes a small tree, a model shape and planner
// options, then bytes of the plan to overwrite. What must hold: the plan as made is valid; the damaged plan is
// either refused with InternalError or, if it passes, gives the same results when it is run as the one made.
// Plans and tensors have memory of their exact size, so that an address sanitizer sees every read outside.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "capillary/decode.h"
#include "capillary/error.h"
#include "capillary/plan.h"
#include "capillary/prefix_forest.h"
#include "core/hash.h"
#include "shared/plan_layout.h"

namespace {

using namespace capillary;

constexpr int32_t kHeadDim = 4;
constexpr size_t kHeaderWords = sizeof(PlanHeader) / 8;

class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool empty() const { return size_ == 0; }
  // Zeros after the end.
  int32_t byte() {
    if (size_ == 0) return 0;
    --size_;
    return *data_++;
  }
  int32_t below(int32_t n) { return byte() % n; }

 private:
  const uint8_t* data_;
  size_t size_;
};

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

PrefixForest make_forest(Input& input) {
  const int32_t page_size = 1 + input.below(20);
  const int32_t num_nodes = input.below(24);
  std::vector<int32_t> parent, num_tokens;
  for (int32_t i = 0; i < num_nodes; ++i) {
    parent.push_back(input.below(i + 1) - 1);
    num_tokens.push_back(1 + input.below(100));
  }
  return PrefixForest::from_parents(parent, num_tokens, page_size);
}

ModelShape make_shape(Input& input) {
  ModelShape shape;
  shape.num_kv_heads = 1 + input.below(2);
  shape.num_q_heads = shape.num_kv_heads * (1 + input.below(9));
  shape.head_dim = kHeadDim;
  shape.dtype = DType::kFloat32;
  return shape;
}

PlanOptions make_options(Input& input) {
  constexpr Mode kModes[] = {Mode::kAuto, Mode::kFlat, Mode::kSharedL2};
  constexpr int32_t kClusterSizes[] = {0, 1, 2, 4, 8, 16};
  PlanOptions options;
  options.mode = kModes[input.below(3)];
  options.cluster_size = kClusterSizes[input.below(6)];
  options.num_pieces = input.below(12);
  return options;
}

TensorView view(std::vector<float>& values, std::initializer_list<int64_t> shape) {
  TensorView tensor;
  tensor.data = values.data();
  tensor.dtype = DType::kFloat32;
  tensor.ndim = static_cast<int32_t>(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    tensor.shape[i] = shape.begin()[i];
    tensor.strides[i] = stride;
    stride *= shape.begin()[i];
  }
  return tensor;
}

std::vector<float> numbers(int64_t count, uint32_t seed) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) {
    seed = seed * 1664525u + 1013904223u;
    value = static_cast<float>(seed >> 8) * 0x1p-23f - 1.0f;
  }
  return values;
}

struct Step {
  Step(const PrefixForest& forest, const ModelShape& shape)
      : requests(forest.num_requests()),
        pages(static_cast<int64_t>(forest.page_ids().size())),
        page_ids(forest.page_ids().begin(), forest.page_ids().end()),
        heads(shape),
        q(numbers(int64_t{requests} * shape.num_q_heads * kHeadDim, 1)),
        k(numbers(pages * forest.page_size() * shape.num_kv_heads * kHeadDim, 2)),
        v(numbers(pages * forest.page_size() * shape.num_kv_heads * kHeadDim, 3)),
        page_size(forest.page_size()) {}

  std::vector<float> run(const Plan& plan) {
    std::vector<float> out(q.size(), NAN);
    DecodeTensors tensors;
    tensors.q = view(q, {requests, heads.num_q_heads, kHeadDim});
    tensors.k_cache = view(k, {pages, page_size, heads.num_kv_heads, kHeadDim});
    tensors.v_cache = view(v, {pages, page_size, heads.num_kv_heads, kHeadDim});
    tensors.page_ids = {page_ids.data(), DType::kInt32, DeviceType::kCpu, 0, 1, {pages}, {1}};
    tensors.out = view(out, {requests, heads.num_q_heads, kHeadDim});
    DecodeOptions options;
    options.num_threads = 1;
    decode_cpu(plan, tensors, options);
    return out;
  }

  int32_t requests;
  int64_t pages;
  std::vector<int32_t> page_ids;
  ModelShape heads;
  std::vector<float> q, k, v;
  int32_t page_size;
};

bool close(const std::vector<float>& a, const std::vector<float>& b) {
  // Values are below 1 and sums have a few hundred terms: fp32 keeps five digits whatever the order.
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](float x, float y) { return std::abs(x - y) < 1e-4f; });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  const PrefixForest forest = make_forest(input);
  const ModelShape shape = make_shape(input);
  Planner planner(shape, builtin_h200(), make_options(input));
  const Plan& plan = planner.plan(forest);
  validate_plan(plan.data(), plan.size_bytes(), forest);
  Step step(forest, shape);
  const std::vector<float> expected = step.run(plan);

  std::vector<uint64_t> words(plan.size_bytes() / 8);
  std::memcpy(words.data(), plan.data(), plan.size_bytes());
  auto* bytes = reinterpret_cast<unsigned char*>(words.data());
  while (!input.empty()) {
    const size_t place = static_cast<size_t>(input.byte()) << 8 | static_cast<size_t>(input.byte());
    bytes[place % plan.size_bytes()] = static_cast<unsigned char>(input.byte());
  }
  // Otherwise the hash would refuse every damage and nothing behind it would be tried.
  const uint64_t hash = hash_words(words.data() + kHeaderWords, words.size() - kHeaderWords);
  std::memcpy(bytes + offsetof(PlanHeader, content_hash), &hash, sizeof(hash));

  const Plan damaged(std::move(words));
  try {
    validate_plan(damaged.data(), plan.size_bytes(), forest);
  } catch (const InternalError&) {
    return 0;
  }
  try {
    require(close(step.run(damaged), expected),
            "a plan that validate_plan accepts gives other results");
  } catch (const InvalidArgument&) {
    // Another shape than the tensors': a legal plan of another model.
  } catch (const UnsupportedConfig&) {
  }
  return 0;
}
