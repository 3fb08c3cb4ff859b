// SPDX-License-Identifier: MIT
// Every field of a plan blob by name, place and size, so that mutation tests can miss none: a test checks that
// the fields of each struct add up to its size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "shared/plan_layout.h"

namespace capillary::testing {

struct Field {
  const char* name;
  size_t offset;  // in its struct
  size_t size;
};

struct FieldTable {
  const char* name;
  size_t size;  // of the struct
  std::vector<Field> fields;
};

#define CAPILLARY_FIELD(type, field) \
  { #field, offsetof(type, field), sizeof(type::field) }

inline FieldTable header_fields() {
  return {"header",
          sizeof(PlanHeader),
          {CAPILLARY_FIELD(PlanHeader, magic),
           CAPILLARY_FIELD(PlanHeader, version),
           CAPILLARY_FIELD(PlanHeader, total_bytes),
           CAPILLARY_FIELD(PlanHeader, content_hash),
           CAPILLARY_FIELD(PlanHeader, profile_hash),
           CAPILLARY_FIELD(PlanHeader, mode),
           CAPILLARY_FIELD(PlanHeader, num_requests),
           CAPILLARY_FIELD(PlanHeader, num_queries),
           CAPILLARY_FIELD(PlanHeader, num_q_heads),
           CAPILLARY_FIELD(PlanHeader, num_kv_heads),
           CAPILLARY_FIELD(PlanHeader, head_dim),
           CAPILLARY_FIELD(PlanHeader, head_dim_v),
           CAPILLARY_FIELD(PlanHeader, page_size),
           CAPILLARY_FIELD(PlanHeader, unique_tokens),
           CAPILLARY_FIELD(PlanHeader, flat_tokens),
           CAPILLARY_FIELD(PlanHeader, cluster_size),
           CAPILLARY_FIELD(PlanHeader, num_clusters),
           CAPILLARY_FIELD(PlanHeader, num_streams),
           CAPILLARY_FIELD(PlanHeader, max_slots),
           CAPILLARY_FIELD(PlanHeader, causal),
           CAPILLARY_FIELD(PlanHeader, window_left),
           CAPILLARY_FIELD(PlanHeader, softcap),
           CAPILLARY_FIELD(PlanHeader, features),
           CAPILLARY_FIELD(PlanHeader, query_order_offset),
           CAPILLARY_FIELD(PlanHeader, schedule_begin_offset),
           CAPILLARY_FIELD(PlanHeader, schedule_offset),
           CAPILLARY_FIELD(PlanHeader, num_scheduled),
           CAPILLARY_FIELD(PlanHeader, jobs_offset),
           CAPILLARY_FIELD(PlanHeader, num_jobs),
           CAPILLARY_FIELD(PlanHeader, rank_works_offset),
           CAPILLARY_FIELD(PlanHeader, phases_offset),
           CAPILLARY_FIELD(PlanHeader, num_phases),
           CAPILLARY_FIELD(PlanHeader, items_offset),
           CAPILLARY_FIELD(PlanHeader, num_items),
           CAPILLARY_FIELD(PlanHeader, segments_offset),
           CAPILLARY_FIELD(PlanHeader, num_segments),
           CAPILLARY_FIELD(PlanHeader, merges_offset),
           CAPILLARY_FIELD(PlanHeader, num_merges),
           CAPILLARY_FIELD(PlanHeader, partials_offset),
           CAPILLARY_FIELD(PlanHeader, num_partials),
           CAPILLARY_FIELD(PlanHeader, splits_offset),
           CAPILLARY_FIELD(PlanHeader, num_splits),
           CAPILLARY_FIELD(PlanHeader, split_rows),
           CAPILLARY_FIELD(PlanHeader, predicted_us),
           CAPILLARY_FIELD(PlanHeader, reserved0),
           CAPILLARY_FIELD(PlanHeader, num_page_ids),
           CAPILLARY_FIELD(PlanHeader, reserved)}};
}

// One array of a blob.
struct ArrayPlace {
  FieldTable table;
  size_t offset;  // in the blob
  size_t count;
};

inline std::vector<ArrayPlace> array_places(const PlanHeader& h) {
  const FieldTable word{"", 4, {{"value", 0, 4}}};
  const auto named = [](FieldTable table, const char* name) {
    table.name = name;
    return table;
  };
  const size_t num_ctas = static_cast<size_t>(h.num_clusters) * static_cast<size_t>(h.cluster_size);
  const size_t num_ranks = static_cast<size_t>(h.num_jobs) * static_cast<size_t>(h.cluster_size);
  return {
      {{"rank_start",
        sizeof(RankStart),
        {CAPILLARY_FIELD(RankStart, entry), CAPILLARY_FIELD(RankStart, schedule_begin),
         CAPILLARY_FIELD(RankStart, schedule_end), CAPILLARY_FIELD(RankStart, job),
         CAPILLARY_FIELD(RankStart, work), CAPILLARY_FIELD(RankStart, reserved)}},
       kRankStartOffset,
       num_ctas},
      {named(word, "query_order"), h.query_order_offset, static_cast<size_t>(h.num_queries)},
      {named(word, "schedule_begin"), h.schedule_begin_offset,
       static_cast<size_t>(h.num_clusters) + 1},
      {{"schedule",
        sizeof(ScheduleEntry),
        {CAPILLARY_FIELD(ScheduleEntry, job), CAPILLARY_FIELD(ScheduleEntry, kv_head)}},
       h.schedule_offset,
       h.num_scheduled},
      {{"job",
        sizeof(Job),
        {CAPILLARY_FIELD(Job, query_begin), CAPILLARY_FIELD(Job, num_queries),
         CAPILLARY_FIELD(Job, needs_exchange), CAPILLARY_FIELD(Job, reserved)}},
       h.jobs_offset,
       h.num_jobs},
      {{"rank_work",
        sizeof(RankWork),
        {CAPILLARY_FIELD(RankWork, phase_begin), CAPILLARY_FIELD(RankWork, num_phases),
         CAPILLARY_FIELD(RankWork, merge_begin), CAPILLARY_FIELD(RankWork, num_merges),
         CAPILLARY_FIELD(RankWork, item_begin), CAPILLARY_FIELD(RankWork, num_items),
         CAPILLARY_FIELD(RankWork, segment_begin), CAPILLARY_FIELD(RankWork, num_segments),
         CAPILLARY_FIELD(RankWork, partial_begin), CAPILLARY_FIELD(RankWork, num_partials)}},
       h.rank_works_offset,
       num_ranks},
      {{"phase",
        sizeof(Phase),
        {CAPILLARY_FIELD(Phase, kind), CAPILLARY_FIELD(Phase, reserved),
         CAPILLARY_FIELD(Phase, item_begin), CAPILLARY_FIELD(Phase, num_items),
         CAPILLARY_FIELD(Phase, stream_items), CAPILLARY_FIELD(Phase, stream_tiles)}},
       h.phases_offset,
       h.num_phases},
      {{"item",
        sizeof(WorkItem),
        {CAPILLARY_FIELD(WorkItem, row_begin), CAPILLARY_FIELD(WorkItem, num_rows),
         CAPILLARY_FIELD(WorkItem, init_slot), CAPILLARY_FIELD(WorkItem, dest_slot),
         CAPILLARY_FIELD(WorkItem, segment_begin), CAPILLARY_FIELD(WorkItem, num_segments),
         CAPILLARY_FIELD(WorkItem, destination), CAPILLARY_FIELD(WorkItem, reserved),
         CAPILLARY_FIELD(WorkItem, num_tiles)}},
       h.items_offset,
       h.num_items},
      {{"segment",
        sizeof(Segment),
        {CAPILLARY_FIELD(Segment, page_offset), CAPILLARY_FIELD(Segment, token_begin),
         CAPILLARY_FIELD(Segment, num_tokens), CAPILLARY_FIELD(Segment, logical_begin),
         CAPILLARY_FIELD(Segment, reserved)}},
       h.segments_offset,
       h.num_segments},
      {{"merge",
        sizeof(Merge),
        {CAPILLARY_FIELD(Merge, row_begin), CAPILLARY_FIELD(Merge, num_rows),
         CAPILLARY_FIELD(Merge, num_partials), CAPILLARY_FIELD(Merge, destination),
         CAPILLARY_FIELD(Merge, reserved), CAPILLARY_FIELD(Merge, partial_begin),
         CAPILLARY_FIELD(Merge, split), CAPILLARY_FIELD(Merge, split_part),
         CAPILLARY_FIELD(Merge, split_row)}},
       h.merges_offset,
       h.num_merges},
      {{"partial",
        sizeof(Partial),
        {CAPILLARY_FIELD(Partial, rank), CAPILLARY_FIELD(Partial, slot)}},
       h.partials_offset,
       h.num_partials},
      {{"split",
        sizeof(Split),
        {CAPILLARY_FIELD(Split, split_row_begin), CAPILLARY_FIELD(Split, num_rows),
         CAPILLARY_FIELD(Split, num_parts)}},
       h.splits_offset,
       h.num_splits},
  };
}

#undef CAPILLARY_FIELD

// Bytes of the struct that no field names; the layout has none.
inline size_t unnamed_bytes(const FieldTable& table) {
  size_t named = 0;
  for (const Field& field : table.fields) named += field.size;
  return table.size - named;
}

}  // namespace capillary::testing
