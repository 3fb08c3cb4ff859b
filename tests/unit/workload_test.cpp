// SPDX-License-Identifier: MIT
// Workload files: the rule that turns levels into trees and block tables, and the refusal of malformed files
// with workload and field named.
#include "workload/workload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "capillary/error.h"
#include "capillary/prefix_forest.h"
#include "nlohmann/json.hpp"

namespace capillary {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

json one_workload() {
  return {{"workloads",
           {{{"name", "w1"},
             {"nodes", {1, 2, 8}},
             {"tokens", {64, 32, 7}},
             {"heads", {"32/8", "8/1"}},
             {"page", 16}}}}};
}

template <class Read>
std::string refusal_of(const Read& read) {
  try {
    read();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}
std::string refusal(const json& file) {
  return refusal_of([&] { workloads_from_json(file.dump(), "trees.json"); });
}
std::string shorthand_refusal(const std::string& text) {
  return refusal_of([&] { workload_from_shorthand(text); });
}
std::string batch_refusal(const json& file) {
  return refusal_of([&] { batch_from_json(file.dump(), "batch.json"); });
}

TEST(Workload, ReadsEveryField) {
  json file = one_workload();
  file["rule"] = "words";
  file["workloads"][0]["source"] = "here";
  file["workloads"][0]["note"] = "a note";
  file["workloads"][0]["head_dim"] = 64;
  const std::vector<Workload> workloads = workloads_from_json(file.dump(), "trees.json");
  ASSERT_EQ(workloads.size(), 1u);
  const Workload& workload = workloads[0];
  EXPECT_EQ(workload.name, "w1");
  EXPECT_THAT(workload.nodes, ElementsAre(1, 2, 8));
  EXPECT_THAT(workload.tokens, ElementsAre(64, 32, 7));
  EXPECT_THAT(workload.heads, ElementsAre(Heads{32, 8}, Heads{8, 1}));
  EXPECT_EQ(workload.page_size, 16);
  EXPECT_EQ(workload.head_dim, 64);
  EXPECT_EQ(workload.source, "here");
  EXPECT_EQ(workload.note, "a note");
  EXPECT_EQ(workload.num_requests(), 8);
  EXPECT_EQ(workloads_from_json(one_workload().dump(), "trees.json")[0].head_dim, 128);
}

TEST(Workload, MalformedFilesNameWorkloadAndField) {
  struct Fault {
    const char* key;
    json value;
    const char* says;
  };
  const std::vector<Fault> faults = {
      {"nodes", nullptr, "field 'nodes' is null; must be an array"},
      {"nodes", json::array(), "field 'nodes' is []; must be an array of at least 1"},
      {"nodes", {1, 0, 8}, "field 'nodes[1]' is 0"},
      {"nodes", {1, "2", 8}, "field 'nodes[1]' is \"2\""},
      {"nodes", {1, 2.5, 8}, "field 'nodes[1]' is 2.5"},
      {"nodes", {1, 4, 2}, "field 'nodes[2]' is 2, fewer than the 4 nodes"},
      {"nodes", {1, 2}, "field 'tokens' has 3 levels; must have 2 levels"},
      {"nodes", {1 << 20, 1 << 20, 1 << 20}, "field 'nodes' sum to 3145728 nodes"},
      {"tokens", {64, -1, 7}, "field 'tokens[1]' is -1"},
      {"tokens", {64, 1e3, 7}, "field 'tokens[1]' is 1000.0"},
      {"tokens", {1 << 30, 1, 1}, "field 'tokens' sum to 1073741826 tokens a request"},
      {"tokens", 4096, "field 'tokens' is 4096; must be an array"},
      {"heads", json::array(), "field 'heads' is []"},
      {"heads", {"32/8", "8"}, "field 'heads[1]' is \"8\""},
      {"heads", {"32/5"}, "field 'heads[0]' is \"32/5\""},
      {"heads", {"0/0"}, "field 'heads[0]' is \"0/0\""},
      {"heads", {"-8/-8"}, "field 'heads[0]' is \"-8/-8\""},
      {"heads", {"32/8 "}, "field 'heads[0]' is \"32/8 \""},
      {"heads", {32}, "field 'heads[0]' is 32"},
      {"page", 0, "field 'page' is 0"},
      {"page", "16", "field 'page' is \"16\""},
      {"head_dim", -128, "field 'head_dim' is -128"},
      {"source", 7, "field 'source' is 7; must be a string"},
      {"tokens_per_node", {1}, "field 'tokens_per_node' is not known"},
  };
  for (const Fault& fault : faults) {
    json file = one_workload();
    file["workloads"][0][fault.key] = fault.value;
    EXPECT_THAT(refusal(file),
                AllOf(HasSubstr("trees.json: workload 'w1'"), HasSubstr(fault.says)));
  }
  for (const char* key : {"nodes", "tokens", "heads", "page"}) {
    json file = one_workload();
    file["workloads"][0].erase(key);
    EXPECT_THAT(refusal(file), AllOf(HasSubstr("workload 'w1'"),
                                     HasSubstr("'" + std::string(key) + "' is missing")));
  }
}

TEST(Workload, MalformedWholeFiles) {
  json file = one_workload();
  file["workloads"][0].erase("name");
  EXPECT_THAT(refusal(file), HasSubstr("workloads[0]: field 'name' is missing"));
  file = one_workload();
  file["workloads"][0]["name"] = "";
  EXPECT_THAT(refusal(file), HasSubstr("field 'name' is empty"));
  file = one_workload();
  file["workloads"].push_back(file["workloads"][0]);
  EXPECT_THAT(refusal(file), HasSubstr("'workloads[1].name' is 'w1' a second time"));
  file = one_workload();
  file["workload"] = 1;
  EXPECT_THAT(refusal(file), HasSubstr("'workload' is not known"));
  EXPECT_THAT(refusal(json::object()), HasSubstr("'workloads' is missing"));
  EXPECT_THAT(refusal(json{{"workloads", json::array()}}), HasSubstr("'workloads' is []"));
  EXPECT_THAT(refusal(json{{"workloads", {1}}}),
              HasSubstr("workloads[0] is 1; must be a JSON object"));
  EXPECT_THAT(refusal(json::array()), HasSubstr("trees.json is []; must be a JSON object"));
  const std::string text = one_workload().dump(1);
  EXPECT_THAT(refusal_of([&] { workloads_from_json(text.substr(0, 40), "trees.json"); }),
              AllOf(HasSubstr("is not whole JSON at line"), HasSubstr("after field")));
}

TEST(Workload, ShorthandAndFileAgree) {
  const Workload workload = workload_from_shorthand("1x64,2x32,8x7");
  EXPECT_THAT(workload.nodes, ElementsAre(1, 2, 8));
  EXPECT_THAT(workload.tokens, ElementsAre(64, 32, 7));
  EXPECT_EQ(workload.name, "1x64,2x32,8x7");
  for (const char* text : {"", "4096", "1x", "x4", "1x4096,", ",1x4", "1x4;2x4", "1 x4", "0x4",
                           "1x-4", "2x4,1x4", "99999999999999999999x1", "1x4096,10x416x"}) {
    EXPECT_THAT(shorthand_refusal(text), HasSubstr("tree '" + std::string(text) + "'")) << text;
  }
  EXPECT_THAT(shorthand_refusal("2x4,1x4"), HasSubstr("fewer than the 2 nodes"));
}

TEST(Workload, ParentRule) {
  // 3 nodes under 2: floor(j * 2 / 3) = 0, 0, 1; 7 under 3: floor(j * 3 / 7) = 0 0 0 1 1 2 2.
  const TreeShape shape = tree_shape(workload_from_shorthand("2x8,3x4,7x2"));
  EXPECT_THAT(shape.parent, ElementsAre(-1, -1, 0, 0, 1, 2, 2, 2, 3, 3, 4, 4));
  EXPECT_THAT(shape.num_tokens, ElementsAre(8, 8, 4, 4, 4, 2, 2, 2, 2, 2, 2, 2));
}

// Two requests share a page column exactly when the tree says so, found from the tree alone: the page's last
// token lies in a node that both have above them.
void expect_table_follows_tree(const Workload& workload, int32_t page_size, const Batch& batch) {
  const TreeShape shape = tree_shape(workload);
  const int32_t num_nodes = static_cast<int32_t>(shape.parent.size());
  const int32_t num_requests = workload.num_requests();
  ASSERT_EQ(batch.num_requests(), num_requests);
  int64_t longest = 0;
  std::map<int32_t, std::pair<int64_t, int32_t>> owner_of_page;  // page -> (column, node)
  std::set<std::pair<int64_t, int32_t>> owners;
  for (int32_t request = 0; request < num_requests; ++request) {
    int64_t request_tokens = 0;
    for (int32_t above = num_nodes - num_requests + request; above >= 0;
         above = shape.parent[static_cast<size_t>(above)]) {
      request_tokens += shape.num_tokens[static_cast<size_t>(above)];
    }
    longest = std::max(longest, request_tokens);
    ASSERT_EQ(batch.seq_lens[static_cast<size_t>(request)], request_tokens);
    const int64_t num_pages = (request_tokens + page_size - 1) / page_size;
    for (int64_t column = num_pages; column < batch.num_columns; ++column) {
      ASSERT_EQ(batch.block_table[static_cast<size_t>(request * batch.num_columns + column)],
                Batch::kWildPage);
    }
    for (int64_t column = 0; column < num_pages; ++column) {
      const int64_t last_token = std::min((column + 1) * page_size, request_tokens) - 1;
      // Walk up from the leaf while the token lies before the node.
      int32_t node = num_nodes - num_requests + request;
      int64_t begin = request_tokens - shape.num_tokens[static_cast<size_t>(node)];
      const bool whole = (column + 1) * page_size <= request_tokens;
      while (whole && last_token < begin) {
        node = shape.parent[static_cast<size_t>(node)];
        begin -= shape.num_tokens[static_cast<size_t>(node)];
      }
      const int32_t page =
          batch.block_table[static_cast<size_t>(request * batch.num_columns + column)];
      ASSERT_GE(page, 0);
      ASSERT_LT(page, batch.num_pages);
      const auto [found, is_new] = owner_of_page.try_emplace(page, column, node);
      ASSERT_EQ(found->second, std::make_pair(column, node)) << "page " << page;
      if (is_new) {
        ASSERT_TRUE(owners.emplace(column, node).second) << "two pages for one place";
      }
    }
  }
  EXPECT_EQ(owner_of_page.size(), static_cast<size_t>(batch.num_pages));
  EXPECT_EQ(batch.num_columns, (longest + page_size - 1) / page_size);
}

TEST(Workload, BlockTableFollowsTree) {
  for (const char* text : {"1x4096,10x416", "1x300,128x3", "4x16,16x0,64x5", "1x8,2x256,64x32",
                           "5x0", "1x0,3x7", "2x31,2x1,4x64", "1x7,2x8,3x9,5x10,7x11"}) {
    const Workload workload = workload_from_shorthand(text);
    for (const int32_t page_size : {1, 3, 16, 48, 1024}) {
      SCOPED_TRACE(std::string(text) + " page " + std::to_string(page_size));
      expect_table_follows_tree(workload, page_size, make_batch(workload, page_size));
      expect_table_follows_tree(
          workload, page_size,
          make_batch(workload, page_size, {.seed = 3, .permute_pages = false}));
    }
  }
}

TEST(Workload, RandomTreesFollowTheRule) {
  std::mt19937_64 random(20250101);
  for (int trial = 0; trial < 200; ++trial) {
    Workload workload;
    workload.name = "random";
    const int levels = std::uniform_int_distribution<int>(1, 5)(random);
    int32_t nodes = 1;
    for (int level = 0; level < levels; ++level) {
      nodes = std::uniform_int_distribution<int32_t>(nodes, nodes * 3)(random);
      workload.nodes.push_back(nodes);
      workload.tokens.push_back(std::uniform_int_distribution<int32_t>(0, 60)(random));
    }
    if (trial % 2 == 1) workload.ragged = std::uniform_real_distribution<>(0, 0.99)(random);
    const int32_t page_size = std::uniform_int_distribution<int32_t>(1, 20)(random);
    SCOPED_TRACE(trial);
    expect_table_follows_tree(workload, page_size, make_batch(workload, page_size));
  }
}

TEST(Workload, RaggedLengths) {
  Workload workload = workload_from_shorthand("2x1000,40x500");
  const TreeShape even = tree_shape(workload);
  workload.ragged = 0.25;
  const TreeShape ragged = tree_shape(workload);
  EXPECT_EQ(ragged.parent, even.parent);
  std::set<int32_t> lengths;
  for (size_t node = 0; node < even.parent.size(); ++node) {
    EXPECT_GE(ragged.num_tokens[node], even.num_tokens[node] * 3 / 4);
    EXPECT_LE(ragged.num_tokens[node], even.num_tokens[node] * 5 / 4);
    lengths.insert(ragged.num_tokens[node]);
  }
  EXPECT_GT(lengths.size(), 30u);
  EXPECT_EQ(tree_shape(workload).num_tokens, ragged.num_tokens);
  workload.name = "another";
  EXPECT_NE(tree_shape(workload).num_tokens, ragged.num_tokens);
  // A request keeps its length and its pages when the requests are shuffled.
  const Batch plain = make_batch(workload, 16, {.permute_pages = false});
  const Batch mixed = make_batch(workload, 16, {.permute_pages = false, .permute_requests = true});
  EXPECT_NE(plain.seq_lens, mixed.seq_lens);
  const auto requests_of = [](const Batch& batch) {
    std::multiset<std::pair<int32_t, std::vector<int32_t>>> requests;
    for (size_t r = 0; r < batch.seq_lens.size(); ++r) {
      const auto row = batch.block_table.begin() + static_cast<int64_t>(r) * batch.num_columns;
      requests.emplace(batch.seq_lens[r], std::vector<int32_t>(row, row + batch.num_columns));
    }
    return requests;
  };
  EXPECT_EQ(requests_of(plain), requests_of(mixed));
}

TEST(Workload, WrittenFilesReadBack) {
  Workload first = workload_from_shorthand("1x300,128x3");
  first.name = "one \"quoted\"";
  first.ragged = 0.3;
  first.heads = {{32, 8}, {8, 1}};
  first.head_dim = 64;
  first.note = "a note";
  Workload second = workload_from_shorthand("4x16");
  const std::vector<Workload> written = {first, second};
  const std::vector<Workload> read =
      workloads_from_json(workloads_to_json(written, "a rule"), "file.json");
  ASSERT_EQ(read.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(read[i].name, written[i].name);
    EXPECT_EQ(read[i].nodes, written[i].nodes);
    EXPECT_EQ(read[i].tokens, written[i].tokens);
    EXPECT_EQ(read[i].heads, written[i].heads);
    EXPECT_EQ(read[i].page_size, written[i].page_size);
    EXPECT_EQ(read[i].head_dim, written[i].head_dim);
    EXPECT_EQ(read[i].ragged, written[i].ragged);
    EXPECT_EQ(read[i].note, written[i].note);
  }
  EXPECT_THAT(refusal_of([] {
                workloads_from_json(R"({"workloads": [{"name": "w", "nodes": [1], "tokens": [4],
                  "ragged": 1, "heads": ["8/2"], "page": 16}]})",
                                    "file.json");
              }),
              AllOf(HasSubstr("ragged"), HasSubstr("is 1"), HasSubstr("below 1")));
}

