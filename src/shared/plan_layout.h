// SPDX-License-Identifier: MIT
// The plan: one position-independent blob of PODs that the planner writes once a step and that the CPU
// interpreter, the sm_90a kernel, `validate` and `explain` all read. docs/plan-format.md tells it in prose.
//
//   schedule        cluster c runs schedule[schedule_begin[c] .. schedule_begin[c+1]): (job, KV head)
//   RankStart       where each CTA begins: its first schedule entry, resolved
//   Job             one query group (a run of queries in leaf order); job j has cluster_size RankWorks
//   RankWork        what one CTA (rank) of the job does: phases, then merges
//   Phase           work with a CTA-wide barrier after it: either wide items (all warps work on each item)
//                   or eight narrow streams (warp w works through its own items)
//   WorkItem        rows x segments of keys -> one partial per row, left in a slot or finished to the output
//   Segment         a run of tokens inside consecutive entries of the page id array
//   Merge, Partial  rows whose partials lie in several slots/ranks: merged in list order after the exchange
//   Split           rows whose keys are spread over several jobs: parts meet in the workspace (L2)
//
// Everything here is per KV head: all heads run the same jobs. Row r of a job is query
// query_order[job.query_begin + r / group_size], query head kv_head * group_size + r % group_size.
// Fields named reserved are zero. Format changes bump kPlanVersion.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "shared/host_device.h"

namespace capillary {

inline constexpr uint64_t kPlanMagic = 0x59524c4c49504143ull;  // "CAPILLRY", little endian
inline constexpr uint32_t kPlanVersion = 1;

// Tokens are loaded, masked and cut in tiles of this many; a tile never straddles two segments.
inline constexpr int kTileTokens = 16;
// Tiles that one wide step consumes together.
inline constexpr int kWideTiles = 4;
// Consumer warps of a CTA, hence narrow streams of a phase.
inline constexpr int kMaxStreams = 8;
// Rows (query, head in group) that a narrow item can carry.
inline constexpr int kMaxNarrowRows = 16;
// Rows of one job: two warpgroups of 64 rows each.
inline constexpr int kMaxJobRows = 128;
inline constexpr int kMaxClusterSize = 16;
inline constexpr int16_t kNoSlot = -1;

enum class PlanMode : uint32_t {
  kAuto = 0,      // sharing, partials merged through distributed shared memory
  kFlat = 1,      // nothing shared: every request is planned as if alone
  kSharedL2 = 2,  // the same sharing, partials merged through global memory
};

enum class PhaseKind : uint8_t { kWide = 0, kNarrow = 1 };

enum class Destination : uint8_t {
  kSlot = 0,       // items: leave the partial in this CTA's slots [dest_slot, dest_slot + num_rows)
                   // merges, a rank's first: of its own slots alone, before the ranks meet; the result stays
                   // in the first partial's slots, so that peers read one partial a row and rank
  kOutput = 1,     // the rows are complete: normalise, write output and LSE
  kWorkspace = 2,  // (merges only) the rows are part `split_part` of a Split
};

struct PlanHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t total_bytes;   // of the blob, header included
  uint64_t content_hash;  // of every byte after the header
  uint64_t profile_hash;  // the DeviceProfile this was planned for

  // What was planned.
  uint32_t mode;  // PlanMode
  int32_t num_requests;
  int32_t num_queries;  // query tokens; equals num_requests in plain decode
  int32_t num_q_heads;
  int32_t num_kv_heads;
  int32_t head_dim;    // of Q and K
  int32_t head_dim_v;  // of V and the output
  int32_t page_size;
  int64_t unique_tokens;  // KV tokens of the forest counted once
  int64_t flat_tokens;    // counted once a request

  // The launch.
  int32_t cluster_size;
  int32_t num_clusters;  // grid = cluster_size * num_clusters CTAs
  int32_t num_streams;   // consumer warps that take narrow items: 4 or 8, set by head_dim
  int32_t max_slots;     // slots the fullest CTA uses

  // Attention variants; execution of the non-default values comes later, their place is fixed now.
  int32_t
      causal;  // 1: query i of m in a request sees the keys up to its own (bottom-right aligned)
  int32_t window_left;  // -1: off
  float softcap;        // 0: off
  uint32_t features;    // bit set of extensions in use; 0 now

