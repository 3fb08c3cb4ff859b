// SPDX-License-Identifier: MIT
// Workloads: batches described by their shape. A workload file lists named trees level by level (docs/cli.md);
// a batch file holds a user's own block table and lengths. Both become a Batch, what an engine has in hand:
// block table rows whose page ids lie scattered over a pool, as they do after some hours of serving.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "capillary/prefix_forest.h"

namespace capillary {

struct Heads {
  int32_t num_q_heads = 32;
  int32_t num_kv_heads = 8;
  bool operator==(const Heads&) const = default;
};

// "32/8": two positive counts, the first a multiple of the second; nothing when it is not that.
std::optional<Heads> parse_heads(std::string_view text);
std::string heads_name(const Heads& heads);

// nodes[i] nodes of tokens[i] tokens on level i. Child j of n on a level hangs under parent
// floor(j * parents / n); every node of the last level is one request. With ragged > 0 a node has its level's
// tokens times 1 - ragged to 1 + ragged, by a hash of the workload's name, the level and the node.
struct Workload {
  std::string name;
  std::vector<int32_t> nodes;
  std::vector<int32_t> tokens;
  std::vector<Heads> heads;  // never empty
  int32_t page_size = 16;
  int32_t head_dim = 128;
  double ragged = 0;  // in [0, 1)
  std::string source;
  std::string note;

  int32_t num_requests() const { return nodes.back(); }
};

// Throws InvalidArgument naming source, workload and field.
std::vector<Workload> workloads_from_json(std::string_view text, std::string_view source);

// A workload file that workloads_from_json reads back; rule says in words how to read it.
std::string workloads_to_json(std::span<const Workload> workloads, std::string_view rule);

// "1x4096,10x416": nodes x tokens, level by level.
Workload workload_from_shorthand(std::string_view text);

// Shape alone: node i hangs under parent[i] (-1: a root), parents before children, level by level.
struct TreeShape {
  std::vector<int32_t> parent;
  std::vector<int32_t> num_tokens;
};
TreeShape tree_shape(const Workload& workload);

// Row-major block table; entries past a row's last page are wild on purpose (kWildPage): reading one faults.
struct Batch {
  static constexpr int32_t kWildPage = INT32_MAX;

  std::vector<int32_t> block_table;  // [num_requests, num_columns]
  std::vector<int32_t> seq_lens;
  int64_t num_columns = 0;
  int32_t page_size = 16;
  int32_t num_pages = 0;  // of the pool: every page id is below

  int32_t num_requests() const { return static_cast<int32_t>(seq_lens.size()); }
  BlockTableView view() const {
    return {block_table.data(), num_requests(), num_columns, num_columns};
  }
};

struct BatchShuffle {
  uint64_t seed = 1;
  bool permute_pages = true;      // page ids at random over the pool, else in order of first use
  bool permute_requests = false;  // requests in random order, else in the workload's
};

// A page belongs to the deepest node that holds its last token: a shared node whose end is not a page
// boundary hands its last, partial page to its children, one copy each.
Batch make_batch(const Workload& workload, int32_t page_size, const BatchShuffle& shuffle = {});

// Renumbers the page ids densely, in their order, when the pool would have more holes than pages in use: an
// engine's ids come from a pool much larger than one batch. Sharing and scattering stay as they are.
void compact_pages(Batch* batch);

// {"page_size": 16, "seq_lens": [...], "block_table": [[...], ...]}: rows may have different widths, entries
// past a row's length may be anything; "name" is optional. name, when not null, receives it.
Batch batch_from_json(std::string_view text, std::string_view source, std::string* name = nullptr);

}  // namespace capillary