TEST(Workload, PagesAreScatteredAndSeeded) {
  const Workload workload = workload_from_shorthand("1x4096,10x416");
  const Batch a = make_batch(workload, 16, {.seed = 1});
  const Batch b = make_batch(workload, 16, {.seed = 1});
  const Batch c = make_batch(workload, 16, {.seed = 2});
  EXPECT_EQ(a.block_table, b.block_table);
  EXPECT_NE(a.block_table, c.block_table);
  int neighbours = 0;
  for (int64_t column = 1; column < 256; ++column) {
    const size_t at = static_cast<size_t>(column);
    if (a.block_table[at] == a.block_table[at - 1] + 1) ++neighbours;
  }
  EXPECT_LT(neighbours, 10);
}

// The forest cannot tell the order of requests or pages: the same nodes whatever the shuffle.
TEST(Workload, ForestIsThatOfTheTree) {
  for (const char* text : {"1x4096,10x416", "1x300,128x3", "2x64,8x32,9x7", "3x16,3x16,6x0"}) {
    SCOPED_TRACE(text);
    const Workload workload = workload_from_shorthand(text);
    const TreeShape shape = tree_shape(workload);
    const PrefixForest expected = PrefixForest::from_parents(shape.parent, shape.num_tokens, 16);
    for (const bool permute_requests : {false, true}) {
      const Batch batch = make_batch(workload, 16, {.permute_requests = permute_requests});
      const PrefixForest forest = PrefixForest::from_block_table(batch.view(), batch.seq_lens, 16);
      ASSERT_EQ(forest.nodes().size(), expected.nodes().size());
      EXPECT_EQ(forest.unique_tokens(), expected.unique_tokens());
      EXPECT_EQ(forest.flat_tokens(), expected.flat_tokens());
      std::multiset<std::pair<int32_t, int32_t>> got;
      std::multiset<std::pair<int32_t, int32_t>> want;
      for (size_t i = 0; i < forest.nodes().size(); ++i) {
        const ForestNode& g = forest.nodes()[i];
        const ForestNode& w = expected.nodes()[i];
        got.emplace(g.request_end - g.request_begin, g.num_tokens);
        want.emplace(w.request_end - w.request_begin, w.num_tokens);
      }
      EXPECT_EQ(got, want);
    }
  }
}

