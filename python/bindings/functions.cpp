// SPDX-License-Identifier: MIT
// Free functions: merging of states, the oracle, and what this build and these devices can do.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "array_argument.h"
#include "bindings.h"
#include "capillary/decode.h"
#include "capillary/error.h"
#include "forest.h"
#include "names.h"
#include "require_device.h"

namespace capillary::python {
namespace {

void merge(nb::handle v_a, nb::handle lse_a, nb::handle v_b, nb::handle lse_b, nb::handle v_out,
           nb::handle lse_out, const std::string& base) {
  const char* function = "merge_states";
  const ArrayArgument a(function, "v_a", v_a, Access::kRead);
  const ArrayArgument b(function, "v_b", v_b, Access::kRead);
  const ArrayArgument sa(function, "lse_a", lse_a, Access::kRead);
  const ArrayArgument sb(function, "lse_b", lse_b, Access::kRead);
  const ArrayArgument o(function, "v_out", v_out, Access::kWrite);
  const ArrayArgument so(function, "lse_out", lse_out, Access::kWrite);
  for (const ArrayArgument* lse : {&sa, &sb, &so}) lse->require(DType::kFloat32, "convert it");
  if (base != "e" && base != "2")
    throw InvalidArgument(five_parts(function, "lse_base", "is '" + base + "'", "be 'e' or '2'",
                                     "say which logarithm the LSEs are"));
  const nb::gil_scoped_release unlocked;
  merge_states(a.view(), sa.view(), b.view(), sb.view(), o.view(), so.view(),
               base == "e" ? LseBase::kE : LseBase::k2);
}

// Flat fp64 attention, for tests and for checking an integration.
nb::tuple oracle(nb::handle q, nb::handle k_cache, nb::handle v_cache, nb::handle block_table,
                 nb::handle seq_lens, double softmax_scale, const std::string& kv_layout) {
  const char* function = "oracle_decode";
  const ArrayArgument queries(function, "q", q, Access::kRead);
  const ArrayArgument keys(function, "k_cache", k_cache, Access::kRead);
  const ArrayArgument values(function, "v_cache", v_cache, Access::kRead);
  // The oracle itself looks at the caches' types alone.
  if (queries.view().dtype == DType::kInt32 || queries.view().dtype == DType::kInt64)
    throw WrongDType(five_parts(function, "q",
                                std::string("has dtype ") + dtype_name(queries.view().dtype),
                                "be float16, bfloat16 or float32", "convert it"));
  const bool is_hnd = parse_layout(function, kv_layout);
  const HostBatch batch(function, block_table, seq_lens, nb::handle());
  OracleInput input;
  input.q = queries.view();
  input.k_cache = is_hnd ? hnd_as_nhd(keys.view()) : keys.view();
  input.v_cache = is_hnd ? hnd_as_nhd(values.view()) : values.view();
  input.block_table = batch.table();
  input.seq_lens = batch.seq_lens();
  input.softmax_scale = softmax_scale;
  OracleResult result;
  {
    const nb::gil_scoped_release unlocked;
    result = oracle_decode(input);
  }
  return nb::make_tuple(result.out, result.lse);
}

nb::list devices() {
  nb::list found;
#if CAPILLARY_WITH_CUDA
  for (int i = 0; i < cuda::device_count(); ++i) {
    const cuda::DeviceInfo info = cuda::device_info(i);
    nb::dict fields;
    fields["index"] = info.index;
    fields["name"] = info.name;
    fields["compute"] = nb::make_tuple(info.compute_major, info.compute_minor);
    fields["num_sms"] = info.num_sms;
    fields["memory_bytes"] = info.memory_bytes;
    fields["driver"] = info.driver_version;
    fields["runtime"] = info.runtime_version;
    found.append(fields);
  }
#endif
  return found;
}

std::string kernels() {
#if CAPILLARY_WITH_CUDA
  return cuda::supported_combinations();
#else
  return "none (built without CUDA)";
#endif
}

// Throws what using the combination would throw.
void check_supported(const std::string& device, const std::string& dtype, int head_dim,
                     std::optional<int> head_dim_v, int num_q_heads, int num_kv_heads,
                     int page_size) {
  const char* function = "is_supported";
  const DType type = parse_dtype(function, dtype);
  const Planner planner({num_q_heads, num_kv_heads, head_dim, head_dim_v.value_or(0), type});
  if (page_size < 1)
    throw InvalidArgument(five_parts(function, "page_size", "is " + std::to_string(page_size),
                                     "be at least 1", "pass tokens a page"));
  const int32_t index = parse_device(function, device);
  if (index < 0) return;
  require_device(function, index);
#if CAPILLARY_WITH_CUDA
  if (planner.shape().v_dim() != head_dim)
    throw UnsupportedConfig(five_parts(
        function, "head_dim_v", "is " + std::to_string(planner.shape().v_dim()),
        "be head_dim (" + std::to_string(head_dim) + ") on CUDA", "use the CPU backend"));
  (void)cuda::max_clusters(index, type, head_dim);
#endif
}

}  // namespace

void bind_functions(nb::module_& module) {
  module.def("_merge_states", &merge);
  module.def(
      "_oracle_decode", &oracle,
      nb::sig(
          "def _oracle_decode(q: object, k_cache: object, v_cache: object, block_table: object, "
          "seq_lens: object, softmax_scale: float, kv_layout: str, /) -> tuple[list[float], "
          "list[float]]"));
  module.def("_check_supported", &check_supported);
  module.def(
      "devices", &devices,
      "The CUDA devices this build sees: dicts of index, name, compute (major, minor), num_sms, "
      "memory_bytes,\n"
      "driver and runtime (versions as CUDA counts them: 13000 is 13.0). Empty without CUDA.",
      nb::sig("def devices() -> list[dict[str, typing.Any]]"));
  module.def("kernels", &kernels, "The kernel instances of this build, in words.");
}

}  // namespace capillary::python
