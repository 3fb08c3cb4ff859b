// SPDX-License-Identifier: MIT
// Workload and batch files, and the block tables made of them (workload.h).
#include "workload/workload.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <random>
#include <set>

#include "capillary/error.h"
#include "fmt/format.h"
#include "profile/json_text.h"

namespace capillary {
namespace {

// Larger than any batch a card can hold; keeps the arithmetic below within its types and a typing error
// from taking all memory.
constexpr int64_t kMaxNodes = 1 << 20;
constexpr int64_t kMaxTokens = 1 << 30;
constexpr int64_t kMaxTableEntries = int64_t{1} << 28;

template <class Int>
bool parse_int(std::string_view text, Int* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

// What the rule asks of levels beyond each number's own range; empty when all is well.
struct LevelFault {
  std::string field;
  std::string came;
  std::string expected;
};
std::optional<LevelFault> check_levels(const std::vector<int32_t>& nodes,
                                       const std::vector<int32_t>& tokens) {
  if (nodes.size() != tokens.size()) {
    return LevelFault{"tokens", fmt::format("has {} levels", tokens.size()),
                      fmt::format("have {} levels, as field 'nodes' has", nodes.size())};
  }
  int64_t path_tokens = 0;
  int64_t num_nodes = 0;
  for (size_t level = 0; level < nodes.size(); ++level) {
    if (level > 0 && nodes[level] < nodes[level - 1]) {
      return LevelFault{fmt::format("nodes[{}]", level),
                        fmt::format("is {}, fewer than the {} nodes of the level above",
                                    nodes[level], nodes[level - 1]),
                        "not decrease from level to level (a node without children would be lost)"};
    }
    path_tokens += tokens[level];
    num_nodes += nodes[level];
  }
  if (path_tokens > kMaxTokens) {
    return LevelFault{"tokens", fmt::format("sum to {} tokens a request", path_tokens),
                      fmt::format("sum to at most {}", kMaxTokens)};
  }
  if (num_nodes > kMaxNodes) {
    return LevelFault{"nodes", fmt::format("sum to {} nodes", num_nodes),
                      fmt::format("sum to at most {}", kMaxNodes)};
  }
  return std::nullopt;
}

std::vector<int32_t> int_list(const JsonFields& fields, const char* key, int64_t smallest,
                              int64_t largest) {
  const nlohmann::json& values = fields.array(key, 1);
  std::vector<int32_t> result;
  result.reserve(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    result.push_back(static_cast<int32_t>(
        fields.integer_of(values[i], fmt::format("{}[{}]", key, i), smallest, largest)));
  }
  return result;
}

Workload workload_of(const nlohmann::json& object, std::string_view source, size_t index) {
  constexpr std::string_view kFunction = "workloads_from_json";
  Workload workload;
  workload.name =
      JsonFields(object, kFunction, source, fmt::format("workloads[{}]", index)).text("name");
  const JsonFields fields(object, kFunction, source, fmt::format("workload '{}'", workload.name));
  if (workload.name.empty()) fields.fail("name", "is empty", "name the workload", "give a name");
  fields.allow_only(
      {"name", "nodes", "tokens", "ragged", "heads", "page", "head_dim", "source", "note"});
  workload.nodes = int_list(fields, "nodes", 1, kMaxNodes);
  workload.tokens = int_list(fields, "tokens", 0, kMaxTokens);
  if (const auto fault = check_levels(workload.nodes, workload.tokens)) {
    fields.fail(fault->field, fault->came, fault->expected, "correct the levels");
  }
  const nlohmann::json& heads = fields.array("heads", 1);
  for (size_t i = 0; i < heads.size(); ++i) {
    const auto parsed =
        heads[i].is_string() ? parse_heads(heads[i].get<std::string>()) : std::nullopt;
    if (!parsed) {
      fields.fail(fmt::format("heads[{}]", i), fmt::format("is {}", json_excerpt(heads[i])),
                  "be \"Q/KV\", two positive counts, Q a multiple of KV",
                  "write for example \"32/8\"");
    }
    workload.heads.push_back(*parsed);
  }
  workload.page_size = static_cast<int32_t>(fields.integer("page", 1, 1 << 20));
  if (fields.has("head_dim")) {
    workload.head_dim = static_cast<int32_t>(fields.integer("head_dim", 1, 1 << 16));
  }
  if (fields.has("ragged")) {
    const nlohmann::json& ragged = object.at("ragged");
    workload.ragged = ragged.is_number() ? ragged.get<double>() : -1;
    if (!(workload.ragged >= 0) || workload.ragged >= 1) {
      fields.fail("ragged", fmt::format("is {}", json_excerpt(ragged)),
                  "be a number of at least 0 and below 1",
                  "give the part by which lengths may differ from their level's, as 0.25");
    }
  }
  if (fields.has("source")) workload.source = fields.text("source");
  if (fields.has("note")) workload.note = fields.text("note");
  return workload;
}

// Uniform in [0, 1), the same on every platform.
double hash_unit(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return static_cast<double>((value ^ (value >> 31)) >> 11) * 0x1p-53;
}

uint64_t name_hash(std::string_view name) {
  uint64_t hash = 1469598103934665603ull;
  for (const char byte : name) hash = (hash ^ static_cast<unsigned char>(byte)) * 1099511628211ull;
  return hash;
}

int64_t parent_of(const Workload& workload, size_t level, int64_t node) {
  return node * workload.nodes[level - 1] / workload.nodes[level];
}

}  // namespace

std::optional<Heads> parse_heads(std::string_view text) {
  Heads heads;
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos || !parse_int(text.substr(0, slash), &heads.num_q_heads) ||
      !parse_int(text.substr(slash + 1), &heads.num_kv_heads) || heads.num_q_heads < 1 ||
      heads.num_kv_heads < 1 || heads.num_q_heads % heads.num_kv_heads != 0) {
    return std::nullopt;
  }
  return heads;
}

std::string heads_name(const Heads& heads) {
  return fmt::format("{}/{}", heads.num_q_heads, heads.num_kv_heads);
}

std::vector<Workload> workloads_from_json(std::string_view text, std::string_view source) {
  const nlohmann::json object = parse_json_strictly("workloads_from_json", source, text);
  const JsonFields fields(object, "workloads_from_json", source, "");
  fields.allow_only({"rule", "workloads"});
  const nlohmann::json& list = fields.array("workloads", 1);
  std::vector<Workload> workloads;
  std::set<std::string> names;
  for (size_t i = 0; i < list.size(); ++i) {
    workloads.push_back(workload_of(list[i], source, i));
    if (!names.insert(workloads.back().name).second) {
      fields.fail(fmt::format("workloads[{}].name", i),
                  fmt::format("is '{}' a second time", workloads.back().name),
                  "be another name for every workload", "rename one of the two");
    }
  }
  return workloads;
}

Workload workload_from_shorthand(std::string_view text) {
  const auto fail = [&](const std::string& came, const std::string& expected) {
    throw InvalidArgument(five_parts("workload_from_shorthand", fmt::format("tree '{}'", text),
                                     came, expected, "write for example 1x4096,10x416"));
  };
  Workload workload;
  workload.name = std::string(text);
  workload.heads = {Heads{}};
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view level = text.substr(begin, end - begin);
    const size_t cross = level.find('x');
    int64_t nodes = 0;
    int64_t tokens = 0;
    if (cross == std::string_view::npos || !parse_int(level.substr(0, cross), &nodes) ||
        !parse_int(level.substr(cross + 1), &tokens)) {
      fail(fmt::format("has level '{}'", level), "be NODESxTOKENS levels with commas between them");
    }
    if (nodes < 1 || nodes > kMaxNodes || tokens < 0 || tokens > kMaxTokens) {
      fail(fmt::format("has level '{}'", level),
           fmt::format("have 1 to {} nodes of 0 to {} tokens a level", kMaxNodes, kMaxTokens));
    }
    workload.nodes.push_back(static_cast<int32_t>(nodes));
    workload.tokens.push_back(static_cast<int32_t>(tokens));
    begin = end + 1;
  }
  if (const auto fault = check_levels(workload.nodes, workload.tokens)) {
    fail(fmt::format("in {} {}", fault->field, fault->came), fault->expected);
  }
  return workload;
}

