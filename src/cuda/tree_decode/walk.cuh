// SPDX-License-Identifier: MIT
// Walking a plan: the tiles of consecutive segments, and the parity of every ring stage. Producers and
// consumers walk the same lists independently; that they agree is what keeps the ring in step.
#pragma once

#include <cstdint>

#include "cuda/tree_decode/traits.cuh"
#include "shared/plan_layout.h"

namespace capillary::tree_decode {

// The tiles of a run of segments, one after the other. The next segment is fetched while the current one
// is walked: short leaves would otherwise pay a global load's latency each.
class TileWalker {
 public:
  __device__ __forceinline__ void start(const Segment* segments, uint32_t num_segments) {
    next_ = segments;
    left_ = num_segments;
    tokens_left_ = 0;
    fetch_ahead();
    next_segment();
  }
  __device__ __forceinline__ bool done() const { return tokens_left_ <= 0; }
  __device__ __forceinline__ int64_t page_entry() const { return page_entry_; }
  // First token of the tile, counted from the first token of page_entry()'s page.
  __device__ __forceinline__ uint32_t token() const { return token_; }
  // Tokens of the tile, 1..16; 0 when done.
  __device__ __forceinline__ int32_t valid() const {
    return max(min(tokens_left_, kTileTokens), 0);
  }

  __device__ __forceinline__ void advance() {
    token_ += kTileTokens;
    tokens_left_ -= kTileTokens;
    if (tokens_left_ <= 0) next_segment();
  }
  __device__ __forceinline__ void advance(int32_t tiles) {
    while (tiles > 0 && !done()) {
      const int32_t here = (tokens_left_ + kTileTokens - 1) / kTileTokens;
      if (tiles < here) {
        token_ += static_cast<uint32_t>(tiles * kTileTokens);
        tokens_left_ -= tiles * kTileTokens;
        return;
      }
      tiles -= here;
      next_segment();
    }
  }

 private:
  __device__ __forceinline__ void fetch_ahead() {
    ahead_tokens_ = 0;
    if (left_ == 0) return;
    ahead_page_entry_ = next_->page_offset;
    ahead_token_ = static_cast<uint32_t>(next_->token_begin);
    ahead_tokens_ = next_->num_tokens;
    ++next_;
    --left_;
  }
  __device__ __forceinline__ void next_segment() {
    page_entry_ = ahead_page_entry_;
    token_ = ahead_token_;
    tokens_left_ = ahead_tokens_;
    fetch_ahead();
  }

  const Segment* next_;
  uint32_t left_;
  int64_t page_entry_ = 0;
  uint32_t token_ = 0;
  int32_t tokens_left_;
  int64_t ahead_page_entry_ = 0;
  uint32_t ahead_token_ = 0;
  int32_t ahead_tokens_;
};

// Items of a narrow phase before a stream's own. By a whole warp: one load a lane, where a loop would wait for each.
__device__ __forceinline__ uint32_t items_before(const Phase& phase, uint32_t stream,
                                                 uint32_t lane) {
  return __reduce_add_sync(0xffffffffu, lane < stream ? phase.stream_items[lane] : 0u);
}

// The stages whose full barriers a wide step uses: the first of each four has the bytes of all of them.
inline constexpr uint32_t kWideFirstStages = 0x11111111u;
static_assert(kWideTiles == 4);

// Bit s: whether stage s's empty barrier changes parity over the phase (full barriers of a wide phase: only the
// kWideFirstStages of these). A warp works it out together, a lane a
// stage, from the tile counts in the phase; a stage is used once each time its turn comes.
template <class Tr>
__device__ __forceinline__ uint32_t parity_changes(const Phase& phase, uint32_t lane) {
  uint32_t uses = 0;
  if (lane < Tr::kStages) {
    if (phase.kind == PhaseKind::kWide) {
      const uint32_t steps = phase.stream_tiles[0] / kWideTiles;
      const uint32_t turn = lane / kWideTiles;
      if (steps > turn) uses = (steps - turn + Tr::kWideStages - 1) / Tr::kWideStages;
    } else {
      const uint32_t tiles = phase.stream_tiles[lane % Tr::kStreams];
      const uint32_t turn = lane / Tr::kStreams;
      if (tiles > turn) uses = (tiles - turn + Tr::kStagesPerStream - 1) / Tr::kStagesPerStream;
    }
  }
  return __ballot_sync(0xffffffffu, (uses & 1u) != 0);
}

}  // namespace capillary::tree_decode
