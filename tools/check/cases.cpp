// SPDX-License-Identifier: MIT
// What the table covers and why each group is there: fixtures of real traffic, every GQA ratio with every
// head_dim, page sizes and layouts, lengths around tile edges, cluster sizes and modes, values that break
// careless softmax. Sizes are as small as the point of a case allows.
#include "check/cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "capillary/error.h"
#include "check/rng.h"

namespace capillary::check {
namespace {

constexpr std::array kPageSizes = {1,  2,  3,   5,   7,   8,   16,  24,  32,
                                   48, 64, 128, 192, 256, 480, 512, 1024};
constexpr std::array kGroupSizes = {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 32, 64};
constexpr std::array kHeadDims = {64, 80, 96, 112, 128, 192, 256};
constexpr std::array kLayouts = {CacheLayout::kNhd,        CacheLayout::kHnd,
                                 CacheLayout::kPackedPage, CacheLayout::kPackedDim,
                                 CacheLayout::kCrossLayer, CacheLayout::kMixed};
constexpr std::array kClusterSizes = {1, 2, 4, 8, 16};
constexpr std::array kModes = {Mode::kAuto, Mode::kFlat, Mode::kSharedL2};
constexpr std::array kDTypes = {DType::kBFloat16, DType::kFloat16};

ModelShape heads(int32_t num_q_heads, int32_t num_kv_heads, int32_t head_dim,
                 DType dtype = DType::kBFloat16) {
  return {.num_q_heads = num_q_heads,
          .num_kv_heads = num_kv_heads,
          .head_dim = head_dim,
          .dtype = dtype};
}

// A group's common part, from which its cases are varied.
CheckCase case_of(std::string name, TreeSpec tree) {
  CheckCase result;
  result.name = std::move(name);
  result.shape = heads(8, 2, 64);
  result.tree = [tree = std::move(tree)](uint64_t) { return tree; };
  return result;
}

TreeSpec groups_and_singletons() {
  TreeSpec tree;
  for (const int32_t root : {70, 130}) {
    const int32_t node = tree.add_node(-1, root);
    for (int32_t i = 0; i < 3; ++i) tree.add_leaf(node, 9 + 20 * i);
  }
  tree.add_leaf(-1, 33);
  tree.add_leaf(-1, 1);
  tree.add_leaf(-1, 200);
  return tree;
}

TreeSpec rollouts(int32_t num_groups, int32_t group_size, int32_t prompt, int32_t longest_suffix) {
  TreeSpec tree;
  Rng rng(7);
  for (int32_t g = 0; g < num_groups; ++g) {
    const int32_t node = tree.add_node(-1, prompt + 37 * g);
    for (int32_t i = 0; i < group_size; ++i) tree.add_leaf(node, rng.range(0, longest_suffix));
  }
  return tree;
}

// A request that ends where others branch, twice, and two requests with the same tokens throughout.
TreeSpec ends_at_branch() {
  TreeSpec tree;
  const int32_t root = tree.add_node(-1, 64);
  tree.add_request(root);
  const int32_t inner = tree.add_node(root, 32);
  tree.add_request(inner);
  tree.add_request(inner);
  tree.add_leaf(inner, 17);
  tree.add_leaf(inner, 40);
  tree.add_leaf(root, 5);
  return tree;
}

void add_fixtures(std::vector<CheckCase>& table) {
  const auto add = [&](const char* name, TreeSpec tree, auto... changes) {
    table.push_back(case_of(std::string("fixture/") + name, std::move(tree)));
    (changes(table.back()), ...);
  };
  const auto wide_heads = [](CheckCase& c) { c.shape = heads(32, 8, 128); };
  const auto one_kv_head = [](CheckCase& c) { c.shape = heads(8, 1, 128); };
  add("f0-one-request", flat_tree({333}), wide_heads);
  add("f1-flat-1", flat_tree({1}), wide_heads);
  add("f1-flat-3", flat_tree({3, 5, 160}), wide_heads);
  std::vector<int32_t> ragged(64);
  for (size_t i = 0; i < ragged.size(); ++i) ragged[i] = static_cast<int32_t>(1 + i * 37 % 150);
  add("f1-flat-64", flat_tree(ragged));
  add("f2-all-share", star_tree(512, {1, 17, 64, 30, 100, 16, 15, 48}), wide_heads);
  add("f3-two-groups", groups_and_singletons(), wide_heads);
  add("f4-depth-16", comb_tree(16, 17, 11));
  add("f4-binary", level_tree({1, 2, 2, 2, 2, 2}, {20, 33, 16, 7, 40, 12}));
  add("f5-chain", chain_tree(12, 16));
  add("f5-chain-unaligned", chain_tree(9, 21));
  for (const int32_t prefix : {128, 256, 300, 1024}) {
    add(fmt::format("f6-beam-{}", prefix).c_str(), star_tree(prefix, std::vector<int32_t>(128, 3)),
        [](CheckCase& c) { c.shape = heads(4, 1, 64); });
  }
  add("f6-beam-4096", star_tree(4096, std::vector<int32_t>(32, 3)), one_kv_head);
  add("f7-rollouts-8", rollouts(4, 8, 300, 150));
  add("f7-rollouts-64", rollouts(2, 64, 200, 60), [](CheckCase& c) { c.shape = heads(4, 1, 64); });
  add("f8-few-shot", level_tree({1, 4, 8}, {400, 96, 30}),
      [](CheckCase& c) { c.shape = heads(4, 1, 128); });
  add("f9-ends-at-branch", ends_at_branch(), wide_heads);
  for (const int32_t page_size : {1, 16}) {
    add(fmt::format("f10-short-nodes-p{}", page_size).c_str(),
        level_tree({1, 2, 2, 2}, {3, 15, 1, 50}), [=](CheckCase& c) { c.page_size = page_size; });
  }
  TreeSpec skewed = flat_tree({12000});
  for (int32_t i = 0; i < 10; ++i) skewed.add_leaf(-1, 16);
  add("f11-one-long", skewed, [](CheckCase& c) { c.shape = heads(4, 1, 64); });
  for (const int32_t rows : {15, 16, 17, 63, 64, 65, 127, 128, 129, 257}) {
    // Multi-query (group size 1) so that rows are requests one for one, then group size 4 around it.
    add(fmt::format("f12-rows-{}", rows).c_str(),
        star_tree(96, std::vector<int32_t>(static_cast<size_t>(rows), 5)),
        [](CheckCase& c) { c.shape = heads(1, 1, 128); });
    if (rows % 4 == 3) continue;  // rounds up to the same requests as the next
    add(fmt::format("f12-rows-4x{}", (rows + 3) / 4).c_str(),
        star_tree(80, std::vector<int32_t>(static_cast<size_t>((rows + 3) / 4), 20)),
        [](CheckCase& c) { c.shape = heads(4, 1, 128); });
  }
  add("f13-nothing-whole", star_tree(40, {30, 50, 7}), [](CheckCase& c) { c.page_size = 48; });
  add("f14-no-requests", TreeSpec{});
  add("f14-all-empty", flat_tree({0, 0, 0}));
  add("f14-some-empty", flat_tree({0, 100, 0, 7, 0}), wide_heads);
}

void add_shapes(std::vector<CheckCase>& table) {
  const TreeSpec tree = level_tree({1, 3}, {37, 21});
  size_t turn = 0;
  for (const int32_t head_dim : kHeadDims) {
    for (const int32_t group : kGroupSizes) {
      const DType dtype = kDTypes[turn++ % 2];
      CheckCase c = case_of(fmt::format("shape/g{}-d{}", group, head_dim), tree);
      c.shape = heads(group * (group < 16 ? 2 : 1), group < 16 ? 2 : 1, head_dim, dtype);
      c.layout = kLayouts[turn % kLayouts.size()];
      table.push_back(std::move(c));
    }
  }
  // Same ratios with V narrower or wider than K, and dims that only the CPU backend takes.
  for (const auto& [dim, dim_v] :
       {std::pair{192, 128}, {128, 64}, {64, 128}, {96, 80}, {512, 256}, {576, 512}}) {
    CheckCase c = case_of(fmt::format("shape/d{}-v{}", dim, dim_v), tree);
    c.shape = heads(12, 3, dim);
    c.shape.head_dim_v = dim_v;
    c.layout = kLayouts[turn++ % kLayouts.size()];
    table.push_back(std::move(c));
  }
  for (const int32_t dim : {1, 7, 33, 56, 100, 224, 300, 512}) {
    CheckCase c = case_of(fmt::format("shape/odd-d{}", dim), tree);
    c.shape = heads(10, 2, dim, kDTypes[turn % 2]);
    c.layout = kLayouts[turn++ % kLayouts.size()];
    table.push_back(std::move(c));
  }
  // Latent attention's dims: one key and none, and as many rows as a job of such heads holds.
  CheckCase latent = case_of("shape/d576-v512-short", flat_tree({0, 1, 20}));
  latent.shape = heads(64, 1, 576);
  latent.shape.head_dim_v = 512;
  table.push_back(latent);
  latent.name = "shape/d576-v512-tree";
  latent.tree = [](uint64_t) { return level_tree({1, 2, 5}, {130, 48, 21}); };
  table.push_back(std::move(latent));
  CheckCase single = case_of("shape/float32", groups_and_singletons());
  single.shape = heads(12, 2, 72, DType::kFloat32);
  table.push_back(std::move(single));
}

void add_pages(std::vector<CheckCase>& table) {
  size_t turn = 0;
  for (const int32_t page_size : kPageSizes) {
    // Long enough that a page of any size is shared, with ends inside a page.
    const int32_t root = page_size >= 480 ? page_size + 40 : 200;
    const TreeSpec tree = star_tree(root, {0, 1, 15, 16, 70, page_size});
    for (size_t i = 0; i < 3; ++i) {
      const CacheLayout layout = kLayouts[turn++ % kLayouts.size()];
      CheckCase c = case_of(fmt::format("page/p{}-{}", page_size, layout_name(layout)), tree);
      c.page_size = page_size;
      c.layout = layout;
      c.shape = heads(8, 2, turn % 4 == 0 ? 128 : 64, kDTypes[turn % 2]);
      c.from_csr = i == 1;
      table.push_back(std::move(c));
    }
  }
}

// One and three tokens in pages of any size; and a request far shorter than the pieces it is cut into.
void add_short_requests(std::vector<CheckCase>& table) {
  for (const int32_t page_size : kPageSizes) {
    CheckCase c = case_of(fmt::format("short/p{}", page_size), flat_tree({1, 3}));
    c.page_size = page_size;
    c.shape = heads(16, 4, 128, DType::kFloat16);
    table.push_back(std::move(c));
  }
  CheckCase pieces = case_of("short/5-tokens-16-pieces", flat_tree({5}));
  pieces.options.num_pieces = 16;
  table.push_back(std::move(pieces));
}

// Pages of one token, which the kernel loads in a way of its own: wide items and narrow ones after each other in a job (every
// head_dim) and across jobs (rings of each length), tiles and wide steps that end anywhere.
void add_token_pages(std::vector<CheckCase>& table) {
  size_t turn = 0;
  for (const int32_t head_dim : kHeadDims) {
    for (const auto& [name, tree] : {std::pair{"wide", rollouts(3, 12, 333, 90)},
                                     {"deep", level_tree({1, 2, 6}, {130, 67, 21})}}) {
      CheckCase c = case_of(fmt::format("token-pages/d{}-{}", head_dim, name), tree);
      c.page_size = 1;
      c.layout = kLayouts[turn++ % kLayouts.size()];
      c.shape = heads(turn % 4 == 0 ? 32 : 16, 2, head_dim, kDTypes[turn % 2]);
      table.push_back(std::move(c));
    }
  }
  // Streams of very different lengths before wide items of the next job, several jobs a CTA.
  for (const int32_t head_dim : {64, 128, 256}) {
    const TreeSpec tree = rollouts(36, 10, 200, 60);
    CheckCase jobs = case_of(fmt::format("token-pages/d{}-many-jobs", head_dim), tree);
    jobs.page_size = 1;
    jobs.shape = heads(16, 4, head_dim);
    jobs.options = {.cluster_size = 1, .num_pieces = 36};
    table.push_back(std::move(jobs));
  }
}

// Wide items that go several times round the ring and take their steps in pairs, an even and an odd number of them, the last one
// ragged; by whole tiles and by rows.
void add_long_items(std::vector<CheckCase>& table) {
  size_t turn = 0;
  std::vector<int32_t> leaves(24);
  for (size_t i = 0; i < leaves.size(); ++i) leaves[i] = static_cast<int32_t>(1 + i * 13 % 60);
  for (const int32_t head_dim : {64, 96, 128})
    for (const int32_t page_size : {16, 1})
      for (const int32_t prefix : {1152, 1221}) {
        CheckCase c = case_of(fmt::format("long-items/d{}-p{}-{}", head_dim, page_size, prefix),
                              star_tree(prefix, leaves));
        c.page_size = page_size;
        c.layout = kLayouts[turn++ % kLayouts.size()];
        c.shape = heads(16, 4, head_dim, kDTypes[turn % 2]);
        c.options = {.cluster_size = 1, .num_pieces = 1};
        table.push_back(std::move(c));
      }
}

// Ratios that are no power of two, with a prefix, ragged leaves and rows split over jobs: what the LSE's
// layout goes wrong with first.
void add_split_ratios(std::vector<CheckCase>& table) {
  std::vector<int32_t> leaves(32);
  for (size_t i = 0; i < leaves.size(); ++i) leaves[i] = static_cast<int32_t>(1 + i * 11 % 64);
  for (const auto& [q_heads, kv_heads] : {std::pair{28, 4}, {40, 8}}) {
    for (const int32_t pieces : {0, 3, 17}) {
      CheckCase c = case_of(fmt::format("split/{}-{}-pieces{}", q_heads, kv_heads, pieces),
                            star_tree(512, leaves));
      c.shape = heads(q_heads, kv_heads, 64);
      c.options = {.mode = pieces == 17 ? Mode::kSharedL2 : Mode::kAuto, .num_pieces = pieces};
      table.push_back(std::move(c));
    }
  }
}

void add_tile_edges(std::vector<CheckCase>& table) {
  for (const int32_t length : {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 257}) {
    CheckCase flat =
        case_of(fmt::format("edge/flat-{}", length), flat_tree({length, length, length}));
    flat.shape = heads(16, 4, 128);
    table.push_back(std::move(flat));
    // Page size 1 shares to the token, so that the shared node itself ends at the edge.
    CheckCase shared = case_of(fmt::format("edge/shared-{}", length),
                               star_tree(length, {0, 1, 7, length, 16, 90}));
    shared.shape = heads(8, 2, 128, DType::kFloat16);
    shared.page_size = 1;
    table.push_back(std::move(shared));
  }
}

void add_options(std::vector<CheckCase>& table) {
  const std::array<std::pair<const char*, TreeSpec>, 4> trees = {{
      {"long", flat_tree({1500})},
      {"tree", level_tree({1, 3, 4}, {200, 64, 45})},
      {"root-heavy", star_tree(300, std::vector<int32_t>(40, 4))},
      {"mixed", groups_and_singletons()},
  }};
  for (const auto& [name, tree] : trees) {
    for (const int32_t cluster_size : kClusterSizes) {
      for (const Mode mode : kModes) {
        CheckCase c =
            case_of(fmt::format("option/{}-{}-c{}", name, mode_name(mode), cluster_size), tree);
        c.shape = heads(8, 2, 128);
        c.options = {.mode = mode, .cluster_size = cluster_size};
        table.push_back(std::move(c));
      }
    }
    for (const int32_t pieces : {1, 2, 3, 7, 20}) {
      CheckCase c = case_of(fmt::format("option/{}-pieces{}", name, pieces), tree);
      c.shape = heads(8, 2, 64);
      c.options = {.cluster_size = pieces % 2 == 0 ? 2 : 1, .num_pieces = pieces};
      table.push_back(std::move(c));
    }
  }
}

void add_values(std::vector<CheckCase>& table) {
  for (const ValuePattern pattern :
       {ValuePattern::kPeaked, ValuePattern::kFarBelowZero, ValuePattern::kConstantV,
        ValuePattern::kEqualKeys, ValuePattern::kSteep}) {
    for (const DType dtype : kDTypes) {
      for (const Mode mode : kModes) {
        CheckCase c = case_of(fmt::format("value/{}-{}-{}", pattern_name(pattern),
                                          dtype_name(dtype), mode_name(mode)),
                              level_tree({1, 2, 3}, {150, 40, 33}));
        c.shape = heads(8, 2, 128, dtype);
        c.values = pattern;
        c.options.mode = mode;
        table.push_back(std::move(c));
      }
    }
  }
}

// Scores that keep growing, on every path that a row can take through a kernel: 17 to 64 rows and more than 64 a job,
// one step and several, keys that go on from shared ones, wide heads.
void add_steep_values(std::vector<CheckCase>& table) {
  struct Shape {
    int32_t num_q_heads, num_kv_heads, head_dim;
  };
  for (const DType dtype : kDTypes) {
    for (const Shape shape : {Shape{32, 2, 128}, {32, 2, 64}, {8, 8, 128}, {8, 1, 256}}) {
      CheckCase c = case_of(fmt::format("value/steep-{}-{}-{}-{}", shape.num_q_heads,
                                        shape.num_kv_heads, shape.head_dim, dtype_name(dtype)),
                            level_tree({1, 2, 6}, {700, 150, 61}));
      c.shape = heads(shape.num_q_heads, shape.num_kv_heads, shape.head_dim, dtype);
      c.values = ValuePattern::kSteep;
      table.push_back(std::move(c));
    }
  }
}

// The forest's nodes as CSR arrays, with pages from the table.
PrefixForest rebuilt_from_csr(const PrefixForest& forest, const BlockTableView& table) {
  std::vector<int32_t> parent, num_tokens, indptr = {0}, page_ids;
  for (const ForestNode& node : forest.nodes()) {
    parent.push_back(node.parent);
    num_tokens.push_back(node.num_tokens);
    const int32_t count = (node.num_tokens + forest.page_size() - 1) / forest.page_size();
    page_ids.insert(page_ids.end(), table.data + node.page_offset,
                    table.data + node.page_offset + count);
    indptr.push_back(static_cast<int32_t>(page_ids.size()));
  }
  std::vector<int32_t> request_node(static_cast<size_t>(forest.num_requests()));
  for (size_t position = 0; position < request_node.size(); ++position) {
    request_node[static_cast<size_t>(forest.leaf_order()[position])] =
        forest.request_node()[position];
  }
  return PrefixForest::from_csr(parent, num_tokens, indptr, page_ids, request_node,
                                forest.page_size());
}

}  // namespace

const std::vector<CheckCase>& case_table() {
  static const std::vector<CheckCase> table = [] {
    std::vector<CheckCase> cases;
    add_fixtures(cases);
    add_shapes(cases);
    add_pages(cases);
    add_short_requests(cases);
    add_token_pages(cases);
    add_long_items(cases);
    add_tile_edges(cases);
    add_split_ratios(cases);
    add_options(cases);
    add_values(cases);
    add_steep_values(cases);
    return cases;
  }();
  return table;
}

CheckCase random_case(uint64_t seed) {
  Rng rng(seed);
  CheckCase result;
  result.name = "random";
  const int32_t kv_heads = rng.range(1, 3);
  const int32_t head_dim = rng.pick(kHeadDims);
  const int32_t group = rng.pick(kGroupSizes);
  result.shape = heads(kv_heads * group, kv_heads, head_dim, rng.pick(kDTypes));
  result.page_size = rng.pick(kPageSizes);
  result.layout = rng.pick(kLayouts);
  result.values = rng.chance(0.3) ? ValuePattern::kPeaked : ValuePattern::kNormal;
  result.from_csr = rng.chance(0.3);
  result.options.mode = rng.pick(kModes);
  result.options.cluster_size = rng.chance(0.5) ? 0 : rng.pick(kClusterSizes);
  result.options.num_pieces = rng.chance(0.7) ? 0 : rng.range(1, 9);
  // About the same work whatever was drawn.
  const int32_t budget = 2'000'000 / (kv_heads * group * head_dim);
  result.tree = [budget](uint64_t tree_seed) {
    return random_tree(tree_seed, std::min(40, 4 + budget / 16), std::clamp(budget, 32, 700));
  };
  return result;
}

CheckCase find_case(const std::string& name, uint64_t seed) {
  if (name == "random") return random_case(seed);
  for (const CheckCase& check_case : case_table())
    if (check_case.name == name) return check_case;
  throw InvalidArgument(five_parts("check", "case", "is '" + name + "'",
                                   "be a case of the table, or random",
                                   "list the names with --list"));
}

std::string describe(const CheckCase& c) {
  std::string dims = fmt::format("d{}", c.shape.head_dim);
  if (c.shape.v_dim() != c.shape.head_dim) dims += fmt::format("/{}", c.shape.v_dim());
  return fmt::format("{}/{} {} {}, page {}, {}, {}, {}, {}", c.shape.num_q_heads,
                     c.shape.num_kv_heads, dims, dtype_name(c.shape.dtype), c.page_size,
                     layout_name(c.layout), pattern_name(c.values), mode_name(c.options.mode),
                     c.options.cluster_size == 0
                         ? std::string("any cluster size")
                         : fmt::format("cluster size {}", c.options.cluster_size));
}

HostBatch case_batch(const CheckCase& check_case, uint64_t seed) {
  return make_batch({.shape = check_case.shape,
                     .layout = check_case.layout,
                     .values = check_case.values,
                     .table = make_table(check_case.tree(seed), check_case.page_size, seed)});
}

PrefixForest case_forest(const CheckCase& check_case, HostBatch& batch) {
  const BlockTableView table = batch.block_table_view();
  PrefixForest forest = PrefixForest::from_block_table(table, batch.seq_lens, check_case.page_size);
  if (!check_case.from_csr) return forest;
  PrefixForest listed = rebuilt_from_csr(forest, table);
  batch.use_page_list(listed.page_ids());
  return listed;
}

}  // namespace capillary::check
