// SPDX-License-Identifier: MIT
#include "calibrate/synthetic_step.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

#include "capillary/error.h"
#include "shared/plan_layout.h"

namespace capillary::calibrate {

namespace {

// A page is a tile: shared levels first, then each query's own keys.
Batch make_batch_of(const SyntheticShape& shape) {
  const auto num_queries = static_cast<size_t>(shape.num_queries);
  std::vector<std::vector<int32_t>> rows(num_queries);
  int32_t next_page = 0;
  for (const SharedLevel& level : shape.levels) {
    for (int32_t query = 0; query < level.num_queries; ++query)
      for (int32_t tile = 0; tile < level.num_tiles; ++tile)
        rows[static_cast<size_t>(query)].push_back(next_page + tile);
    next_page += level.num_tiles;
  }
  for (auto& row : rows)
    for (int32_t tile = 0; tile < shape.private_tiles; ++tile) row.push_back(next_page++);

  std::vector<int32_t> place(static_cast<size_t>(next_page));
  std::iota(place.begin(), place.end(), 0);
  std::mt19937_64 random(7);
  for (size_t i = place.size(); i > 1; --i) std::swap(place[i - 1], place[random() % i]);

  Batch batch;
  batch.page_size = kTileTokens;
  batch.num_pages = next_page;
  for (const auto& row : rows)
    batch.num_columns = std::max(batch.num_columns, static_cast<int64_t>(row.size()));
  for (const auto& row : rows) {
    for (const int32_t page : row) batch.block_table.push_back(place[static_cast<size_t>(page)]);
    batch.block_table.resize(batch.seq_lens.size() * static_cast<size_t>(batch.num_columns) +
                                 static_cast<size_t>(batch.num_columns),
                             0);
    batch.seq_lens.push_back(static_cast<int32_t>(row.size()) * kTileTokens);
  }
  return batch;
}

}  // namespace

std::vector<QueryGroup> even_groups(int32_t num_queries, int32_t queries_each) {
  std::vector<QueryGroup> groups;
  for (int32_t begin = 0; begin < num_queries; begin += queries_each)
    groups.push_back({begin, std::min(begin + queries_each, num_queries), 1});
  return groups;
}

SyntheticStep make_synthetic_step(const SyntheticShape& shape) {
  if (shape.num_kv_heads < 1 || shape.group_size < 1 || shape.num_queries < 1 ||
      shape.cluster_size < 1 || shape.max_clusters < 1)
    throw InvalidArgument(five_parts("make_synthetic_step", "shape", "has a count below 1",
                                     "have heads, queries and clusters", "correct the shape"));
  SyntheticStep step;
  step.shape.num_kv_heads = shape.num_kv_heads;
  step.shape.num_q_heads = shape.num_kv_heads * shape.group_size;
  step.shape.head_dim = 128;
  step.shape.dtype = DType::kBFloat16;
  step.batch = make_batch_of(shape);
  step.forest =
      PrefixForest::from_block_table(step.batch.view(), step.batch.seq_lens, step.batch.page_size);
  // What the builder weighs ranks and streams by. The shapes that are timed leave it no choice but by rounding: an item
  // that costs as much as a tile makes all sums whole numbers, so equal shares come out equal.
  DeviceProfile even = builtin_h200();
  even.stream_item_us = even.narrow_tile_us;
  const CostModel model(step.shape, even);
  std::vector<QueryGroup> groups = shape.groups;
  if (groups.empty()) groups.push_back({0, shape.num_queries, 1});
  PlanBuilder builder(model);
  const TileTimes tile_times = model.tile_times(model.load_us(1, 1));
  builder.build({&step.forest, Mode::kAuto, shape.cluster_size, shape.max_clusters, groups,
                 tile_times, false});
  std::vector<uint64_t> words;
  builder.assemble(builtin_h200().hash(), 0, &words);
  step.plan = Plan(std::move(words));
  validate_plan(step.plan.data(), step.plan.size_bytes(), step.forest);
  return step;
}

}  // namespace capillary::calibrate
