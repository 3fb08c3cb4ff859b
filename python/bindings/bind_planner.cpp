// SPDX-License-Identifier: MIT
// capillary._core.Planner: the class that capillary.Planner extends with allocation and explain().
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <limits>
#include <vector>

#include "bindings.h"
#include "capillary/error.h"
#include "names.h"
#include "planner.h"

namespace capillary::python {
namespace {

ModelShape make_shape(const char* function, int num_q_heads, int num_kv_heads, int head_dim,
                      std::optional<int> head_dim_v, const std::string& dtype) {
  return {num_q_heads, num_kv_heads, head_dim, head_dim_v.value_or(0),
          parse_dtype(function, dtype)};
}

// Requests are counted in 32 bits, so that no bound of a real batch overflows.
void check_max_requests(const char* function, int64_t max_requests) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (max_requests < 0 || max_requests > kMost)
    throw InvalidArgument(five_parts(function, "max_requests", "is " + std::to_string(max_requests),
                                     "be 0 to " + std::to_string(kMost),
                                     "pass the largest batch you plan for"));
}

void make_planner(PyPlanner* self, int num_q_heads, int num_kv_heads, int head_dim,
                  std::optional<int> head_dim_v, const std::string& dtype,
                  const std::string& device, const std::string& mode, int cluster_size,
                  int num_pieces, bool fixed_grid, std::optional<DeviceProfile> profile,
                  int64_t max_requests, int64_t plan_capacity_bytes) {
  check_max_requests("Planner", max_requests);
  if (plan_capacity_bytes < 0)
    throw InvalidArgument(five_parts("Planner", "plan_capacity_bytes",
                                     "is " + std::to_string(plan_capacity_bytes), "be at least 0",
                                     "pass the bytes of the largest plan, or 0 for a default"));
  PlannerSettings settings;
  settings.shape = make_shape("Planner", num_q_heads, num_kv_heads, head_dim, head_dim_v, dtype);
  settings.options = {parse_mode("Planner", mode), cluster_size, num_pieces, fixed_grid};
  settings.profile = std::move(profile);
  settings.device = device;
  settings.max_requests = max_requests;
  settings.plan_capacity_bytes = plan_capacity_bytes;
  new (self) PyPlanner(settings);
}

nb::dict summary_of(PyPlanner& self) {
  const PlannerState state = self.state("Planner.explain");
  const PlanSummary& s = state.summary;
  nb::dict fields;
  fields["mode"] = mode_name(s.mode);
  fields["num_requests"] = s.num_requests;
  fields["num_nodes"] = s.num_nodes;
  fields["num_jobs"] = s.num_jobs;
  fields["cluster_size"] = s.cluster_size;
  fields["num_clusters"] = s.num_clusters;
  fields["unique_bytes"] = s.unique_bytes;
  fields["flat_bytes"] = s.flat_bytes;
  fields["planned_bytes"] = s.planned_bytes;
  fields["exchange_bytes"] = s.exchange_bytes;
  fields["split_bytes"] = s.split_bytes;
  fields["floor_us"] = s.floor_us;
  fields["predicted_us"] = s.predicted_us;
  fields["reason"] = s.reason;
  fields["plan_bytes"] = state.plan_bytes;
  fields["workspace_bytes"] = state.workspace_bytes;
  fields["profile"] = self.profile().name;
  fields["profile_where"] = self.profile_where();
  fields["device"] = self.device_text();
  fields["num_runs"] = state.num_runs;
  nb::list candidates;
  for (const PlanCandidate& c : s.candidates)
    candidates.append(
        nb::make_tuple(mode_name(c.mode), c.cluster_size, c.num_pieces, c.predicted_us));
  fields["candidates"] = candidates;
  return fields;
}

int64_t bound(int64_t max_requests, int num_q_heads, int num_kv_heads, int head_dim,
              std::optional<int> head_dim_v, const std::string& mode, int cluster_size,
              int num_pieces, std::optional<DeviceProfile> profile) {
  const char* function = "workspace_bytes";
  check_max_requests(function, max_requests);
  const ModelShape shape =
      make_shape(function, num_q_heads, num_kv_heads, head_dim, head_dim_v, "bfloat16");
  const PlanOptions options{parse_mode(function, mode), cluster_size, num_pieces, false};
  const DeviceProfile card = choose_profile(function, profile, -1, shape.dtype, head_dim).profile;
  const Planner checked(shape, card, options);
  return workspace_bound(shape, options, card, max_requests);
}

}  // namespace

