// SPDX-License-Identifier: MIT
// Workload and batch files, and the block tables made of them (workload.h).
#include "workload/workload.h"

#include <algorithm>
#include <charconv>
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
  fields.allow_only({"name", "nodes", "tokens", "heads", "page", "head_dim", "source", "note"});
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
  if (fields.has("source")) workload.source = fields.text("source");
  if (fields.has("note")) workload.note = fields.text("note");
  return workload;
}

// First logical token of each level, and the length of a request at the end.
std::vector<int64_t> level_token_begin(const std::vector<int32_t>& tokens) {
  std::vector<int64_t> begin = {0};
  for (const int32_t count : tokens) begin.push_back(begin.back() + count);
  return begin;
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

TreeShape tree_shape(const Workload& workload) {
  TreeShape shape;
  int32_t above_begin = 0;
  for (size_t level = 0; level < workload.nodes.size(); ++level) {
    const int32_t level_begin = static_cast<int32_t>(shape.parent.size());
    const int64_t count = workload.nodes[level];
    for (int64_t node = 0; node < count; ++node) {
      const int32_t parent =
          level == 0 ? -1
                     : above_begin + static_cast<int32_t>(node * workload.nodes[level - 1] / count);
      shape.parent.push_back(parent);
      shape.num_tokens.push_back(workload.tokens[level]);
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
  const std::vector<int64_t> token_begin = level_token_begin(workload.tokens);
  const int32_t num_requests = workload.num_requests();
  Batch batch;
  batch.page_size = page_size;
  batch.num_columns = (token_begin.back() + page_size - 1) / page_size;
  if (batch.num_columns * num_requests > kMaxTableEntries) {
    throw InvalidArgument(five_parts(
        "make_batch", fmt::format("workload '{}'", workload.name),
        fmt::format("needs a block table of {} x {} pages", num_requests, batch.num_columns),
        fmt::format("fit {} entries", kMaxTableEntries), "use fewer requests or larger pages"));
  }
  batch.seq_lens.assign(static_cast<size_t>(num_requests),
                        static_cast<int32_t>(token_begin.back()));
  batch.block_table.resize(static_cast<size_t>(batch.num_columns * num_requests));

  // Level by level, in order of first use: node n of the level owns the columns whose last token (or, at
  // the end of the request, whose only tokens) its level holds.
  const size_t last_level = workload.nodes.size() - 1;
  int64_t next_page = 0;
  int64_t column = 0;
  for (size_t level = 0; level <= last_level; ++level) {
    const int64_t column_end =
        level == last_level ? batch.num_columns : token_begin[level + 1] / page_size;
    const int64_t width = column_end - column;
    for (int64_t request = 0; request < num_requests; ++request) {
      // The request's ancestor on this level: the parent rule, applied upwards from the last level.
      int64_t node = request;
      for (size_t below = last_level; below > level; --below) {
        node = node * workload.nodes[below - 1] / workload.nodes[below];
      }
      int32_t* row = batch.block_table.data() + request * batch.num_columns;
      for (int64_t i = 0; i < width; ++i) {
        row[column + i] = static_cast<int32_t>(next_page + node * width + i);
      }
    }
    next_page += width * workload.nodes[level];
    column = column_end;
  }
  batch.num_pages = static_cast<int32_t>(next_page);

  std::mt19937_64 random(shuffle.seed);
  if (shuffle.permute_pages) {
    std::vector<int32_t> page_of(static_cast<size_t>(next_page));
    std::iota(page_of.begin(), page_of.end(), 0);
    std::shuffle(page_of.begin(), page_of.end(), random);
    for (int32_t& page : batch.block_table) page = page_of[static_cast<size_t>(page)];
  }
  if (shuffle.permute_requests) {
    std::vector<int32_t> order(static_cast<size_t>(num_requests));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    std::vector<int32_t> table(batch.block_table.size());
    for (int64_t request = 0; request < num_requests; ++request) {
      const auto from =
          batch.block_table.begin() + order[static_cast<size_t>(request)] * batch.num_columns;
      std::copy(from, from + batch.num_columns, table.begin() + request * batch.num_columns);
    }
    batch.block_table = std::move(table);
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
