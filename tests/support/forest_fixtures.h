// SPDX-License-Identifier: MIT
// The batches that all tests share, F0 to F14 of the case list, as trees of token runs, and the forms that a
// batch is given in: block table, CSR, levels, parent array. Block tables are fenced: unused entries hold wild
// ids (-1, 2^31 - 1, or another request's ids), every row is followed by more of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <ostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "capillary/prefix_forest.h"
#include "support/forest_reference.h"

namespace capillary::testing {

struct Fixture {
  std::string name;
  int32_t page_size = 16;
  std::vector<int32_t> parent;
  std::vector<int32_t> num_tokens;
  // Node at which each request ends. Empty: every childless node is a request.
  std::vector<int32_t> request_node = {};
};

inline void PrintTo(const Fixture& fixture, std::ostream* out) {
  *out << fixture.name;
}

struct Batch {
  int32_t page_size = 1;
  int64_t num_columns = 0;
  int64_t row_stride = 0;
  std::vector<int32_t> table;
  std::vector<int32_t> seq_lens;

  BlockTableView view() const {
    return {table.data(), static_cast<int64_t>(seq_lens.size()), num_columns, row_stride};
  }
};

inline int32_t wild_id(std::mt19937& random) {
  switch (random() % 4) {
    case 0:
      return -1;
    case 1:
      return std::numeric_limits<int32_t>::max();
    case 2:
      return std::numeric_limits<int32_t>::min();
    default:
      return static_cast<int32_t>(random() % 8);
  }
}

inline std::vector<int32_t> ends_of(const Fixture& fixture) {
  if (!fixture.request_node.empty()) return fixture.request_node;
  std::vector<bool> inner(fixture.parent.size(), false);
  for (const int32_t p : fixture.parent) {
    if (p >= 0) inner[static_cast<size_t>(p)] = true;
  }
  std::vector<int32_t> ends;
  for (size_t i = 0; i < inner.size(); ++i) {
    if (!inner[i]) ends.push_back(static_cast<int32_t>(i));
  }
  return ends;
}

// Page j of a request is shared by all whose path leads through the node of the page's last token; a partial
// page is one request's own.
inline Batch make_batch(const Fixture& fixture, uint32_t seed) {
  std::mt19937 random(seed);
  const int64_t p = fixture.page_size;
  const std::vector<int32_t> ends = ends_of(fixture);
  std::map<std::pair<int64_t, int64_t>, int32_t> page_of;  // (node or ~request, j)
  std::vector<std::vector<int32_t*>> rows;
  Batch batch;
  batch.page_size = fixture.page_size;
  for (size_t r = 0; r < ends.size(); ++r) {
    std::vector<int32_t> path;
    for (int32_t node = ends[r]; node >= 0; node = fixture.parent[static_cast<size_t>(node)]) {
      path.insert(path.begin(), node);
    }
    int64_t len = 0;
    std::vector<int32_t*> row;
    for (const int32_t node : path) {
      len += fixture.num_tokens[static_cast<size_t>(node)];
      while (static_cast<int64_t>(row.size() + 1) * p <= len) {
        row.push_back(&page_of[{node, static_cast<int64_t>(row.size())}]);
      }
    }
    if (len % p != 0) {
      row.push_back(&page_of[{~static_cast<int64_t>(r), static_cast<int64_t>(row.size())}]);
    }
    batch.seq_lens.push_back(static_cast<int32_t>(len));
    batch.num_columns = std::max(batch.num_columns, static_cast<int64_t>(row.size()));
    rows.push_back(std::move(row));
  }
  std::vector<int32_t> ids(page_of.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 3);
  std::shuffle(ids.begin(), ids.end(), random);
  size_t next = 0;
  for (auto& [key, id] : page_of) id = ids[next++];
  batch.row_stride = batch.num_columns + 3;
  batch.table.resize(rows.size() * static_cast<size_t>(batch.row_stride));
  for (int32_t& id : batch.table) id = wild_id(random);
  for (size_t r = 0; r < rows.size(); ++r) {
    int32_t* row = batch.table.data() + static_cast<int64_t>(r) * batch.row_stride;
    for (size_t j = 0; j < rows[r].size(); ++j) row[j] = *rows[r][j];
    // Another request's ids beyond the end must not look like sharing.
    const size_t other = random() % rows.size();
    for (size_t j = rows[r].size(); j < rows[other].size(); ++j) {
      if (random() % 2 == 0) row[j] = *rows[other][j];
    }
  }
  return batch;
}

// num_nodes[l] nodes on level l with tokens[l] tokens, child j of n below parent floor(j * parents / n).
inline Fixture level_tree(std::string name, const std::vector<int32_t>& num_nodes,
                          const std::vector<int32_t>& tokens, int32_t page_size = 16) {
  Fixture fixture{std::move(name), page_size, {}, {}};
  int32_t first_parent = 0;
  for (size_t l = 0; l < num_nodes.size(); ++l) {
    const auto first = static_cast<int32_t>(fixture.parent.size());
    for (int64_t j = 0; j < num_nodes[l]; ++j) {
      fixture.parent.push_back(
          l == 0 ? -1 : first_parent + static_cast<int32_t>(j * num_nodes[l - 1] / num_nodes[l]));
      fixture.num_tokens.push_back(tokens[l]);
    }
    first_parent = first;
  }
  return fixture;
}

// `groups` prompts of prompt_tokens(g), each with members[g] suffixes of suffix_tokens(g, m).
template <typename Prompt, typename Suffix>
Fixture grouped(std::string name, const std::vector<int32_t>& members, Prompt prompt_tokens,
                Suffix suffix_tokens, int32_t page_size = 16) {
  Fixture fixture{std::move(name), page_size, {}, {}};
  for (size_t g = 0; g < members.size(); ++g) {
    const auto prompt = static_cast<int32_t>(fixture.parent.size());
    fixture.parent.push_back(-1);
    fixture.num_tokens.push_back(prompt_tokens(static_cast<int32_t>(g)));
    for (int32_t m = 0; m < members[g]; ++m) {
      fixture.parent.push_back(prompt);
      fixture.num_tokens.push_back(suffix_tokens(static_cast<int32_t>(g), m));
    }
  }
  return fixture;
}

inline std::vector<Fixture> all_fixtures() {
  std::vector<Fixture> fixtures;
  std::mt19937 random(15);
  const auto constant = [](int32_t tokens) { return [tokens](auto...) { return tokens; }; };
  const auto up_to = [&random](int32_t least, int32_t most) {
    return [&random, least, most](auto...) {
      return least + static_cast<int32_t>(random() % static_cast<uint32_t>(most - least + 1));
    };
  };

  fixtures.push_back(level_tree("f0_one_request", {1}, {100}));
  for (const int32_t n : {1, 3, 64}) {
    fixtures.push_back(level_tree("f1_flat_" + std::to_string(n), {n}, {77}));
  }
  fixtures.push_back(level_tree("f2_all_share", {1, 12}, {256, 37}));
  fixtures.push_back(
      grouped("f3_groups_and_singletons", {5, 1, 7, 1, 1}, up_to(17, 200), up_to(1, 90)));
  {
    std::vector<int32_t> nodes;
    std::vector<int32_t> tokens;
    for (int32_t depth = 0; depth < 9; ++depth) {
      nodes.push_back(1 << depth);
      tokens.push_back(depth % 3 == 2 ? 16 : 32);
    }
    fixtures.push_back(level_tree("f4_binary_9", nodes, tokens));
    // Depth 16 with one path kept whole: at every level one branch goes on, the other ends.
    Fixture spine{"f4_binary_spine_16", 16, {-1}, {16}};
    for (int32_t depth = 0; depth < 15; ++depth) {
      const int32_t parent = depth == 0 ? 0 : 2 * depth;
      for (int32_t child = 0; child < 2; ++child) {
        spine.parent.push_back(parent);
        spine.num_tokens.push_back(16 * (1 + depth % 3));
      }
    }
    fixtures.push_back(spine);
  }
  {
    Fixture chain{"f5_chain", 16, {}, {}, {}};
    Fixture ragged{"f5_chain_ragged", 16, {}, {}, {}};
    for (int32_t i = 0; i < 12; ++i) {
      chain.parent.push_back(i - 1);
      chain.num_tokens.push_back(48);
      ragged.parent.push_back(i - 1);
      ragged.num_tokens.push_back(37);
    }
    // Ends in no particular order.
    for (const int32_t end : {5, 0, 11, 3, 3, 8, 1, 10, 2}) {
      chain.request_node.push_back(end);
      ragged.request_node.push_back(end);
    }
    fixtures.push_back(chain);
    fixtures.push_back(ragged);
  }
  for (const int32_t prefix : {128, 256, 300, 1024, 4096}) {
    fixtures.push_back(level_tree("f6_beams_" + std::to_string(prefix), {1, 128}, {prefix, 3}));
  }
  for (const int32_t members : {8, 16, 64}) {
    fixtures.push_back(grouped("f7_grpo_8x" + std::to_string(members),
                               std::vector<int32_t>(8, members), up_to(1000, 4000),
                               up_to(0, 2000)));
  }
  fixtures.push_back(level_tree("f8_few_shot", {1, 4, 32}, {2048, 512, 90}));
  {
    Fixture branch{"f9_ends_at_branch", 16, {-1, 0, 0, 0}, {64, 0, 20, 33}, {2, 0, 3, 1}};
    fixtures.push_back(branch);
    branch.name = "f9_ends_at_root_and_inner";
    branch.parent = {-1, 0, 1, 1, 0};
    branch.num_tokens = {32, 32, 5, 16, 48};
    branch.request_node = {3, 1, 4, 0, 2, 1, 0};
    fixtures.push_back(branch);
  }
  for (const int32_t page_size : {1, 3, 16, 48, 64, 128, 256, 480}) {
    fixtures.push_back(
        level_tree("f10_shared_15_page_" + std::to_string(page_size), {1, 6}, {15, 70}, page_size));
    fixtures.push_back(level_tree("f10_shared_1_page_" + std::to_string(page_size), {1, 2, 6},
                                  {1, 479, 481}, page_size));
  }
  fixtures.push_back(grouped("f11_one_long", {1, 1, 1, 1}, constant(0),
                             [](int32_t g, int32_t) { return g == 2 ? 100000 : 16; }));
  for (const int32_t fan_out : {63, 64, 65, 127, 128, 129, 257}) {
    fixtures.push_back(
        level_tree("f12_fan_out_" + std::to_string(fan_out), {1, fan_out}, {64, 24}));
  }
  fixtures.push_back(level_tree("f13_floored_to_nothing", {1, 5}, {15, 16}));
  fixtures.push_back(level_tree("f13_floored_levels", {1, 2, 6}, {7, 8, 40}));
  fixtures.push_back({"f14_no_request", 16, {}, {}, {}});
  fixtures.push_back(level_tree("f14_all_empty", {4}, {0}));
  fixtures.push_back(grouped("f14_some_empty", {3, 2}, constant(0),
                             [](int32_t g, int32_t m) { return (g + m) % 2 == 0 ? 0 : 21; }));
  // Identical rows: whole pages are shared by all, partial ones by nobody.
  fixtures.push_back(level_tree("b64_identical_whole", {1, 64}, {128, 0}));
  fixtures.push_back(level_tree("b64_identical_partial", {1, 64}, {100, 0}));
  return fixtures;
}

// A batch as CSR arrays.
struct CsrBatch {
  std::vector<int32_t> parent;
  std::vector<int32_t> num_tokens;
  std::vector<int32_t> page_indptr = {0};
  std::vector<int32_t> page_ids;
  std::vector<int32_t> request_node;