  // Arrays: byte offsets from the start of the header, and counts.
  uint32_t query_order_offset;     // int32[num_queries]: query token index in leaf order
  uint32_t schedule_begin_offset;  // uint32[num_clusters + 1]
  uint32_t schedule_offset;        // ScheduleEntry[num_scheduled]
  uint32_t num_scheduled;          // num_jobs * num_kv_heads
  uint32_t jobs_offset;            // Job[num_jobs]
  uint32_t num_jobs;
  uint32_t rank_works_offset;  // RankWork[num_jobs * cluster_size], rank minor
  uint32_t phases_offset;      // Phase[num_phases]
  uint32_t num_phases;
  uint32_t items_offset;  // WorkItem[num_items]
  uint32_t num_items;
  uint32_t segments_offset;  // Segment[num_segments]
  uint32_t num_segments;
  uint32_t merges_offset;  // Merge[num_merges]
  uint32_t num_merges;
  uint32_t partials_offset;  // Partial[num_partials]
  uint32_t num_partials;
  uint32_t splits_offset;  // Split[num_splits]
  uint32_t num_splits;
  uint32_t split_rows;  // workspace rows a KV head needs

  float predicted_us;
  uint32_t reserved0;
  int64_t
      num_page_ids;  // entries of the page id array that the segments reach: the caller's has as many
  uint32_t reserved[12];
};

struct ScheduleEntry {
  uint32_t job;
  uint32_t kv_head;
};

struct Job {
  int32_t query_begin;  // into query_order
  int32_t num_queries;
  // 1: some merge reads a peer's slots, so the ranks meet at cluster barriers before and after merging.
  // 0: ranks need not wait for each other at all.
  uint32_t needs_exchange;
  uint32_t reserved;
};

// A rank's slices of the arrays; each is contiguous, so that a CTA fetches its whole program in one go.
struct RankWork {
  uint32_t phase_begin;
  uint32_t num_phases;
  uint32_t merge_begin;
  uint32_t num_merges;
  uint32_t item_begin;
  uint32_t num_items;
  uint32_t segment_begin;
  uint32_t num_segments;
  uint32_t partial_begin;
  uint32_t num_partials;
};

// What a CTA needs to begin, at a fixed place (kRankStartOffset, cluster * cluster_size + rank): copies of its
// first schedule entry's job and work, so that the way to the first key is one load shorter for each.
struct RankStart {
  ScheduleEntry
      entry;  // the first of the cluster's entries; meaningless when schedule_begin == schedule_end
  uint32_t schedule_begin;  // the cluster's entries
  uint32_t schedule_end;
  Job job;
  RankWork work;
  uint32_t reserved[2];
};

struct Phase {
  PhaseKind kind;
  uint8_t reserved[3];
  uint32_t item_begin;
  uint32_t num_items;
  // Narrow: items of stream w follow those of stream w-1; num_items is their sum.
  uint16_t stream_items[kMaxStreams];
  // Narrow: tiles of all items of stream w. Wide: [0] holds the phase's tiles, each item rounded up to
  // kWideTiles. Known up front so that every warp can keep track of every ring stage.
  uint32_t stream_tiles[kMaxStreams];
};

struct WorkItem {
  uint16_t row_begin;  // rows of the job
  uint16_t num_rows;   // wide: 1..128, narrow: 1..16
  // First of num_rows slots of this CTA, written in an earlier phase or by an earlier item of the same stream,
  // whose state the item starts from. kNoSlot: it starts empty. That is how a path's partials merge inside one
  // CTA without an exchange.
  int16_t init_slot;
  int16_t dest_slot;  // Destination::kSlot only; may equal init_slot
  uint32_t segment_begin;
  uint16_t num_segments;
  Destination destination;  // kSlot or kOutput
  uint8_t reserved;
  uint32_t num_tiles;  // of all its segments
};

struct Segment {
  int64_t page_offset;    // entry of the page id array that holds the first token's page
  int32_t token_begin;    // 0 <= token_begin < page_size: first token inside that page
  int32_t num_tokens;     // > 0
  int32_t logical_begin;  // logical position of the first token in its request (masks, windows)
  int32_t reserved;
};

struct Merge {
  uint16_t row_begin;  // rows of the job
  uint16_t num_rows;
  uint16_t num_partials;    // 0: rows without any key (output 0, LSE -inf)
  Destination destination;
  uint8_t reserved;
  uint32_t partial_begin;
  uint32_t split;       // kWorkspace only
  uint16_t split_part;  // kWorkspace only
  uint16_t split_row;   // kWorkspace only: row of the split that row_begin is
};

struct Partial {
  uint16_t rank;
  uint16_t slot;  // of the merge's first row; its other rows follow
};

