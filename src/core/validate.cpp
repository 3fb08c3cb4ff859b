// SPDX-License-Identifier: MIT
// validate_plan, first half: the header, the arrays' places and the schedule.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "capillary/error.h"
#include "core/hash.h"
#include "core/plan_proof.h"

namespace capillary {

void PlanProof::fail(const std::string& where, const std::string& came,
                     const std::string& expected) {
  throw InternalError(five_parts("validate_plan", where, came, expected,
                                 "do not run this plan; report it with its batch"));
}

void PlanProof::check_header(size_t size_bytes) {
  if (size_bytes < sizeof(PlanHeader))
    fail("size_bytes", is(static_cast<int64_t>(size_bytes)), "hold a plan header");
  if (reinterpret_cast<uintptr_t>(plan_.base) % alignof(PlanHeader) != 0)
    fail("blob", "is not aligned", "start at a multiple of 8 bytes");
  const PlanHeader& h = header();
  if (h.magic != kPlanMagic) fail("magic", "is wrong", "be CAPILLRY");
  if (h.version != kPlanVersion)
    fail("version", is(h.version), "be " + std::to_string(kPlanVersion));
  if (h.total_bytes != size_bytes || size_bytes % 8 != 0)
    fail("total_bytes", is(h.total_bytes), "equal the blob's " + std::to_string(size_bytes));
  check_shape();
  check_variants();
  table_ = tile_table(std::max(h.head_dim, h.head_dim_v));
  group_size_ = h.num_q_heads / h.num_kv_heads;
  if (group_size_ > table_.max_job_rows)
    fail("num_q_heads", is(h.num_q_heads), "give a job rows for at least one query");
  if (h.num_streams != table_.num_streams)
    fail("num_streams", is(h.num_streams), "be " + std::to_string(table_.num_streams));
  if (h.max_slots < 0 || h.max_slots > table_.num_slots)
    fail("max_slots", is(h.max_slots), "be 0 to " + std::to_string(table_.num_slots));
  check_arrays();
  constexpr size_t kHeaderWords = sizeof(PlanHeader) / 8;
  const auto* words = reinterpret_cast<const uint64_t*>(plan_.base);
  if (h.content_hash != hash_words(words + kHeaderWords, size_bytes / 8 - kHeaderWords))
    fail("content_hash", "differs from the content", "be its hash");
}

void PlanProof::check_shape() const {
  const PlanHeader& h = header();
  const auto equal = [](const char* field, int64_t came, int64_t expected) {
    if (came != expected) fail(field, is(came), "be the forest's " + std::to_string(expected));
  };
  equal("num_requests", h.num_requests, forest_.num_requests());
  equal("num_queries", h.num_queries, forest_.num_requests());
  equal("page_size", h.page_size, forest_.page_size());
  equal("unique_tokens", h.unique_tokens, forest_.unique_tokens());
  equal("flat_tokens", h.flat_tokens, forest_.flat_tokens());
  if (h.page_size < 1) fail("page_size", is(h.page_size), "be at least 1");
  if (h.num_kv_heads < 1) fail("num_kv_heads", is(h.num_kv_heads), "be at least 1");
  if (h.num_q_heads < 1 || h.num_q_heads % h.num_kv_heads != 0)
    fail("num_q_heads", is(h.num_q_heads), "be a positive multiple of num_kv_heads");
  for (const int32_t dim : {h.head_dim, h.head_dim_v})
    if (dim < 1 || dim > kMaxHeadDim)
      fail("head_dim", is(dim), "be 1 to " + std::to_string(kMaxHeadDim));
  if (h.cluster_size < 1 || h.cluster_size > kMaxClusterSize ||
      !std::has_single_bit(static_cast<uint32_t>(h.cluster_size)))
    fail("cluster_size", is(h.cluster_size), "be 1, 2, 4, 8 or 16");
}

void PlanProof::check_variants() const {
  const PlanHeader& h = header();
  if (h.mode > static_cast<uint32_t>(PlanMode::kSharedL2)) fail("mode", is(h.mode), "be 0, 1 or 2");
  // No backend executes these yet, so a plan that asks for them would be run as something else.
  if (h.causal != 0) fail("causal", is(h.causal), "be 0");
  if (h.window_left != -1) fail("window_left", is(h.window_left), "be -1");
  if (std::bit_cast<uint32_t>(h.softcap) != 0)
    fail("softcap", "is " + std::to_string(h.softcap), "be 0");
  if (h.features != 0) fail("features", is(h.features), "be 0");
  if (!std::isfinite(h.predicted_us) || h.predicted_us < 0)
    fail("predicted_us", "is " + std::to_string(h.predicted_us), "be a time");
  bool reserved = h.reserved0 != 0;
  for (const uint32_t word : h.reserved) reserved = reserved || word != 0;
  if (reserved) fail("reserved", "is set", "be 0");
}

void PlanProof::check_arrays() const {
  const PlanHeader& h = header();
  if (h.num_clusters < 0) fail("num_clusters", is(h.num_clusters), "be 0 or more");
  uint64_t end = sizeof(PlanHeader);
  const auto array = [&](const char* field, uint64_t offset, uint64_t count, uint64_t size) {
    if (offset != end)
      fail(field, is(static_cast<int64_t>(offset)),
           "be " + std::to_string(end) + ", after the array before it");
    if (count > (h.total_bytes - end) / size)
      fail(field, "starts an array of " + std::to_string(count) + " entries",
           "leave it room in the blob");
    end += (count * size + 15) / 16 * 16;
    if (end > h.total_bytes)
      fail(field, "starts an array that is not padded", "leave it room in the blob");
  };
  array("rank_starts", kRankStartOffset,
        static_cast<uint64_t>(h.num_clusters) * static_cast<uint64_t>(h.cluster_size),
        sizeof(RankStart));
  array("query_order_offset", h.query_order_offset, static_cast<uint64_t>(h.num_queries), 4);
  array("schedule_begin_offset", h.schedule_begin_offset, static_cast<uint64_t>(h.num_clusters) + 1,
        4);
  array("schedule_offset", h.schedule_offset, h.num_scheduled, sizeof(ScheduleEntry));
  array("jobs_offset", h.jobs_offset, h.num_jobs, sizeof(Job));
  array("rank_works_offset", h.rank_works_offset,
        static_cast<uint64_t>(h.num_jobs) * static_cast<uint64_t>(h.cluster_size),
        sizeof(RankWork));
  array("phases_offset", h.phases_offset, h.num_phases, sizeof(Phase));
  array("items_offset", h.items_offset, h.num_items, sizeof(WorkItem));
  array("segments_offset", h.segments_offset, h.num_segments, sizeof(Segment));
  array("merges_offset", h.merges_offset, h.num_merges, sizeof(Merge));
  array("partials_offset", h.partials_offset, h.num_partials, sizeof(Partial));
  array("splits_offset", h.splits_offset, h.num_splits, sizeof(Split));
  if (end != h.total_bytes)
    fail("total_bytes", is(h.total_bytes), "end with the last array, at " + std::to_string(end));
}

void PlanProof::check_schedule() const {
  const PlanHeader& h = header();
  const auto order = forest_.leaf_order();
  for (size_t i = 0; i < order.size(); ++i)
    if (plan_.query_order()[i] != order[i])
      fail(at("query_order", i), is(plan_.query_order()[i]),
           "be the forest's " + std::to_string(order[i]));
  const uint64_t total = static_cast<uint64_t>(h.num_jobs) * static_cast<uint64_t>(h.num_kv_heads);
  if (h.num_scheduled != total)
    fail("num_scheduled", is(h.num_scheduled),
         "be num_jobs * num_kv_heads, " + std::to_string(total));
  const uint32_t* begin = plan_.schedule_begin();
  if (begin[0] != 0) fail(at("schedule_begin", 0), is(begin[0]), "be 0");
  for (int32_t cluster = 0; cluster < h.num_clusters; ++cluster)
    if (begin[cluster + 1] < begin[cluster])
      fail(at("schedule_begin", static_cast<uint64_t>(cluster) + 1), is(begin[cluster + 1]),
           "not decrease");
  if (begin[h.num_clusters] != h.num_scheduled)
    fail(at("schedule_begin", static_cast<uint64_t>(h.num_clusters)), is(begin[h.num_clusters]),
         "be num_scheduled, " + std::to_string(h.num_scheduled));
  std::vector<uint8_t> seen(total, 0);
  for (uint32_t i = 0; i < h.num_scheduled; ++i) {
    const ScheduleEntry& entry = plan_.schedule()[i];
    if (entry.job >= h.num_jobs)
      fail(at("schedule", i), "names job " + std::to_string(entry.job), "name one of the jobs");
    if (entry.kv_head >= static_cast<uint32_t>(h.num_kv_heads))
      fail(at("schedule", i), "names KV head " + std::to_string(entry.kv_head),
           "name one of the heads");
    uint8_t& mark =
        seen[static_cast<size_t>(entry.job) * static_cast<size_t>(h.num_kv_heads) + entry.kv_head];
    if (mark != 0)
      fail(at("schedule", i), "runs a (job, KV head) that ran before", "run each once");
    mark = 1;
  }
}

// Copies of what the schedule leads to; the device trusts them.
void PlanProof::check_rank_starts() const {
  const PlanHeader& h = header();
  const auto cluster_size = static_cast<uint32_t>(h.cluster_size);
  const auto num_ctas = static_cast<uint32_t>(h.num_clusters) * cluster_size;
  for (uint32_t cta = 0; cta < num_ctas; ++cta) {
    const RankStart& start = plan_.rank_starts()[cta];
    const uint32_t* begin = plan_.schedule_begin() + cta / cluster_size;
    RankStart expected{};
    expected.schedule_begin = begin[0];
    expected.schedule_end = begin[1];
    if (begin[0] < begin[1]) {
      expected.entry = plan_.schedule()[begin[0]];
      expected.job = plan_.jobs()[expected.entry.job];
      expected.work = plan_.rank_works()[expected.entry.job * cluster_size + cta % cluster_size];
    }
    if (std::memcmp(&start, &expected, sizeof start) != 0)
      fail(at("rank_start", cta), "differs from the schedule", "repeat its cluster's first entry");
  }
}

void validate_plan(const void* blob, size_t size_bytes, const PrefixForest& forest) {
  PlanProof proof(blob, forest);
  proof.check_header(size_bytes);
  proof.check_schedule();
  proof.check_rank_starts();
  proof.check_jobs();
  proof.check_splits();
  proof.check_coverage();
}

}  // namespace capillary