  PrefixForest build(int32_t page_size) const {
    return PrefixForest::from_csr(parent, num_tokens, page_indptr, page_ids, request_node,
                                  page_size);
  }
};

// From the definition, with nodes cut at random page edges and numbered at random.
inline CsrBatch make_csr(const ReferenceForest& forest, int32_t page_size, std::mt19937& random) {
  struct Piece {
    int32_t parent;
    int32_t num_tokens;
    std::vector<int32_t> pages;
  };
  std::vector<Piece> pieces;
  std::vector<int32_t> last_piece;
  for (size_t i = 0; i < forest.nodes.size(); ++i) {
    const ForestNode& node = forest.nodes[i];
    int32_t above = node.parent < 0 ? -1 : last_piece[static_cast<size_t>(node.parent)];
    int32_t done = 0;
    while (done < node.num_tokens) {
      const auto pages = static_cast<int64_t>(random() % 3 == 0 ? 1 + random() % 4 : 1u << 20);
      const auto tokens =
          static_cast<int32_t>(std::min<int64_t>(pages * page_size, node.num_tokens - done));
      const auto first = forest.node_pages[i].begin() + done / page_size;
      pieces.push_back({above, tokens, {first, first + (tokens + page_size - 1) / page_size}});
      above = static_cast<int32_t>(pieces.size()) - 1;
      done += tokens;
    }
    last_piece.push_back(above);
  }
  std::vector<int32_t> number(pieces.size());
  for (size_t i = 0; i < number.size(); ++i) number[i] = static_cast<int32_t>(i);
  std::shuffle(number.begin(), number.end(), random);
  std::vector<const Piece*> placed(pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i) placed[static_cast<size_t>(number[i])] = &pieces[i];
  const auto renumbered = [&](int32_t i) { return i < 0 ? -1 : number[static_cast<size_t>(i)]; };
  CsrBatch csr;
  for (const Piece* piece : placed) {
    csr.parent.push_back(renumbered(piece->parent));
    csr.num_tokens.push_back(piece->num_tokens);
    csr.page_ids.insert(csr.page_ids.end(), piece->pages.begin(), piece->pages.end());
    csr.page_indptr.push_back(static_cast<int32_t>(csr.page_ids.size()));
  }
  csr.request_node.resize(forest.leaf_order.size());
  for (size_t position = 0; position < forest.leaf_order.size(); ++position) {
    const int32_t node = forest.request_node[position];
    csr.request_node[static_cast<size_t>(forest.leaf_order[position])] =
        node < 0 ? -1 : renumbered(last_piece[static_cast<size_t>(node)]);
  }
  return csr;
}

// A batch as one page list a request: nothing said about sharing, all of it to be found.
inline CsrBatch make_chains(const Batch& batch) {
  CsrBatch csr;
  for (size_t r = 0; r < batch.seq_lens.size(); ++r) {
    const int64_t pages = (int64_t{batch.seq_lens[r]} + batch.page_size - 1) / batch.page_size;
    const int32_t* row = batch.table.data() + static_cast<int64_t>(r) * batch.row_stride;
    csr.request_node.push_back(static_cast<int32_t>(csr.parent.size()));
    csr.parent.push_back(-1);
    csr.num_tokens.push_back(batch.seq_lens[r]);
    csr.page_ids.insert(csr.page_ids.end(), row, row + pages);
    csr.page_indptr.push_back(static_cast<int32_t>(csr.page_ids.size()));
  }
  return csr;
}

// A batch as levels: level l holds the nodes of depth l.
struct LevelBatch {
  struct Arrays {
    std::vector<int32_t> group;
    std::vector<int32_t> indptr = {0};
    std::vector<int32_t> page_ids;
    std::vector<int32_t> num_tokens;
  };
  std::vector<Arrays> levels;
  int32_t num_requests = 0;