std::string workloads_to_json(std::span<const Workload> workloads, std::string_view rule) {
  // A line a workload: such files are read and compared by people.
  std::string text =
      fmt::format("{{\n \"rule\": {},\n \"workloads\": [", nlohmann::json(rule).dump());
  for (const Workload& workload : workloads) {
    nlohmann::ordered_json object = {
        {"name", workload.name}, {"nodes", workload.nodes}, {"tokens", workload.tokens}};
    if (workload.ragged > 0) object["ragged"] = workload.ragged;
    object["heads"] = nlohmann::json::array();
    for (const Heads& heads : workload.heads) object["heads"].push_back(heads_name(heads));
    object["page"] = workload.page_size;
    if (workload.head_dim != 128) object["head_dim"] = workload.head_dim;
    if (!workload.source.empty()) object["source"] = workload.source;
    if (!workload.note.empty()) object["note"] = workload.note;
    text += (&workload == workloads.data() ? "\n  " : ",\n  ") + object.dump();
  }
  return text + "\n ]\n}\n";
}

TreeShape tree_shape(const Workload& workload) {
  TreeShape shape;
  const uint64_t hash = name_hash(workload.name);
  int32_t above_begin = 0;
  for (size_t level = 0; level < workload.nodes.size(); ++level) {
    const auto level_begin = static_cast<int32_t>(shape.parent.size());
    for (int64_t node = 0; node < workload.nodes[level]; ++node) {
      shape.parent.push_back(
          level == 0 ? -1 : above_begin + static_cast<int32_t>(parent_of(workload, level, node)));
      int32_t tokens = workload.tokens[level];
      if (workload.ragged > 0) {
        const uint64_t place = (static_cast<uint64_t>(level) << 32) + static_cast<uint64_t>(node);
        const double unit = hash_unit(hash + place * 0x9e3779b97f4a7c15ull);
        tokens = static_cast<int32_t>(std::lround(tokens * (1 + workload.ragged * (2 * unit - 1))));
      }
      shape.num_tokens.push_back(tokens);
    }
    above_begin = level_begin;
  }
  return shape;
}

