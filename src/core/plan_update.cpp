// SPDX-License-Identifier: MIT
#include "core/plan_update.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>

#include "core/hash.h"

namespace capillary {

namespace {

// A stream may grow by this share of what it was planned with, and by two tiles in any case: it is one of eight
// that end together, and only its last request's keys are cut elsewhere. The same for all keys together, which may
// shrink by as much: the longest stream may be what it was, so that is what the step then takes too long.
constexpr int32_t kMostGrowth = 8;  // one in so many
constexpr int32_t kLeastGrowth = 2;

int32_t tiles_of(int32_t tokens) {
  return (tokens + kTileTokens - 1) / kTileTokens;
}
int32_t wide_steps(int32_t tiles) {
  return (tiles + kWideTiles - 1) / kWideTiles * kWideTiles;
}

// The same place in the same tree: everything but the number of tokens.
bool same_place(const ForestNode& a, const ForestNode& b) {
  return ((a.parent ^ b.parent) | (a.token_begin ^ b.token_begin) |
          (a.request_begin ^ b.request_begin) | (a.request_end ^ b.request_end)) == 0 &&
         a.page_offset == b.page_offset;
}

template <class T>
T* at(std::vector<uint64_t>* words, uint32_t offset) {
  return reinterpret_cast<T*>(reinterpret_cast<unsigned char*>(words->data()) + offset);
}

}  // namespace

void PlanUpdater::planned(const PrefixForest& forest) {
  nodes_.assign(forest.nodes().begin(), forest.nodes().end());
  planned_tokens_ = forest.unique_tokens();
  added_tiles_ = 0;
  has_plan_ = true;
  has_tails_ = false;
}

void PlanUpdater::find_tail(const PlanView& plan, const Job& job, uint32_t index, int32_t stream) {
  const PlanHeader& header = plan.header();
  const int32_t group_size = header.num_q_heads / header.num_kv_heads;
  const WorkItem& item = plan.items()[index];
  if (item.num_rows != group_size || item.num_segments == 0) return;
  const auto query = static_cast<size_t>(job.query_begin + item.row_begin / group_size);
  const uint32_t last = item.segment_begin + item.num_segments - 1;
  const Segment& segment = plan.segments()[last];
  if (segment.logical_begin + segment.num_tokens == end_[query])
    tails_[query] = {last, index, stream};
}

void PlanUpdater::find_tails(const PlanView& plan) {
  const PlanHeader& header = plan.header();
  tails_.assign(static_cast<size_t>(header.num_queries), {0, 0, -1});
  end_.assign(static_cast<size_t>(header.num_queries), -1);
  for (const ForestNode& node : nodes_)
    if (node.request_end - node.request_begin == 1)
      end_[static_cast<size_t>(node.request_begin)] = node.token_begin + node.num_tokens;
  streams_.clear();
  changes_.reserve(nodes_.size());  // so that no step after this one allocates
  const auto num_works = header.num_jobs * static_cast<uint32_t>(header.cluster_size);
  for (uint32_t w = 0; w < num_works; ++w) {
    const RankWork& work = plan.rank_works()[w];
    const Job& job = plan.jobs()[w / static_cast<uint32_t>(header.cluster_size)];
    for (uint32_t p = work.phase_begin; p < work.phase_begin + work.num_phases; ++p) {
      const Phase& phase = plan.phases()[p];
      const bool wide = phase.kind == PhaseKind::kWide;
      uint32_t item = phase.item_begin;
      for (uint32_t s = 0; s < (wide ? 1u : static_cast<uint32_t>(kMaxStreams)); ++s) {
        const uint32_t num_items = wide ? phase.num_items : phase.stream_items[s];
        if (num_items == 0) continue;
        const auto tiles = static_cast<int32_t>(phase.stream_tiles[s]);
        const int32_t least = wide ? kWideTiles : kLeastGrowth;
        streams_.push_back({p, s, wide, tiles, tiles + std::max(least, tiles / kMostGrowth)});
        for (uint32_t end = item + num_items; item < end; ++item)
          find_tail(plan, job, item, static_cast<int32_t>(streams_.size()) - 1);
      }
    }
  }
  has_tails_ = true;
}

bool PlanUpdater::collect_changes(const PrefixForest& forest, const PlanView& plan) {
  const PlanHeader& header = plan.header();
  const auto nodes = forest.nodes();
  const auto order = forest.leaf_order();
  if (nodes.size() != nodes_.size() || forest.page_size() != header.page_size ||
      forest.num_requests() != header.num_queries ||
      (!order.empty() && std::memcmp(order.data(), plan.query_order(), order.size_bytes()) != 0))
    return false;
  const int64_t grown = forest.unique_tokens() - planned_tokens_;
  if (std::abs(grown) > planned_tokens_ / kMostGrowth) return false;
  if (!has_tails_) find_tails(plan);
  const int64_t page_size = header.page_size;
  const bool is_power = (page_size & (page_size - 1)) == 0;
  const int bits = std::countr_zero(static_cast<uint64_t>(page_size));
  changes_.clear();
  num_page_ids_ = 0;
  for (uint32_t i = 0; i < nodes.size(); ++i) {
    const ForestNode& node = nodes[i];
    if (!same_place(node, nodes_[i])) return false;
    const int64_t last = node.num_tokens - 1;
    num_page_ids_ = std::max(num_page_ids_,
                             node.page_offset + (is_power ? last >> bits : last / page_size) + 1);
    const int32_t tokens = node.num_tokens - nodes_[i].num_tokens;
    if (tokens == 0) continue;
    const Tail& tail = tails_[static_cast<size_t>(node.request_begin)];
    if (node.request_end - node.request_begin != 1 || tail.stream < 0) return false;
    const int32_t before = plan.segments()[tail.segment].num_tokens;
    if (before + tokens < 1) return false;  // the keys end in another run now
    Change change{i, tail.segment, tail.item, tail.stream, tokens, 0, 0};
    change.item_tiles = change.stream_tiles = tiles_of(before + tokens) - tiles_of(before);
    if (change.item_tiles != 0) {
      Stream& stream = streams_[static_cast<size_t>(tail.stream)];
      const auto all = static_cast<int32_t>(plan.items()[tail.item].num_tiles);
      if (stream.wide) change.stream_tiles = wide_steps(all + change.item_tiles) - wide_steps(all);
      stream.tiles += change.stream_tiles;
      if (stream.tiles > stream.most_tiles) return false;
    }
    changes_.push_back(change);
  }
  return true;
}

bool PlanUpdater::update(const PrefixForest& forest, std::vector<uint64_t>* words) {
  if (!has_plan_) return false;
  const PlanView plan(words->data());
  if (!collect_changes(forest, plan)) {
    has_plan_ = false;
    return false;
  }
  PlanHeader& header = *at<PlanHeader>(words, 0);
  auto* segments = at<Segment>(words, header.segments_offset);
  auto* items = at<WorkItem>(words, header.items_offset);
  auto* phases = at<Phase>(words, header.phases_offset);
  for (const Change& change : changes_) {
    nodes_[change.node].num_tokens += change.tokens;
    segments[change.segment].num_tokens += change.tokens;
    if (change.item_tiles == 0) continue;
    items[change.item].num_tiles += static_cast<uint32_t>(change.item_tiles);
    const Stream& stream = streams_[static_cast<size_t>(change.stream)];
    phases[stream.phase].stream_tiles[stream.index] += static_cast<uint32_t>(change.stream_tiles);
    added_tiles_ += change.item_tiles;
  }
  header.unique_tokens = forest.unique_tokens();
  header.flat_tokens = forest.flat_tokens();
  header.num_page_ids = num_page_ids_;
  constexpr size_t kHeaderWords = sizeof(PlanHeader) / 8;
  header.content_hash = hash_words(words->data() + kHeaderWords, words->size() - kHeaderWords);
  return true;
}

}  // namespace capillary
