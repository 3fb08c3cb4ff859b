// SPDX-License-Identifier: MIT
// merge_states on the host. Every (row, head) reads both sides before it writes, so that the output may be
// the memory of either side.
#include <algorithm>
#include <string>

#include "capillary/decode.h"
#include "capillary/error.h"
#include "cpu/tensor_access.h"
#include "shared/lse.h"

namespace capillary {
namespace {

using cpu::element;
using cpu::load_float;
using cpu::store_float;

[[noreturn]] void fail(const char* argument, const std::string& came, const char* expected,
                       const char* remedy) {
  throw InvalidArgument(five_parts("merge_states", argument, came, expected, remedy));
}

std::string shape_text(const TensorView& view) {
  std::string text = "has shape [";
  for (int i = 0; i < view.ndim; ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(view.shape[static_cast<size_t>(i)]);
  }
  return text + "]";
}

void check_values(const TensorView& view, const char* name, const TensorView& model) {
  if (view.device != DeviceType::kCpu)
    fail(name, "is in device memory", "be in host memory", "copy it to the host first");
  if (view.ndim != 3) fail(name, shape_text(view), "be [rows, heads, dim]", "reshape the view");
  if (!cpu::is_floating(view.dtype)) {
    fail(name, std::string("has dtype ") + dtype_name(view.dtype),
         "be float16, bfloat16 or float32", "convert it");
  }
  if (view.shape != model.shape)
    fail(name, shape_text(view), "have the shape of v_a", "merge states of the same rows");
  if (view.shape[2] > 1 && view.strides[2] != 1)
    fail(name, "has last stride " + std::to_string(view.strides[2]), "have last stride 1",
         "make the last dimension contiguous");
}

void check_lse(const TensorView& view, const char* name, const TensorView& model) {
  if (view.device != DeviceType::kCpu)
    fail(name, "is in device memory", "be in host memory", "copy it to the host first");
  if (view.dtype != DType::kFloat32)
    fail(name, std::string("has dtype ") + dtype_name(view.dtype), "be float32", "convert it");
  if (view.ndim != 2 || view.shape[0] != model.shape[0] || view.shape[1] != model.shape[1])
    fail(name, shape_text(view), "be [rows, heads] of v_a", "pass LSEs as [rows, heads]");
}

}  // namespace

void merge_states(const TensorView& v_a, const TensorView& lse_a, const TensorView& v_b,
                  const TensorView& lse_b, const TensorView& v_out, const TensorView& lse_out,
                  LseBase base) {
  check_values(v_a, "v_a", v_a);
  check_values(v_b, "v_b", v_a);
  check_values(v_out, "v_out", v_a);
  check_lse(lse_a, "lse_a", v_a);
  check_lse(lse_b, "lse_b", v_a);
  check_lse(lse_out, "lse_out", v_a);

  for (int64_t row = 0; row < v_a.shape[0]; ++row) {
    for (int64_t head = 0; head < v_a.shape[1]; ++head) {
      const float side_a = load_float(element(lse_a, row, head), DType::kFloat32, 0);
      const float side_b = load_float(element(lse_b, row, head), DType::kFloat32, 0);
      const MergeScales scales = base == LseBase::kE ? merge_scales_base_e(side_a, side_b)
                                                     : merge_scales_base2(side_a, side_b);
      const float sum = scales.scale_a + scales.scale_b;
      const float inverse = normaliser(sum);
      const std::byte* run_a = element(v_a, row, head);
      const std::byte* run_b = element(v_b, row, head);
      std::byte* run_out = element(v_out, row, head);
      for (int64_t i = 0; i < v_a.shape[2]; ++i) {
        const float value = weighted(load_float(run_a, v_a.dtype, i), scales.scale_a) +
                            weighted(load_float(run_b, v_b.dtype, i), scales.scale_b);
        store_float(run_out, v_out.dtype, i, value * inverse);
      }
      float lse = kEmptyMax;
      if (sum != 0.0f) {
        lse = scales.max + (base == LseBase::kE ? std::log(sum) : std::log2(sum));
      }
      store_float(element(lse_out, row, head), DType::kFloat32, 0, lse);
    }
  }
}

}  // namespace capillary
