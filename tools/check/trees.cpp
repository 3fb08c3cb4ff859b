// SPDX-License-Identifier: MIT
#include "check/trees.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "capillary/error.h"
#include "check/rng.h"

namespace capillary::check {
namespace {

// The tokens of one request: which node each comes from, root first.
struct Path {
  std::vector<int32_t> nodes;
  std::vector<int32_t> begins;  // logical position of a node's first token
  int32_t length = 0;
};

Path path_to(const TreeSpec& tree, int32_t node) {
  Path path;
  for (; node >= 0; node = tree.nodes[static_cast<size_t>(node)].parent) path.nodes.push_back(node);
  std::reverse(path.nodes.begin(), path.nodes.end());
  for (const int32_t step : path.nodes) {
    path.begins.push_back(path.length);
    path.length += tree.nodes[static_cast<size_t>(step)].num_tokens;
  }
  return path;
}

}  // namespace

Table make_table(const TreeSpec& tree, int32_t page_size, uint64_t seed) {
  Table table;
  table.page_size = page_size;
  // (node of the page's last token, page number) names a full page; a page that its request does not fill
  // is the request's own.
  std::map<std::pair<int32_t, int32_t>, int32_t> full_pages;
  std::vector<std::vector<uint64_t>> contents;
  for (size_t request = 0; request < tree.request_node.size(); ++request) {
    const Path path = path_to(tree, tree.request_node[request]);
    std::vector<int32_t> row;
    size_t step = 0;
    for (int32_t begin = 0; begin < path.length; begin += page_size) {
      const int32_t end = std::min(begin + page_size, path.length);
      std::vector<uint64_t> keys;
      for (int32_t position = begin; position < end; ++position) {
        while (step + 1 < path.nodes.size() && position >= path.begins[step + 1]) ++step;
        const auto node = static_cast<uint64_t>(path.nodes[step]);
        keys.push_back(mix64((node << 32) + static_cast<uint64_t>(position - path.begins[step])) |
                       1);
      }
      const bool is_full = end - begin == page_size;
      const auto [found, is_new] = full_pages.try_emplace({path.nodes[step], begin / page_size},
                                                          static_cast<int32_t>(contents.size()));
      if (is_full && !is_new) {
        row.push_back(found->second);
        continue;
      }
      if (!is_full && is_new) full_pages.erase(found);
      row.push_back(static_cast<int32_t>(contents.size()));
      keys.resize(static_cast<size_t>(page_size), 0);
      contents.push_back(std::move(keys));
    }
    table.rows.push_back(std::move(row));
    table.seq_lens.push_back(path.length);
    table.request_keys.push_back(mix64(0x71ull + request) | 1);
  }

  // Pages land anywhere in a pool that is larger than needed.
  Rng rng(seed);
  const auto num_used = static_cast<int32_t>(contents.size());
  table.num_pages = num_used + 2 + num_used / 8;
  std::vector<int32_t> places(static_cast<size_t>(table.num_pages));
  for (size_t i = 0; i < places.size(); ++i) places[i] = static_cast<int32_t>(i);
  rng.shuffle(places);
  table.token_keys.assign(static_cast<size_t>(table.num_pages) * static_cast<size_t>(page_size), 0);
  for (size_t page = 0; page < contents.size(); ++page) {
    std::copy(contents[page].begin(), contents[page].end(),
              table.token_keys.begin() + static_cast<int64_t>(places[page]) * page_size);
  }
  for (auto& row : table.rows)
    for (int32_t& page : row) page = places[static_cast<size_t>(page)];
  return table;
}

Table adopt_table(const BlockTableView& view, std::span<const int32_t> seq_lens, int32_t page_size,
                  int32_t num_pages) {
  Table table;
  table.page_size = page_size;
  table.num_pages = num_pages;
  table.seq_lens.assign(seq_lens.begin(), seq_lens.end());
  table.token_keys.assign(static_cast<size_t>(num_pages) * static_cast<size_t>(page_size), 0);
  for (size_t request = 0; request < seq_lens.size(); ++request) {
    const int32_t* row = view.data + static_cast<int64_t>(request) * view.row_stride;
    const int32_t length = seq_lens[request];
    table.rows.emplace_back(row, row + (length + page_size - 1) / page_size);
    table.request_keys.push_back(mix64(0x71ull + request) | 1);
    for (int32_t position = 0; position < length; ++position) {
      const int32_t page = row[position / page_size];
      if (page < 0 || page >= num_pages) {
        throw InvalidArgument(five_parts("adopt_table", "block_table",
                                         "names page " + std::to_string(page),
                                         "name pages below " + std::to_string(num_pages),
                                         "raise num_pages to the size of the pool"));
      }
      const int64_t slot = static_cast<int64_t>(page) * page_size + position % page_size;
      table.token_keys[static_cast<size_t>(slot)] = mix64(static_cast<uint64_t>(slot)) | 1;
    }
  }
  return table;
}

TreeSpec flat_tree(const std::vector<int32_t>& lengths) {
  TreeSpec tree;
  for (const int32_t length : lengths) tree.add_leaf(-1, length);
  return tree;
}

TreeSpec star_tree(int32_t root, const std::vector<int32_t>& leaves) {
  TreeSpec tree;
  const int32_t node = tree.add_node(-1, root);
  for (const int32_t leaf : leaves) tree.add_leaf(node, leaf);
  return tree;
}

TreeSpec level_tree(const std::vector<int32_t>& fan_out, const std::vector<int32_t>& tokens) {
  TreeSpec tree;
  std::vector<int32_t> parents = {-1};
  for (size_t level = 0; level < fan_out.size(); ++level) {
    std::vector<int32_t> nodes;
    for (const int32_t parent : parents) {
      for (int32_t i = 0; i < fan_out[level]; ++i)
        nodes.push_back(tree.add_node(parent, tokens[level]));
    }
    parents = std::move(nodes);
  }
  for (const int32_t node : parents) tree.add_request(node);
  return tree;
}

TreeSpec comb_tree(int32_t depth, int32_t node_tokens, int32_t leaf_tokens) {
  TreeSpec tree;
  int32_t spine = -1;
  for (int32_t level = 0; level < depth; ++level) {
    spine = tree.add_node(spine, node_tokens + level % 3);
    tree.add_leaf(spine, leaf_tokens + level % 5);
  }
  return tree;
}

TreeSpec chain_tree(int32_t num_requests, int32_t step_tokens) {
  TreeSpec tree;
  int32_t node = -1;
  for (int32_t i = 0; i < num_requests; ++i) {
    node = tree.add_node(node, step_tokens);
    tree.add_request(node);
  }
  return tree;
}

TreeSpec random_tree(uint64_t seed, int32_t max_requests, int32_t max_node_tokens) {
  Rng rng(seed);
  TreeSpec tree;
  const int32_t num_requests = rng.range(1, max_requests);
  // Short nodes are as interesting as long ones, so the exponent is what is uniform.
  const auto random_tokens = [&] {
    int32_t limit = 1;
    while (limit < max_node_tokens && rng.chance(0.75)) limit *= 2;
    return rng.range(1, std::min(limit, max_node_tokens));
  };
  for (int32_t i = 0; i < num_requests; ++i) {
    int32_t node = -1;
    if (rng.chance(0.05)) {
      tree.add_request(-1);
      continue;
    }
    // Start below a node that is there already, or at a new root; then grow a short path.
    if (!tree.nodes.empty() && rng.chance(0.8))
      node = rng.range(0, static_cast<int32_t>(tree.nodes.size()) - 1);
    const int32_t new_nodes = node < 0 ? rng.range(1, 3) : rng.range(0, 3);
    for (int32_t j = 0; j < new_nodes; ++j) node = tree.add_node(node, random_tokens());
    tree.add_request(node);
  }
  rng.shuffle(tree.request_node);
  return tree;
}

}  // namespace capillary::check
