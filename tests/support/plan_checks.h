// SPDX-License-Identifier: MIT
// What planner and proof tests share: plans as bytes, the shapes that are swept, comparisons of plans.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "capillary/error.h"
#include "capillary/plan.h"
#include "core/hash.h"
#include "shared/plan_layout.h"

namespace capillary::testing {

inline constexpr int32_t kGroupSizes[] = {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 32, 64};
inline constexpr int32_t kHeadDims[] = {64, 80, 96, 112, 128, 192, 256};
inline constexpr int32_t kClusterSizes[] = {0, 1, 2, 4, 8, 16};
inline constexpr Mode kModes[] = {Mode::kAuto, Mode::kFlat, Mode::kSharedL2};

// What a planner is asked, so that a failure can say it.
struct Asked {
  ModelShape shape;
  PlanOptions options;
};

inline std::ostream& operator<<(std::ostream& out, const Asked& asked) {
  return out << asked.shape.num_q_heads << "/" << asked.shape.num_kv_heads << " heads, head_dim "
             << asked.shape.head_dim << ":" << asked.shape.v_dim() << ", "
             << mode_name(asked.options.mode) << ", cluster_size " << asked.options.cluster_size
             << ", num_pieces " << asked.options.num_pieces << ", fixed_grid "
             << asked.options.fixed_grid;
}

inline Asked random_asked(std::mt19937_64& rng) {
  const auto pick = [&](const auto& list) { return list[rng() % std::size(list)]; };
  Asked asked;
  asked.shape.num_kv_heads = 1 + static_cast<int32_t>(rng() % 8);
  asked.shape.num_q_heads = asked.shape.num_kv_heads * pick(kGroupSizes);
  asked.shape.head_dim = pick(kHeadDims);
  if (rng() % 8 == 0) asked.shape.head_dim_v = pick(kHeadDims);
  asked.options.mode = pick(kModes);
  asked.options.cluster_size = pick(kClusterSizes);
  if (rng() % 2 == 0) asked.options.num_pieces = static_cast<int32_t>(rng() % 200);
  if (rng() % 20 == 0) asked.options.num_pieces = 3000;
  asked.options.fixed_grid = asked.options.cluster_size != 0 && rng() % 4 == 0;
  return asked;
}

using Bytes = std::vector<uint64_t>;

inline Bytes bytes_of(const Plan& plan) {
  const auto* words = static_cast<const uint64_t*>(plan.data());
  return Bytes(words, words + plan.size_bytes() / 8);
}

inline PlanHeader& header_of(Bytes& bytes) {
  return *reinterpret_cast<PlanHeader*>(bytes.data());
}

inline void rehash(Bytes& bytes) {
  constexpr size_t kHeaderWords = sizeof(PlanHeader) / 8;
  if (bytes.size() >= kHeaderWords)
    header_of(bytes).content_hash =
        hash_words(bytes.data() + kHeaderWords, bytes.size() - kHeaderWords);
}

// "" or what validate_plan has against the plan.
inline std::string fault(const Bytes& bytes, const PrefixForest& forest) {
  try {
    validate_plan(bytes.data(), bytes.size() * 8, forest);
  } catch (const InternalError& error) {
    return error.what();
  }
  return "";
}

// The plan without what depends on where the page ids lie.
inline Bytes without_pages(Bytes bytes) {
  PlanHeader& header = header_of(bytes);
  auto* segments =
      reinterpret_cast<Segment*>(reinterpret_cast<char*>(bytes.data()) + header.segments_offset);
  for (uint32_t i = 0; i < header.num_segments; ++i) segments[i].page_offset = 0;
  header.num_page_ids = 0;
  header.content_hash = 0;
  return bytes;
}

}  // namespace capillary::testing