Batch make_batch(const Workload& workload, int32_t page_size, const BatchShuffle& shuffle) {
  if (page_size < 1) {
    throw InvalidArgument(five_parts("make_batch", "page_size", fmt::format("is {}", page_size),
                                     "be at least 1", "give the page size of the cache"));
  }
  const TreeShape shape = tree_shape(workload);
  const size_t num_nodes = shape.parent.size();
  const auto num_requests = static_cast<size_t>(workload.num_requests());
  // First logical token past each node; a request ends with its node, one of the last.
  std::vector<int64_t> token_end(num_nodes);
  for (size_t node = 0; node < num_nodes; ++node) {
    const int32_t parent = shape.parent[node];
    token_end[node] =
        shape.num_tokens[node] + (parent < 0 ? 0 : token_end[static_cast<size_t>(parent)]);
  }
  Batch batch;
  batch.page_size = page_size;
  const size_t first_leaf = num_nodes - num_requests;
  for (size_t leaf = first_leaf; leaf < num_nodes; ++leaf) {
    batch.seq_lens.push_back(static_cast<int32_t>(token_end[leaf]));
    batch.num_columns = std::max(batch.num_columns, (token_end[leaf] + page_size - 1) / page_size);
  }
  if (batch.num_columns * workload.num_requests() > kMaxTableEntries) {
    throw InvalidArgument(five_parts(
        "make_batch", fmt::format("workload '{}'", workload.name),
        fmt::format("needs a block table of {} x {} pages", num_requests, batch.num_columns),
        fmt::format("fit {} entries", kMaxTableEntries), "use fewer requests or larger pages"));
  }
  batch.block_table.assign(static_cast<size_t>(batch.num_columns) * num_requests, Batch::kWildPage);

  // Page ids in order of first use, node by node: a node owns the columns whose last token it holds, a leaf also
  // the one in which its request ends.
  std::vector<int64_t> column_begin(num_nodes);
  std::vector<int64_t> column_end(num_nodes);
  std::vector<int64_t> first_page(num_nodes);
  int64_t next_page = 0;
  for (size_t node = 0; node < num_nodes; ++node) {
    const int64_t begin = token_end[node] - shape.num_tokens[node];
    column_begin[node] = begin / page_size;
    column_end[node] = (token_end[node] + (node < first_leaf ? 0 : page_size - 1)) / page_size;
    first_page[node] = next_page;
    next_page += column_end[node] - column_begin[node];
  }
  for (size_t request = 0; request < num_requests; ++request) {
    int32_t* row = batch.block_table.data() + static_cast<int64_t>(request) * batch.num_columns;
    for (auto node = static_cast<int32_t>(first_leaf + request); node >= 0;
         node = shape.parent[static_cast<size_t>(node)]) {
      const auto n = static_cast<size_t>(node);
      for (int64_t column = column_begin[n]; column < column_end[n]; ++column) {
        row[column] = static_cast<int32_t>(first_page[n] + column - column_begin[n]);
      }
    }
  }
  batch.num_pages = static_cast<int32_t>(next_page);

  std::mt19937_64 random(shuffle.seed);
  if (shuffle.permute_pages) {
    std::vector<int32_t> page_of(static_cast<size_t>(next_page));
    std::iota(page_of.begin(), page_of.end(), 0);
    std::shuffle(page_of.begin(), page_of.end(), random);
    for (int32_t& page : batch.block_table) {
      if (page != Batch::kWildPage) page = page_of[static_cast<size_t>(page)];
    }
  }
  if (shuffle.permute_requests) {
    std::vector<int32_t> order(num_requests);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    std::vector<int32_t> table(batch.block_table.size());
    std::vector<int32_t> seq_lens(num_requests);
    for (size_t request = 0; request < num_requests; ++request) {
      const auto from = batch.block_table.begin() + int64_t{order[request]} * batch.num_columns;
      std::copy(from, from + batch.num_columns,
                table.begin() + static_cast<int64_t>(request) * batch.num_columns);
      seq_lens[request] = batch.seq_lens[static_cast<size_t>(order[request])];
    }
    batch.block_table = std::move(table);
    batch.seq_lens = std::move(seq_lens);
  }
  return batch;
}