TEST(Workload, TooLargeForATable) {
  const Workload workload = workload_from_shorthand("1x1000000000,1000x1");
  EXPECT_THAT(refusal_of([&] { make_batch(workload, 1); }),
              AllOf(HasSubstr("1000 x 1000000001 pages"), HasSubstr("use fewer requests")));
  EXPECT_THAT(refusal_of([&] { make_batch(workload, 0); }), HasSubstr("page_size is 0"));
}

json one_batch() {
  return {{"name", "mine"},
          {"page_size", 4},
          {"seq_lens", {6, 0, 9}},
          {"block_table", {{7, 3, -1}, json::array(), {7, 5, 9, -5, 2147483647}}}};
}

TEST(BatchFile, ReadsRaggedRowsAndIgnoresTails) {
  std::string name;
  const Batch batch = batch_from_json(one_batch().dump(), "batch.json", &name);
  constexpr int32_t kWild = Batch::kWildPage;
  EXPECT_EQ(name, "mine");
  EXPECT_EQ(batch.page_size, 4);
  EXPECT_EQ(batch.num_columns, 5);
  EXPECT_EQ(batch.num_pages, 10);
  EXPECT_THAT(batch.seq_lens, ElementsAre(6, 0, 9));
  EXPECT_THAT(batch.block_table, ElementsAre(7, 3, kWild, kWild, kWild, kWild, kWild, kWild, kWild,
                                             kWild, 7, 5, 9, kWild, kWild));
}

