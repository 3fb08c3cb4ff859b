// SPDX-License-Identifier: MIT
// PrefixForest and the ways it is built.
#include "forest.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>

#include "bindings.h"
#include "capillary/error.h"
#include "device_memory.h"

namespace capillary::python {
namespace {

// Elements between the first and the last that a table of this shape reaches.
int64_t reach(const TensorView& table) {
  if (table.shape[0] == 0 || table.shape[1] == 0) return 0;
  return (table.shape[0] - 1) * table.strides[0] + table.shape[1];
}

void check_table(const char* function, const ArrayArgument& argument) {
  argument.require(DType::kInt32, "convert the block table to int32");
  const TensorView& table = argument.view();
  if (table.ndim != 2)
    throw InvalidArgument(five_parts(function, "block_table",
                                     "has " + std::to_string(table.ndim) + " dimensions",
                                     "be [num_requests, max_pages]", "reshape it"));
  if (table.shape[1] > 1 && table.strides[1] != 1)
    throw InvalidArgument(five_parts(function, "block_table",
                                     "has last stride " + std::to_string(table.strides[1]),
                                     "have last stride 1", "copy it"));
  if (table.shape[0] > 1 && table.strides[0] < table.shape[1])
    throw InvalidArgument(five_parts(function, "block_table",
                                     "has row stride " + std::to_string(table.strides[0]),
                                     "have rows that do not overlap", "copy it"));
}

// A copy that NumPy owns.
template <class T>
nb::ndarray<nb::numpy, T> numpy_copy(std::span<const T> values) {
  auto* owned = new std::vector<T>(values.begin(), values.end());
  const nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::ndarray<nb::numpy, T>(owned->data(), {owned->size()}, owner);
}

Forest from_table(nb::handle block_table, nb::handle seq_lens, int32_t page_size, nb::handle stream,
                  bool flat) {
  const char* function = flat ? "PrefixForest.flat" : "PrefixForest.from_block_table";
  const HostBatch batch(function, block_table, seq_lens, stream);
  const nb::gil_scoped_release unlocked;
  return {flat ? PrefixForest::flat(batch.table(), batch.seq_lens(), page_size)
               : PrefixForest::from_block_table(batch.table(), batch.seq_lens(), page_size),
          batch.table().row_stride};
}

Forest from_csr(nb::handle parent, nb::handle num_tokens, nb::handle page_indptr,
                nb::handle page_ids, nb::handle request_node, int32_t page_size) {
  const char* function = "PrefixForest.from_csr";
  const ArrayArgument a(function, "parent", parent, Access::kRead);
  const ArrayArgument b(function, "num_tokens", num_tokens, Access::kRead);
  const ArrayArgument c(function, "page_indptr", page_indptr, Access::kRead);
  const ArrayArgument d(function, "page_ids", page_ids, Access::kRead);
  const ArrayArgument e(function, "request_node", request_node, Access::kRead);
  const auto parents = a.int32s(), tokens = b.int32s(), indptr = c.int32s(), ids = d.int32s(),
             nodes = e.int32s();
  const nb::gil_scoped_release unlocked;
  return {PrefixForest::from_csr(parents, tokens, indptr, ids, nodes, page_size), 0};
}

Forest from_parents(nb::handle parent, nb::handle num_tokens, int32_t page_size) {
  const char* function = "PrefixForest.from_parents";
  const ArrayArgument a(function, "parent", parent, Access::kRead);
  const ArrayArgument b(function, "num_tokens", num_tokens, Access::kRead);
  const auto parents = a.int32s(), tokens = b.int32s();
  const nb::gil_scoped_release unlocked;
  return {PrefixForest::from_parents(parents, tokens, page_size), 0};
}

// Each level: (group, indptr, page_ids, num_tokens).
Forest from_levels(const std::vector<nb::tuple>& levels, int32_t num_requests, int32_t page_size) {
  const char* function = "PrefixForest.from_levels";
  static const char* names[4] = {"group", "indptr", "page_ids", "num_tokens"};
  std::vector<std::unique_ptr<ArrayArgument>> arguments;
  std::vector<PrefixForest::Level> views;
  for (const nb::tuple& level : levels) {
    if (level.size() != 4)
      throw InvalidArgument(five_parts(
          function, "levels", "has an entry of " + std::to_string(level.size()) + " arrays",
          "have (group, indptr, page_ids, num_tokens) in each", "pass four arrays a level"));
    std::span<const int32_t> spans[4];
    for (size_t i = 0; i < 4; ++i) {
      arguments.push_back(
          std::make_unique<ArrayArgument>(function, names[i], level[i], Access::kRead));
      spans[i] = arguments.back()->int32s();
    }
    views.push_back({spans[0], spans[1], spans[2], spans[3]});
  }
  const nb::gil_scoped_release unlocked;
  return {PrefixForest::from_levels(views, num_requests, page_size), 0};
}

nb::list nodes_of(const Forest& self) {
  nb::object type = nb::module_::import_("capillary._types").attr("ForestNode");
  nb::list nodes;
  for (const ForestNode& node : self.forest.nodes())
    nodes.append(type(node.parent, node.token_begin, node.num_tokens, node.request_begin,
                      node.request_end, node.page_offset));
  return nodes;
}

}  // namespace

HostBatch::HostBatch(const char* function, nb::handle block_table, nb::handle seq_lens,
                     nb::handle stream)
    : table_argument_(function, "block_table", block_table, Access::kRead, stream),
      seq_lens_argument_(function, "seq_lens", seq_lens, Access::kRead, stream) {
  check_table(function, table_argument_);
  const TensorView& table = table_argument_.view();
  const auto* ids = static_cast<const int32_t*>(table.data);
  if (table_argument_.on_cuda()) {
    void* cuda_stream = resolve_stream(function, stream, block_table, table.device_index);
    table_copy_.resize(static_cast<size_t>(reach(table)));
    const nb::gil_scoped_release unlocked;
    copy_to_host(table_copy_.data(), ids, table_copy_.size() * sizeof(int32_t), table.device_index,
                 cuda_stream);
    ids = table_copy_.data();
  }
  table_ = {ids, table.shape[0], table.shape[1],
            table.shape[0] > 1 ? table.strides[0] : table.shape[1]};
  if (!seq_lens_argument_.on_cuda()) {
    seq_lens_ = seq_lens_argument_.int32s();
    return;
  }
  seq_lens_argument_.require(DType::kInt32, "convert the lengths to int32");
  const TensorView& lens = seq_lens_argument_.view();
  if (lens.ndim != 1 || (lens.shape[0] > 1 && lens.strides[0] != 1))
    throw InvalidArgument(five_parts(function, "seq_lens", "is not one contiguous row",
                                     "be [num_requests]", "flatten it"));
  void* cuda_stream = resolve_stream(function, stream, seq_lens, lens.device_index);
  seq_lens_copy_.resize(static_cast<size_t>(lens.shape[0]));
  const nb::gil_scoped_release unlocked;
  copy_to_host(seq_lens_copy_.data(), lens.data, seq_lens_copy_.size() * sizeof(int32_t),
               lens.device_index, cuda_stream);
  seq_lens_ = seq_lens_copy_;
}

void bind_forest(nb::module_& module) {
  nb::class_<Forest>(
      module, "PrefixForest",
      "Which requests of a batch share which runs of KV tokens.\n\n"
      "Integer arguments are int32 arrays in host memory. A block table or lengths on a CUDA "
      "device are\n"
      "accepted and copied to the host, which waits for `stream`; pass host copies not to wait.")
      .def_static(
          "from_block_table",
          [](nb::handle table, nb::handle lens, int32_t page_size, nb::handle stream) {
            return from_table(table, lens, page_size, stream, false);
          },
          nb::arg("block_table"), nb::arg("seq_lens"), nb::arg("page_size"), nb::kw_only(),
          nb::arg("stream").none() = nb::none(),
          "The forest of a paged batch: the same page id at the same position is sharing.\n\n"
          "block_table: int32 [num_requests, max_pages]; seq_lens: int32 [num_requests], in "
          "tokens.\n"
          "Only the first ceil(seq_len / page_size) ids of a row are read.\n\n"
          "Raises WrongDTypeError for anything but int32; InvalidArgumentError for a negative "
          "length "
          "or page id,\n"
          "or a row too narrow for its length.",
          nb::sig("def from_block_table(block_table: object, seq_lens: object, page_size: int, *, "
                  "stream: object | None = None) -> PrefixForest"))
      .def_static(
          "flat",
          [](nb::handle table, nb::handle lens, int32_t page_size, nb::handle stream) {
            return from_table(table, lens, page_size, stream, true);
          },
          nb::arg("block_table"), nb::arg("seq_lens"), nb::arg("page_size"), nb::kw_only(),
          nb::arg("stream").none() = nb::none(),
          "Every request alone, whatever the table says. Arguments and errors as of "
          "from_block_table.",
          nb::sig("def flat(block_table: object, seq_lens: object, page_size: int, *, "
                  "stream: object | None = None) -> PrefixForest"))
      .def_static(
          "from_csr", &from_csr, nb::arg("parent"), nb::arg("num_tokens"), nb::arg("page_indptr"),
          nb::arg("page_ids"), nb::arg("request_node"), nb::arg("page_size"),
          "Node i hangs under parent[i] (-1: root) and has num_tokens[i] tokens in pages\n"
          "page_ids[page_indptr[i]:page_indptr[i + 1]]; request r ends at node request_node[r] "
          "(-1: "
          "it is empty).\n\n"
          "parent, num_tokens: int32 [num_nodes]; page_indptr: int32 [num_nodes + 1]; page_ids: "
          "int32 [n];\n"
          "request_node: int32 [num_requests]. page_size: tokens. Inner nodes hold whole pages.\n\n"
          "Raises WrongDTypeError for anything but int32; InvalidArgumentError for a cycle, a "
          "range "
          "outside\n"
          "page_ids, or pages that do not fit the tokens.")
      .def_static(
          "from_levels", &from_levels, nb::arg("levels"), nb::arg("num_requests"),
          nb::arg("page_size"),
          "Levels of a cascade, each (group, indptr, page_ids, num_tokens): request r has on this\n"
          "level the pages of entry group[r] (-1: none); requests with the same entry share it.\n\n"
          "group: int32 [num_requests]; indptr: int32 [num_entries + 1], where each entry's pages "
          "begin in\n"
          "page_ids: int32 [n]; num_tokens: int32 [num_entries]. page_size: tokens.\n\n"
          "Raises WrongDTypeError for anything but int32; InvalidArgumentError for an entry or a "
          "range that is not\n"
          "there, or pages that do not fit the tokens.",
          nb::sig("def from_levels(levels: collections.abc.Sequence[tuple[object, object, object, "
                  "object]], num_requests: int, page_size: int) -> PrefixForest"))
      .def_static(
          "from_parents", &from_parents, nb::arg("parent"), nb::arg("num_tokens"),
          nb::arg("page_size"),
          "A tree's shape alone: every childless node is a request; pages are numbered in order\n"
          "of first use. A shared node's partial last page moves to its children.\n\n"
          "parent: int32 [num_nodes], -1 for a root; num_tokens: int32 [num_nodes]. page_size: "
          "tokens.\n\n"
          "Raises WrongDTypeError for anything but int32; InvalidArgumentError for a cycle, a "
          "parent "
          "that is not\n"
          "there, or a negative count.")
      .def_prop_ro(
          "num_requests", [](const Forest& self) { return self.forest.num_requests(); },
          "Requests, empty ones included.")
      .def_prop_ro(
          "num_nodes", [](const Forest& self) { return self.forest.nodes().size(); },
          "Runs of tokens that exactly the same requests share.")
      .def_prop_ro(
          "page_size", [](const Forest& self) { return self.forest.page_size(); }, "Tokens a page.")
      .def_prop_ro(
          "unique_tokens", [](const Forest& self) { return self.forest.unique_tokens(); },
          "KV tokens, each counted once.")
      .def_prop_ro(
          "flat_tokens", [](const Forest& self) { return self.forest.flat_tokens(); },
          "KV tokens, counted once for every request that reads them.")
      .def_prop_ro("nodes", &nodes_of, "The nodes, parents first.",
                   nb::sig("def nodes(self) -> list[capillary._types.ForestNode]"))
      .def_prop_ro(
          "leaf_order", [](const Forest& self) { return numpy_copy(self.forest.leaf_order()); },
          nb::rv_policy::automatic,
          "Request index by position in leaf order: int32 [num_requests].",
          nb::sig("def leaf_order(self) -> numpy.typing.NDArray[numpy.int32]"))
      .def_prop_ro(
          "page_ids", [](const Forest& self) { return numpy_copy(self.forest.page_ids()); },
          nb::rv_policy::automatic,
          "The forest's own page ids, int32 [n]: what run() takes as its block table. Empty for a\n"
          "forest made from a block table; then it takes that table.",
          nb::sig("def page_ids(self) -> numpy.typing.NDArray[numpy.int32]"))
      .def_prop_ro(
          "owns_page_ids", [](const Forest& self) { return self.forest.owns_page_ids(); },
          "Whether run() takes `page_ids`, and no block table.")
      .def("__repr__", [](const Forest& self) {
        return "<PrefixForest of " + std::to_string(self.forest.num_requests()) + " requests, " +
               std::to_string(self.forest.nodes().size()) + " nodes, " +
               std::to_string(self.forest.unique_tokens()) + " of " +
               std::to_string(self.forest.flat_tokens()) + " tokens>";
      });
}

}  // namespace capillary::python