// num_parts x num_rows workspace rows a KV head: part p, row r at split_row_begin + p * num_rows + r.
// Whichever part arrives last merges all parts in part order and writes the output.
struct Split {
  uint32_t split_row_begin;
  uint16_t num_rows;
  uint16_t num_parts;
};

// Workspace layout for one run: tags, then (max, sum) pairs, then outputs, each [num_kv_heads][split_rows].
// A tag says "this row's part is here"; the merging part clears it, so the caller never has to zero anything.
struct WorkspaceLayout {
  int64_t tags_offset;     // uint64
  int64_t max_sum_offset;  // float2, max in base 2
  int64_t output_offset;   // float[head_dim_v rounded up to 64], un-normalised
  int64_t total_bytes;
};

CAPILLARY_HOST_DEVICE constexpr WorkspaceLayout workspace_layout(int64_t num_kv_heads,
                                                                 int64_t split_rows,
                                                                 int64_t head_dim_v) {
  const int64_t rows = num_kv_heads * split_rows;
  const int64_t padded_dim = (head_dim_v + 63) / 64 * 64;
  const int64_t max_sum = (rows * 8 + 127) / 128 * 128;
  const int64_t output = max_sum + (rows * 8 + 127) / 128 * 128;
  return {0, max_sum, output, output + rows * padded_dim * 4};
}

#define CAPILLARY_PLAN_POD(type, size)                                                  \
  static_assert(std::is_trivially_copyable_v<type> && std::is_standard_layout_v<type>); \
  static_assert(sizeof(type) == (size), #type " changed size: bump kPlanVersion and the docs")
CAPILLARY_PLAN_POD(ScheduleEntry, 8);
CAPILLARY_PLAN_POD(Job, 16);
CAPILLARY_PLAN_POD(RankWork, 40);
CAPILLARY_PLAN_POD(RankStart, 80);
CAPILLARY_PLAN_POD(Phase, 60);
CAPILLARY_PLAN_POD(WorkItem, 20);
CAPILLARY_PLAN_POD(Segment, 24);
CAPILLARY_PLAN_POD(Merge, 20);
CAPILLARY_PLAN_POD(Partial, 4);
CAPILLARY_PLAN_POD(Split, 8);
CAPILLARY_PLAN_POD(PlanHeader, 256);
inline constexpr uint32_t kRankStartOffset = sizeof(PlanHeader);
#undef CAPILLARY_PLAN_POD

// Typed access to a blob; the same code on host and device.
struct PlanView {
  const unsigned char* base;

  CAPILLARY_HOST_DEVICE constexpr explicit PlanView(const void* blob)
      : base(static_cast<const unsigned char*>(blob)) {}
  CAPILLARY_HOST_DEVICE const PlanHeader& header() const {
    return *reinterpret_cast<const PlanHeader*>(base);
  }
  template <class T>
  CAPILLARY_HOST_DEVICE const T* at(uint32_t offset) const {
    return reinterpret_cast<const T*>(base + offset);
  }
  CAPILLARY_HOST_DEVICE const RankStart* rank_starts() const {
    return at<RankStart>(kRankStartOffset);
  }
  CAPILLARY_HOST_DEVICE const int32_t* query_order() const {
    return at<int32_t>(header().query_order_offset);
  }
  CAPILLARY_HOST_DEVICE const uint32_t* schedule_begin() const {
    return at<uint32_t>(header().schedule_begin_offset);
  }
  CAPILLARY_HOST_DEVICE const ScheduleEntry* schedule() const {
    return at<ScheduleEntry>(header().schedule_offset);
  }
  CAPILLARY_HOST_DEVICE const Job* jobs() const { return at<Job>(header().jobs_offset); }
  CAPILLARY_HOST_DEVICE const RankWork* rank_works() const {
    return at<RankWork>(header().rank_works_offset);
  }
  CAPILLARY_HOST_DEVICE const Phase* phases() const { return at<Phase>(header().phases_offset); }
  CAPILLARY_HOST_DEVICE const WorkItem* items() const {
    return at<WorkItem>(header().items_offset);
  }
  CAPILLARY_HOST_DEVICE const Segment* segments() const {
    return at<Segment>(header().segments_offset);
  }
  CAPILLARY_HOST_DEVICE const Merge* merges() const { return at<Merge>(header().merges_offset); }
  CAPILLARY_HOST_DEVICE const Partial* partials() const {
    return at<Partial>(header().partials_offset);
  }
  CAPILLARY_HOST_DEVICE const Split* splits() const { return at<Split>(header().splits_offset); }
};

}  // namespace capillary