TEST(BatchFile, CompactingKeepsSharingAndTails) {
  json file = one_batch();
  file["block_table"] = {{1000000, 3, -1}, json::array(), {1000000, 2147483646, 9, -5}};
  Batch batch = batch_from_json(file.dump(), "batch.json");
  EXPECT_EQ(batch.num_pages, 2147483647);
  compact_pages(&batch);
  constexpr int32_t kWild = Batch::kWildPage;
  EXPECT_EQ(batch.num_pages, 4);
  EXPECT_THAT(batch.block_table,
              ElementsAre(2, 0, kWild, kWild, kWild, kWild, kWild, kWild, 2, 3, 1, kWild));
  // A pool without many holes keeps its ids.
  Batch dense = make_batch(workload_from_shorthand("1x64,4x16"), 16);
  const std::vector<int32_t> before = dense.block_table;
  compact_pages(&dense);
  EXPECT_EQ(dense.block_table, before);
}

TEST(BatchFile, EmptyBatch) {
  const json file = {
      {"page_size", 16}, {"seq_lens", json::array()}, {"block_table", json::array()}};
  const Batch batch = batch_from_json(file.dump(), "batch.json");
  EXPECT_EQ(batch.num_requests(), 0);
  EXPECT_EQ(batch.num_pages, 0);
}