void bind_planner(nb::module_& module) {
  nb::class_<PyPlanner>(module, "Planner", nb::is_weak_referenceable())
      .def("__init__", &make_planner, nb::arg("num_q_heads"), nb::arg("num_kv_heads"),
           nb::arg("head_dim"), nb::kw_only(), nb::arg("head_dim_v").none() = nb::none(),
           nb::arg("dtype") = "bfloat16", nb::arg("device") = "cpu", nb::arg("mode") = "auto",
           nb::arg("cluster_size") = 0, nb::arg("num_pieces") = 0, nb::arg("fixed_grid") = false,
           nb::arg("profile").none() = nb::none(), nb::arg("max_requests") = 0,
           nb::arg("plan_capacity_bytes") = 0)
      .def("plan", &PyPlanner::plan, nb::arg("forest"), nb::kw_only(),
           nb::arg("stream").none() = nb::none(),
           "Plans one decode step over a forest; every layer then runs it.\n\n"
           "On a CUDA device the plan is uploaded on `stream` (None: PyTorch's current one), "
           "without "
           "waiting for it.\n\n"
           "Raises InvalidArgumentError for more than max_requests, while `stream` is being "
           "captured, "
           "or when a\n"
           "captured graph could not run the new plan; DeviceError if memory or the upload fails.",
           nb::sig("def plan(self, forest: PrefixForest, *, stream: object | None = None) -> None"))
      .def("update", &PyPlanner::update, nb::arg("block_table").none(), nb::arg("seq_lens").none(),
           nb::arg("page_size"), nb::kw_only(), nb::arg("previous_row").none() = nb::none(),
           nb::arg("stream").none() = nb::none(),
           "Plans a step from the batch's block table and lengths.\n\n"
           "block_table: int32 [num_requests, max_pages]; seq_lens: int32 [num_requests], in "
           "tokens, "
           "as is page_size.\n"
           "Arrays in host memory are read in place and nothing waits; those on a CUDA device are "
           "copied\n"
           "to the host first, which waits for `stream`.\n\n"
           "previous_row: int32 [num_requests], the row that each request had in the update "
           "before, -1 if\n"
           "it is new. Then only what changed is compared again, and a request that kept its row "
           "must\n"
           "have kept its full pages. None: nothing is assumed.\n\n"
           "Raises WrongDTypeError or InvalidArgumentError for a bad table or length, or what "
           "plan() "
           "raises;\n"
           "after a bad table or length the plan before still stands, and so do its rows.",
           nb::sig("def update(self, block_table: object, seq_lens: object, page_size: int, *, "
                   "previous_row: object | None = None, stream: object | None = None) -> None"))
      .def(
          "_run",
          [](PyPlanner& self, nb::handle q, nb::handle k_cache, nb::handle v_cache,
             nb::handle block_table, nb::handle out, nb::handle lse, double softmax_scale,
             const char* kv_layout, nb::handle workspace, nb::handle stream, int32_t num_threads,
             bool dependent_launch) {
            self.run({q, k_cache, v_cache, block_table, out, lse, workspace, stream, softmax_scale,
                      parse_layout("Planner.run", kv_layout), dependent_launch, num_threads});
          },
          // None is told apart from an array under the argument's name.
          nb::arg("q").none(), nb::arg("k_cache").none(), nb::arg("v_cache").none(),
          nb::arg("block_table").none(), nb::arg("out").none(), nb::arg("lse").none(),
          nb::arg("softmax_scale"), nb::arg("kv_layout"), nb::arg("workspace").none(),
          nb::arg("stream").none(), nb::arg("num_threads"), nb::arg("dependent_launch"))
      .def("_summary", &summary_of, nb::sig("def _summary(self) -> dict[str, typing.Any]"))
      .def_prop_ro(
          "num_q_heads", [](const PyPlanner& self) { return self.shape().num_q_heads; },
          "Query heads.")
      .def_prop_ro(
          "num_kv_heads", [](const PyPlanner& self) { return self.shape().num_kv_heads; },
          "KV heads.")
      .def_prop_ro(
          "head_dim", [](const PyPlanner& self) { return self.shape().head_dim; },
          "Elements a head of q and K.")
      .def_prop_ro(
          "head_dim_v", [](const PyPlanner& self) { return self.shape().v_dim(); },
          "Elements a head of V and of the output.")
      .def_prop_ro(
          "dtype", [](const PyPlanner& self) { return dtype_name(self.shape().dtype); },
          "Name of the element type of q, caches and output.")
      .def_prop_ro("device", &PyPlanner::device_text, "'cpu' or 'cuda:N'.")
      .def_prop_ro(
          "profile", [](const PyPlanner& self) { return self.profile(); },
          "The DeviceProfile that plans are made with.")
      .def_prop_ro(
          "profile_where", &PyPlanner::profile_where,
          "Where the profile comes from: 'built in', \"the caller's\", or the file and who "
          "named it.")
      .def_prop_ro(
          "plan_bytes",
          [](PyPlanner& self) {
            const std::vector<char> plan = self.plan_copy();
            return nb::bytes(plan.data(), plan.size());
          },
          "The plan as it stands in memory (docs/plan-format.md).",
          nb::sig("def plan_bytes(self) -> bytes"));

  module.def(
      "workspace_bytes", &bound, nb::arg("max_requests"), nb::kw_only(), nb::arg("num_q_heads"),
      nb::arg("num_kv_heads"), nb::arg("head_dim"), nb::arg("head_dim_v").none() = nb::none(),
      nb::arg("mode") = "auto", nb::arg("cluster_size") = 0, nb::arg("num_pieces") = 0,
      nb::arg("profile").none() = nb::none(),
      "Bytes of workspace that are enough for every batch of at most max_requests requests.\n\n"
      "The other arguments are a Planner's.\n"
      "An upper bound, for memory that is allocated once; explain().workspace_bytes is what one\n"
      "plan needs.\n\n"
      "Raises InvalidArgumentError or UnsupportedConfigError for a shape that cannot be planned.");
}

}  // namespace capillary::python
