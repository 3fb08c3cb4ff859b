// SPDX-License-Identifier: MIT
// check_tensors: everything about the tensors of one decode step that can be told from their views and the
// plan's header, in constant time, so that it may run once a layer. Both backends call it first.
#include "core/check_tensors.h"

#include <array>
#include <cmath>
#include <string>

#include "capillary/decode.h"
#include "capillary/error.h"
#include "core/captured_launch.h"
#include "shared/plan_layout.h"

namespace capillary {
namespace {

std::string device_text(DeviceType device, int32_t index) {
  return device == DeviceType::kCpu ? "cpu" : "cuda:" + std::to_string(index);
}

template <class Array>
std::string list_text(const Array& values, int32_t count) {
  std::string text = "[";
  for (int32_t i = 0; i < count; ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(values[static_cast<size_t>(i)]);
  }
  return text + "]";
}

// "has shape [812, 16, 8, 96] (float16, cuda:0)"
std::string describe(const TensorView& view) {
  return "has shape " + list_text(view.shape, view.ndim) + " (" + dtype_name(view.dtype) + ", " +
         device_text(view.device, view.device_index) + ")";
}

[[noreturn]] void fail(const char* argument, const std::string& came, const std::string& expected,
                       const char* remedy) {
  throw InvalidArgument(five_parts("decode", argument, came, expected, remedy));
}

struct Expected {
  const char* name;
  int32_t ndim;
  std::array<int64_t, 4> shape;  // -1: anything
  const char* axes;              // "[num_queries, num_q_heads, head_dim]"
  const char* remedy;            // for a wrong shape
};

void check_device(const TensorView& view, const char* name, DeviceType device, int32_t index) {
  if (view.device == device && view.device_index == index) return;
  fail(name, "is on " + device_text(view.device, view.device_index),
       "be on " + device_text(device, index),
       device == DeviceType::kCpu ? "copy it to the host, or decode on its device"
                                  : "copy it to the device of q");
}

void check_shape(const TensorView& view, const Expected& expected) {
  bool right = view.ndim == expected.ndim;
  for (int32_t i = 0; right && i < expected.ndim; ++i) {
    const auto axis = static_cast<size_t>(i);
    right =
        expected.shape[axis] < 0 ? view.shape[axis] >= 0 : view.shape[axis] == expected.shape[axis];
  }
  if (right) return;
  std::string wanted = "be ";
  wanted.append(expected.axes).append(" = [");
  for (int32_t i = 0; i < expected.ndim; ++i) {
    const int64_t size = expected.shape[static_cast<size_t>(i)];
    if (i > 0) wanted += ", ";
    wanted += size < 0 ? "any" : std::to_string(size);
  }
  fail(expected.name, describe(view), wanted + "]", expected.remedy);
}

void check_memory(const TensorView& view, const char* name) {
  const int64_t count = view.numel();
  if (count == 0) return;
  if (view.data == nullptr)
    fail(name, describe(view) + " and no memory (data is null)", "point at its elements",
         "pass the tensor's address");
  const auto last = static_cast<size_t>(view.ndim - 1);
  if (view.shape[last] > 1 && view.strides[last] != 1) {
    fail(name, "has strides " + list_text(view.strides, view.ndim), "have last stride 1",
         "make the last dimension contiguous; the other strides are free");
  }
}

void check_writable(const TensorView& view, const char* name) {
  for (size_t axis = 0; axis < static_cast<size_t>(view.ndim); ++axis) {
    if (view.shape[axis] > 1 && view.strides[axis] == 0) {
      fail(name, "has strides " + list_text(view.strides, view.ndim),
           "have an element of its own for every output", "pass a tensor that is not broadcast");
    }
  }
}

void check_dtype(const TensorView& view, const char* name, DType dtype, const char* remedy) {
  if (view.dtype == dtype) return;
  fail(name, std::string("has dtype ") + dtype_name(view.dtype),
       std::string("have dtype ") + dtype_name(dtype), remedy);
}

void check_query_dtype(const TensorView& q, DeviceType device) {
  const bool is_half = q.dtype == DType::kFloat16 || q.dtype == DType::kBFloat16;
  if (is_half || (device == DeviceType::kCpu && q.dtype == DType::kFloat32)) return;
  fail("q", std::string("has dtype ") + dtype_name(q.dtype),
       device == DeviceType::kCpu ? "be float16, bfloat16 or float32" : "be float16 or bfloat16",
       "convert q and both caches");
}

void check_page_ids(const PlanHeader& header, const TensorView& ids, DeviceType device,
                    int32_t device_index) {
  if (ids.ndim != 1 && ids.ndim != 2) {
    fail("page_ids", describe(ids), "be the block table [num_requests, max_pages] or a list [n]",
         "pass what the forest was built from");
  }
  check_device(ids, "page_ids", device, device_index);
  check_dtype(ids, "page_ids", DType::kInt32, "convert the page ids to int32");
  check_memory(ids, "page_ids");
  if (ids.ndim == 2 && ids.shape[0] != header.num_requests) {
    fail("page_ids", describe(ids),
         "have " + std::to_string(header.num_requests) + " rows (num_requests of the plan)",
         "plan again for this batch");
  }
  const int64_t reach = page_id_reach(ids);
  if (reach < header.num_page_ids) {
    fail("page_ids", describe(ids) + " and reaches " + std::to_string(reach) + " entries",
         "reach " + std::to_string(header.num_page_ids) + " entries",
         "pass the block table that the forest was built from, with its row stride");
  }
}

void check_variants(const PlanHeader& header) {
  const char* what = nullptr;
  if (header.causal != 0 && header.num_queries != header.num_requests)
    what = "asks for several causal query tokens a request";
  if (header.window_left != -1) what = "asks for a sliding window";
  if (header.softcap != 0.0f) what = "asks for a soft cap";
  if (header.features != 0) what = "uses extensions of a later version";
  if (what == nullptr) return;
  throw UnsupportedConfig(five_parts("decode", "plan", what,
                                     "be plain decode: one query token a request, every key seen",
                                     "plan without it; this version does not execute it"));
}

}  // namespace

void check_tensors(const Plan& plan, const DecodeTensors& tensors, DeviceType device) {
  if (plan.empty()) {
    fail("plan", "is empty", "be a plan that Planner::plan returned", "plan before decoding");
  }
  check_tensors(PlanView(plan.data()).header(), tensors, device);
}

void check_tensors(const PlanHeader& header, const DecodeTensors& tensors, DeviceType device) {
  check_variants(header);

  const TensorView& q = tensors.q;
  const TensorView& keys = tensors.k_cache;
  const TensorView& values = tensors.v_cache;
  const char* other_batch = "plan again for this batch and layer, or pass the tensors planned for";
  check_shape(q, {"q",
                  3,
                  {header.num_queries, header.num_q_heads, header.head_dim, 0},
                  "[num_queries, num_q_heads, head_dim]",
                  other_batch});
  check_device(q, "q", device, device == DeviceType::kCpu ? 0 : q.device_index);
  check_query_dtype(q, device);
  check_memory(q, "q");

  check_shape(keys,
              {"k_cache",
               4,
               {-1, header.page_size, header.num_kv_heads, header.head_dim},
               "[num_pages, page_size, num_kv_heads, head_dim]",
               "pass the cache in this logical order (permute an HND cache with hnd_as_nhd)"});
  check_shape(values, {"v_cache",
                       4,
                       {keys.shape[0], header.page_size, header.num_kv_heads, header.head_dim_v},
                       "[num_pages, page_size, num_kv_heads, head_dim_v]",
                       "pass the cache in this logical order, with as many pages as k_cache"});
  for (const auto& [view, name] : {std::pair{&keys, "k_cache"}, std::pair{&values, "v_cache"}}) {
    check_device(*view, name, device, q.device_index);
    check_dtype(*view, name, q.dtype, "use one dtype for q and both caches");
    check_memory(*view, name);
  }
  check_page_ids(header, tensors.page_ids, device, q.device_index);

  check_shape(tensors.out, {"out",
                            3,
                            {header.num_queries, header.num_q_heads, header.head_dim_v, 0},
                            "[num_queries, num_q_heads, head_dim_v]",
                            "allocate the output for this plan"});
  check_device(tensors.out, "out", device, q.device_index);
  check_dtype(tensors.out, "out", q.dtype, "allocate the output with the dtype of q");
  check_memory(tensors.out, "out");
  check_writable(tensors.out, "out");
  if (!tensors.lse.present()) return;
  check_shape(tensors.lse, {"lse",
                            2,
                            {header.num_queries, header.num_q_heads, 0, 0},
                            "[num_queries, num_q_heads]",
                            "allocate the LSE as [num_queries, num_q_heads], or pass none"});
  check_device(tensors.lse, "lse", device, q.device_index);
  check_dtype(tensors.lse, "lse", DType::kFloat32, "allocate the LSE as float32");
  if (tensors.lse.numel() > 0 && tensors.lse.data == nullptr)
    fail("lse", describe(tensors.lse) + " and no memory (data is null)", "point at its elements",
         "pass the tensor's address, or no lse at all");
  check_writable(tensors.lse, "lse");
}

void check_options(const DecodeOptions& options) {
  const float scale = options.softmax_scale;
  if (std::isfinite(scale) && scale >= 0.0f) return;
  fail("softmax_scale", "is " + std::to_string(scale),
       "be a finite number above zero, or 0 for 1 / sqrt(head_dim)",
       "negate q if scores are to change their sign");
}

TensorView hnd_as_nhd(const TensorView& hnd) {
  if (hnd.ndim != 4) {
    throw InvalidArgument(five_parts("hnd_as_nhd", "hnd", describe(hnd),
                                     "be [pages, heads, page_size, dim]",
                                     "take the K or the V half of a joint cache first"));
  }
  TensorView nhd = hnd;
  std::swap(nhd.shape[1], nhd.shape[2]);
  std::swap(nhd.strides[1], nhd.strides[2]);
  return nhd;
}

}  // namespace capillary