TEST(BatchFile, MalformedFilesNameTheField) {
  const auto with = [](const char* key, json value) {
    json file = one_batch();
    file[key] = std::move(value);
    return file;
  };
  EXPECT_THAT(batch_refusal(with("page_size", 0)), HasSubstr("'page_size' is 0"));
  EXPECT_THAT(batch_refusal(with("seq_lens", {6, -1, 9})), HasSubstr("'seq_lens[1]' is -1"));
  EXPECT_THAT(batch_refusal(with("seq_lens", {6, 0})),
              HasSubstr("'block_table' has 3 rows; must have 2 rows"));
  EXPECT_THAT(batch_refusal(with("seq_lens", {6, 1, 9})),
              HasSubstr("'block_table[1]' has 0 page ids; must have at least 1"));
  EXPECT_THAT(batch_refusal(with("block_table", {{7, -3}, json::array(), {7, 5, 9}})),
              HasSubstr("'block_table[0][1]' is -3"));
  EXPECT_THAT(batch_refusal(with("block_table", {{7, 3}, 4, {7, 5, 9}})),
              HasSubstr("'block_table[1]' is 4"));
  EXPECT_THAT(batch_refusal(with("block_table", {{7, "3"}, json::array(), {7, 5, 9}})),
              HasSubstr("'block_table[0][1]' is \"3\""));
  EXPECT_THAT(batch_refusal(with("lens", 1)), HasSubstr("'lens' is not known"));
  for (const char* key : {"page_size", "seq_lens", "block_table"}) {
    json file = one_batch();
    file.erase(key);
    EXPECT_THAT(batch_refusal(file), HasSubstr("'" + std::string(key) + "' is missing"));
  }
}

}  // namespace
}  // namespace capillary
