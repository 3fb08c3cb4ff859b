// SPDX-License-Identifier: MIT
// RadixCache. Token ids are int32 arrays in host memory; page ids come back as lists of int.
#include "capillary/radix_cache.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include "array_argument.h"
#include "bindings.h"

namespace capillary::python {

void bind_radix_cache(nb::module_& module) {
  const auto int32s = [](const char* function, const char* name, nb::handle object) {
    return ArrayArgument(function, name, object, Access::kRead);
  };
  nb::class_<RadixCache>(
      module, "RadixCache",
      "A radix-tree KV cache over a pool of pages: hands out page ids, never touches KV bytes.\n\n"
      "Sharing is in whole pages. Tokens and page ids go in as int32 arrays in host memory. Not "
      "for use\n"
      "from several threads at once.")
      .def(nb::init<int64_t, int32_t, int32_t>(), nb::arg("num_pages"), nb::arg("page_size"),
           nb::kw_only(), nb::arg("first_page") = 0,
           "Pages are numbered first_page to first_page + num_pages - 1. page_size: tokens.\n\n"
           "Raises InvalidArgumentError for page ids beyond int32 or a page without tokens.")
      .def(
          "match_prefix",
          [int32s](RadixCache& self, nb::handle tokens) {
            const auto ids = int32s("RadixCache.match_prefix", "tokens", tokens);
            const RadixCache::Match match = self.match_prefix(ids.int32s());
            return nb::make_tuple(match.node, match.page_ids);
          },
          nb::arg("tokens"),
          "(node, page ids) of the longest cached prefix of tokens (int32 [n]), in whole pages. "
          "Freshens it.\n\n"
          "Raises WrongDTypeError or InvalidArgumentError for anything but int32 in host memory.",
          nb::sig("def match_prefix(self, tokens: object) -> tuple[int, list[int]]"))
      .def("allocate_pages", &RadixCache::allocate_pages, nb::arg("count"),
           "Takes `count` free pages, evicting unlocked leaves, least recently used first: their "
           "ids.\n\n"
           "Raises OutOfPagesError, and takes nothing, when there are too few.")
      .def(
          "free_pages",
          [int32s](RadixCache& self, nb::handle page_ids) {
            self.free_pages(int32s("RadixCache.free_pages", "page_ids", page_ids).int32s());
          },
          nb::arg("page_ids"),
          "Gives back pages (int32 [n]) that were allocated and never inserted.\n\n"
          "Raises InvalidArgumentError, and takes none, for a page that is not handed out.",
          nb::sig("def free_pages(self, page_ids: object) -> None"))
      .def(
          "insert",
          [int32s](RadixCache& self, nb::handle tokens, nb::handle page_ids) {
            const auto keys = int32s("RadixCache.insert", "tokens", tokens);
            const auto pages = int32s("RadixCache.insert", "page_ids", page_ids);
            const RadixCache::Inserted result = self.insert(keys.int32s(), pages.int32s());
            return nb::make_tuple(result.node, result.page_ids, result.duplicate_pages);
          },
          nb::arg("tokens"), nb::arg("page_ids"),
          "Hands the whole pages of `tokens` to the tree: (node, the tree's pages, duplicates "
          "freed).\n\n"
          "tokens: int32 [n]; page_ids: int32 [n // page_size], page i with tokens i * page_size "
          "and "
          "after.\n\n"
          "Raises InvalidArgumentError for another number of pages, or pages that are not the "
          "caller's.",
          nb::sig("def insert(self, tokens: object, page_ids: object) -> tuple[int, list[int], "
                  "list[int]]"))
      .def("lock", &RadixCache::lock, nb::arg("node"),
           "A locked node and its ancestors are not evicted. Locks nest.\n\n"
           "Raises InvalidArgumentError for a node that is gone.")
      .def("unlock", &RadixCache::unlock, nb::arg("node"),
           "Takes one lock back. Raises InvalidArgumentError for a node that has none.")
      .def("evict", &RadixCache::evict, nb::arg("num_pages"),
           "Frees that many cached pages, or as many as are not locked: returns how many.")
      .def("check_invariants", &RadixCache::check_invariants,
           "Raises InternalError unless every page is free, cached or handed out, exactly once.")
      .def_prop_ro("page_size", &RadixCache::page_size, "Tokens a page.")
      .def_prop_ro(
          "stats",
          [](const RadixCache& self) {
            const RadixCacheStats s = self.stats();
            nb::dict fields;
            fields["lookups"] = s.lookups;
            fields["tokens_requested"] = s.tokens_requested;
            fields["tokens_hit"] = s.tokens_hit;
            fields["pages_evicted"] = s.pages_evicted;
            fields["evictions"] = s.evictions;
            fields["nodes"] = s.nodes;
            fields["cached_pages"] = s.cached_pages;
            fields["locked_pages"] = s.locked_pages;
            fields["free_pages"] = s.free_pages;
            return fields;
          },
          "Counts: lookups, tokens_requested and tokens_hit of match_prefix; pages_evicted and "
          "evictions (of nodes);\n"
          "nodes, cached_pages (of them locked_pages) and free_pages as they are now.",
          nb::sig("def stats(self) -> dict[str, int]"));
}

}  // namespace capillary::python