  PrefixForest build(int32_t page_size) const {
    std::vector<PrefixForest::Level> views;
    for (const Arrays& level : levels) {
      views.push_back({level.group, level.indptr, level.page_ids, level.num_tokens});
    }
    return PrefixForest::from_levels(views, num_requests, page_size);
  }
};

inline LevelBatch make_levels(const ReferenceForest& forest) {
  LevelBatch batch;
  batch.num_requests = static_cast<int32_t>(forest.leaf_order.size());
  std::vector<size_t> depth;
  for (size_t i = 0; i < forest.nodes.size(); ++i) {
    const ForestNode& node = forest.nodes[i];
    depth.push_back(node.parent < 0 ? 0 : depth[static_cast<size_t>(node.parent)] + 1);
    if (depth[i] == batch.levels.size()) {
      batch.levels.emplace_back();
      batch.levels.back().group.assign(forest.leaf_order.size(), -1);
    }
    LevelBatch::Arrays& level = batch.levels[depth[i]];
    for (int32_t position = node.request_begin; position < node.request_end; ++position) {
      level.group[static_cast<size_t>(forest.leaf_order[static_cast<size_t>(position)])] =
          static_cast<int32_t>(level.num_tokens.size());
    }
    level.num_tokens.push_back(node.num_tokens);
    level.page_ids.insert(level.page_ids.end(), forest.node_pages[i].begin(),
                          forest.node_pages[i].end());
    level.indptr.push_back(static_cast<int32_t>(level.page_ids.size()));
  }
  return batch;
}

}  // namespace capillary::testing