void compact_pages(Batch* batch) {
  std::vector<int32_t> used;
  const auto for_each_page = [&](const auto& visit) {
    for (size_t r = 0; r < batch->seq_lens.size(); ++r) {
      const int64_t count = (int64_t{batch->seq_lens[r]} + batch->page_size - 1) / batch->page_size;
      int32_t* row = batch->block_table.data() + static_cast<int64_t>(r) * batch->num_columns;
      for (int64_t c = 0; c < count; ++c) visit(row[c]);
    }
  };
  for_each_page([&](int32_t page) { used.push_back(page); });
  std::sort(used.begin(), used.end());
  used.erase(std::unique(used.begin(), used.end()), used.end());
  if (int64_t{batch->num_pages} <= 2 * static_cast<int64_t>(used.size())) return;
  for_each_page([&](int32_t& page) {
    page = static_cast<int32_t>(std::lower_bound(used.begin(), used.end(), page) - used.begin());
  });
  batch->num_pages = static_cast<int32_t>(used.size());
}

Batch batch_from_json(std::string_view text, std::string_view source, std::string* name) {
  constexpr std::string_view kFunction = "batch_from_json";
  const nlohmann::json object = parse_json_strictly(kFunction, source, text);
  const JsonFields fields(object, kFunction, source, "");
  fields.allow_only({"name", "page_size", "seq_lens", "block_table"});
  if (fields.has("name") && name != nullptr) *name = fields.text("name");
  Batch batch;
  batch.page_size = static_cast<int32_t>(fields.integer("page_size", 1, 1 << 20));
  const nlohmann::json& lens = fields.array("seq_lens", 0);
  for (size_t i = 0; i < lens.size(); ++i) {
    batch.seq_lens.push_back(static_cast<int32_t>(
        fields.integer_of(lens[i], fmt::format("seq_lens[{}]", i), 0, kMaxTokens)));
  }
  const nlohmann::json& rows = fields.array("block_table", 0);
  if (rows.size() != batch.seq_lens.size()) {
    fields.fail(
        "block_table", fmt::format("has {} rows", rows.size()),
        fmt::format("have {} rows, one for every entry of 'seq_lens'", batch.seq_lens.size()),
        "correct one of the two");
  }
  for (size_t r = 0; r < rows.size(); ++r) {
    if (!rows[r].is_array()) {
      fields.fail(fmt::format("block_table[{}]", r), fmt::format("is {}", json_excerpt(rows[r])),
                  "be an array of page ids", "correct it");
    }
    const int64_t needed = (int64_t{batch.seq_lens[r]} + batch.page_size - 1) / batch.page_size;
    if (static_cast<int64_t>(rows[r].size()) < needed) {
      fields.fail(fmt::format("block_table[{}]", r), fmt::format("has {} page ids", rows[r].size()),
                  fmt::format("have at least {}, for {} tokens in pages of {}", needed,
                              batch.seq_lens[r], batch.page_size),
                  "add the missing page ids or correct 'seq_lens'");
    }
    batch.num_columns = std::max(batch.num_columns, static_cast<int64_t>(rows[r].size()));
  }
  if (batch.num_columns * batch.num_requests() > kMaxTableEntries) {
    fields.fail("block_table", fmt::format("is {} x {}", rows.size(), batch.num_columns),
                fmt::format("fit {} entries", kMaxTableEntries), "give fewer or shorter rows");
  }
  batch.block_table.assign(static_cast<size_t>(batch.num_columns) * rows.size(), Batch::kWildPage);
  int32_t largest_page = -1;
  for (size_t r = 0; r < rows.size(); ++r) {
    const int64_t needed = (int64_t{batch.seq_lens[r]} + batch.page_size - 1) / batch.page_size;
    for (int64_t c = 0; c < needed; ++c) {
      // Ids past the length are whatever the engine left there; they are not even looked at.
      const int64_t page =
          fields.integer_of(rows[r][static_cast<size_t>(c)],
                            fmt::format("block_table[{}][{}]", r, c), 0, INT32_MAX - 1);
      batch.block_table[r * static_cast<size_t>(batch.num_columns) + static_cast<size_t>(c)] =
          static_cast<int32_t>(page);
      largest_page = std::max(largest_page, static_cast<int32_t>(page));
    }
  }
  batch.num_pages = largest_page + 1;
  return batch;
}

}  // namespace capillary
