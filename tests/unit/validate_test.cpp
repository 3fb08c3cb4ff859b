// SPDX-License-Identifier: MIT
// validate_plan against plans that are wrong in one place: every field of every struct is perturbed, and chosen
// faults are planted that no single field shows. Hashes are repaired, so that the proof itself has to see it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <set>
#include <span>

#include "support/plan_batches.h"
#include "support/plan_checks.h"
#include "support/plan_fields.h"

namespace capillary::testing {
namespace {

using ::testing::HasSubstr;

struct Planned {
  PrefixForest forest;
  Bytes bytes;
};

Planned plan_of(PrefixForest forest, const ModelShape& shape, const PlanOptions& options = {}) {
  Planner planner(shape, builtin_h200(), options);
  Bytes bytes = bytes_of(planner.plan(forest));
  return {std::move(forest), std::move(bytes)};
}

PageRows small_rows() {
  PageRows rows;
  rows.page_size = 16;
  rows.add(700);
  for (int i = 0; i < 5; ++i) rows.add(640 + 30 * i, 0, 512);
  for (int i = 0; i < 3; ++i) rows.add(900 + 17 * i, 3, 640);
  rows.add(0);
  rows.add(45);
  rows.add(640, 0, 640);
  return rows;
}

// Streams of 8 ranks share one request's keys, so that each rank merges its own partials before they meet.
Planned own_slot_plan() {
  return plan_of(parents_forest(level_tree("", {1}, {9000})), {8, 1, 128}, {Mode::kAuto, 8, 1});
}

// Plans that between them have wide and narrow phases, streams, exchange, splits, direct outputs, several
// jobs a cluster and rows without keys.
std::vector<Planned> sample_plans() {
  std::vector<Planned> plans;
  const PrefixForest small = table_forest(small_rows().batch());
  plans.push_back(plan_of(small, {32, 8, 128}));
  plans.push_back(plan_of(small, {8, 1, 128}, {Mode::kAuto, 4, 3}));
  plans.push_back(plan_of(small, {32, 8, 128}, {Mode::kAuto, 8, 4}));
  plans.push_back(plan_of(small, {8, 2, 64}, {Mode::kSharedL2, 2, 4}));
  plans.push_back(plan_of(small, {5, 1, 192}, {Mode::kFlat, 2, 7}));
  plans.push_back(plan_of(small, {24, 1, 128, 64}, {Mode::kAuto, 8, 2, true}));
  plans.push_back(plan_of(parents_forest(level_tree("", {1, 4, 48}, {256, 80, 20})), {32, 8, 128},
                          {Mode::kAuto, 2, 3}));
  plans.push_back(own_slot_plan());
  for (uint64_t seed = 0; seed < 6; ++seed) {
    std::mt19937_64 rng(seed);
    Asked asked = random_asked(rng);
    asked.options.num_pieces = std::min(asked.options.num_pieces, 40);
    plans.push_back(
        plan_of(table_forest(random_rows(seed, 40, 600).batch()), asked.shape, asked.options));
  }
  return plans;
}

TEST(ValidatePlan, SamplesShowEveryKindOfWork) {
  std::set<std::string> seen;
  for (const Planned& planned : sample_plans()) {
    ASSERT_EQ(fault(planned.bytes, planned.forest), "");
    const PlanView view(planned.bytes.data());
    const PlanHeader& h = view.header();
    for (uint32_t i = 0; i < h.num_phases; ++i)
      seen.insert(view.phases()[i].kind == PhaseKind::kWide ? "wide" : "narrow");
    for (uint32_t i = 0; i < h.num_items; ++i) {
      const WorkItem& item = view.items()[i];
      seen.insert(item.destination == Destination::kOutput ? "direct output" : "slot");
      if (item.init_slot != kNoSlot) seen.insert("resumed");
      if (item.num_segments > 1) seen.insert("several segments");
    }
    for (uint32_t i = 0; i < h.num_merges; ++i) {
      if (view.merges()[i].num_partials == 0) seen.insert("no keys");
      if (view.merges()[i].destination == Destination::kWorkspace) seen.insert("split");
      if (view.merges()[i].destination == Destination::kSlot) seen.insert("own-slot merge");
    }
    for (uint32_t i = 0; i < h.num_jobs; ++i)
      seen.insert(view.jobs()[i].needs_exchange != 0 ? "exchange" : "no exchange");
    if (h.num_scheduled > static_cast<uint32_t>(h.num_clusters))
      seen.insert("several jobs a cluster");
    if (h.num_scheduled < static_cast<uint32_t>(h.num_clusters)) seen.insert("idle cluster");
  }
  EXPECT_THAT(seen, ::testing::UnorderedElementsAre(
                        "wide", "narrow", "direct output", "slot", "resumed", "several segments",
                        "no keys", "split", "own-slot merge", "exchange", "no exchange",
                        "several jobs a cluster", "idle cluster"));
}

// Fields whose change leaves a plan that does the same, or that only the tensors could contradict.
bool may_differ(const std::string& table, const std::string& field, const Planned& planned,
                const Bytes& mutant, size_t index) {
  if (table == "header") {
    if (field == "profile_hash" || field == "predicted_us") return true;
    // Plans say what they were made for; check_tensors compares that with the tensors.
    if (field == "head_dim" || field == "head_dim_v") return true;
    // kAuto, kFlat and kSharedL2 differ only where there is sharing or exchange.
    if (field == "mode") return true;
  }
  // Queries that a job may serve; which ones it does serve, its items say.
  if (table == "job" && field == "num_queries") return true;
  if (table == "item" && field == "dest_slot") {
    // Scratch of an item that goes to the output: any slot that holds nothing will do.
    const auto& item = PlanView(planned.bytes.data()).items()[index];
    return item.destination == Destination::kOutput &&
           PlanView(mutant.data()).items()[index].dest_slot >= 0;
  }
  return false;
}

void perturb(unsigned char* bytes, size_t size, std::mt19937_64& rng) {
  const auto add = [&](int delta) {
    for (size_t i = 0; i < size && delta != 0; ++i) {
      const int value = bytes[i] + delta;
      bytes[i] = static_cast<unsigned char>(value);
      delta = value < 0 ? -1 : value > 255 ? 1 : 0;
    }
  };
  switch (rng() % 6) {
    case 0:
      return add(1);
    case 1:
      return add(-1);
    case 2:
      bytes[rng() % size] ^= static_cast<unsigned char>(1u << (rng() % 8));
      return;
    case 3:
      std::memset(bytes, rng() % 2 == 0 ? 0 : 0xff, size);
      return;
    case 4:
      return add(static_cast<int>(rng() % 64) - 32);
    default:
      for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<unsigned char>(rng());
  }
}

class Mutations : public ::testing::Test {
 protected:
  // Perturbs one field of one struct at `offset` of the blob; true if the blob changed.
  void try_field(const Planned& planned, const FieldTable& table, size_t offset, size_t index,
                 const Field& field, std::mt19937_64& rng) {
    Bytes mutant = planned.bytes;
    auto* bytes = reinterpret_cast<unsigned char*>(mutant.data()) + offset + field.offset;
    perturb(bytes, field.size, rng);
    if (mutant == planned.bytes) return;
    ++tried_;
    if (std::string(table.name) != "header" || std::string(field.name) != "content_hash")
      rehash(mutant);
    if (fault(mutant, planned.forest).empty() &&
        !may_differ(table.name, field.name, planned, mutant, index)) {
      ADD_FAILURE() << table.name << " " << index << "." << field.name
                    << " was changed and nobody noticed";
    }
  }
  int tried_ = 0;
};

TEST_F(Mutations, FieldTablesAreComplete) {
  EXPECT_EQ(unnamed_bytes(header_fields()), 0u);
  for (const ArrayPlace& place : array_places(PlanHeader{}))
    EXPECT_EQ(unnamed_bytes(place.table), 0u) << place.table.name;
}

TEST_F(Mutations, OfTheHeaderAreNoticed) {
  std::mt19937_64 rng(1);
  const FieldTable table = header_fields();
  for (const Planned& planned : sample_plans())
    for (const Field& field : table.fields)
      for (int i = 0; i < 40; ++i) try_field(planned, table, 0, 0, field, rng);
  EXPECT_GT(tried_, 10000);
}

TEST_F(Mutations, OfEveryArrayAreNoticed) {
  std::mt19937_64 rng(2);
  for (const Planned& planned : sample_plans()) {
    for (const ArrayPlace& place : array_places(PlanView(planned.bytes.data()).header())) {
      if (place.count == 0) continue;
      for (const Field& field : place.table.fields) {
        for (int i = 0; i < 60; ++i) {
          const size_t index = rng() % place.count;
          try_field(planned, place.table, place.offset + index * place.table.size, index, field,
                    rng);
        }
      }
    }
  }
  EXPECT_GT(tried_, 20000);
}

// Two entries of an array change places. What is left is either wrong or the same plan in another order.
TEST_F(Mutations, SwappedEntriesAreNoticed) {
  std::mt19937_64 rng(3);
  const std::set<std::string> ordered = {"query_order", "rank_work", "item", "job", "split"};
  for (const Planned& planned : sample_plans()) {
    for (const ArrayPlace& place : array_places(PlanView(planned.bytes.data()).header())) {
      if (place.count < 2 || ordered.count(place.table.name) == 0) continue;
      for (int i = 0; i < 40; ++i) {
        Bytes mutant = planned.bytes;
        auto* array = reinterpret_cast<unsigned char*>(mutant.data()) + place.offset;
        const size_t a = rng() % place.count, b = rng() % place.count;
        std::swap_ranges(array + a * place.table.size, array + (a + 1) * place.table.size,
                         array + b * place.table.size);
        if (mutant == planned.bytes) continue;
        rehash(mutant);
        EXPECT_NE(fault(mutant, planned.forest), "")
            << place.table.name << " " << a << " and " << b << " were swapped and nobody noticed";
      }
    }
  }
}

TEST(ValidatePlan, SurvivesGarbage) {
  std::mt19937_64 rng(4);
  const std::vector<Planned> plans = sample_plans();
  for (int round = 0; round < 6000; ++round) {
    const Planned& planned = plans[rng() % plans.size()];
    Bytes mutant = planned.bytes;
    auto* bytes = reinterpret_cast<unsigned char*>(mutant.data());
    // Several places at once, so that one fault may hide another.
    const int count = 1 + static_cast<int>(rng() % 12);
    for (int i = 0; i < count; ++i) {
      const size_t size = size_t{1} << (rng() % 4);
      const size_t begin = round % 3 == 0 ? 0 : sizeof(PlanHeader);
      perturb(bytes + begin + (rng() % (mutant.size() * 8 - begin - 8)) / size * size, size, rng);
    }
    rehash(mutant);
    fault(mutant, planned.forest);
  }
  for (int round = 0; round < 200; ++round) {
    Bytes noise(rng() % 400);
    for (uint64_t& word : noise) word = rng();
    if (noise.size() >= sizeof(PlanHeader) / 8) {
      header_of(noise).magic = kPlanMagic;
      header_of(noise).version = kPlanVersion;
      header_of(noise).total_bytes = static_cast<uint32_t>(noise.size() * 8);
      rehash(noise);
    }
    EXPECT_NE(fault(noise, plans[0].forest), "");
  }
}

TEST(ValidatePlan, RefusesEveryTruncation) {
  const Planned planned = sample_plans()[1];
  const auto* bytes = reinterpret_cast<const unsigned char*>(planned.bytes.data());
  for (size_t size = 0; size < planned.bytes.size() * 8; size += 1 + size / 64) {
    EXPECT_THROW(validate_plan(bytes, size, planned.forest), InternalError) << size;
    // A header that admits it does not help.
    Bytes cut(planned.bytes.begin(), planned.bytes.begin() + static_cast<int64_t>(size / 8));
    if (cut.size() < sizeof(PlanHeader) / 8) continue;
    header_of(cut).total_bytes = static_cast<uint32_t>(cut.size() * 8);
    rehash(cut);
    EXPECT_NE(fault(cut, planned.forest), "") << size;
  }
  Bytes longer = planned.bytes;
  longer.insert(longer.end(), {0, 0});
  header_of(longer).total_bytes += 16;
  rehash(longer);
  EXPECT_NE(fault(longer, planned.forest), "");
}

TEST(ValidatePlan, RefusesAnotherForest) {
  const Planned planned = sample_plans()[0];
  PageRows rows = small_rows();
  rows.seq_lens[4] += 1;  // the same pages, one key more
  EXPECT_NE(fault(planned.bytes, table_forest(rows.batch())), "");
  rows = small_rows();
  rows.add(30);
  EXPECT_NE(fault(planned.bytes, table_forest(rows.batch())), "");
  EXPECT_NE(fault(planned.bytes, PrefixForest{}), "");
}

TEST(ValidatePlan, RefusesAMisalignedBlob) {
  const Planned planned = sample_plans()[0];
  std::vector<uint64_t> room(planned.bytes.size() + 1);
  auto* shifted = reinterpret_cast<unsigned char*>(room.data()) + 4;
  std::memcpy(shifted, planned.bytes.data(), planned.bytes.size() * 8);
  EXPECT_THROW(validate_plan(shifted, planned.bytes.size() * 8, planned.forest), InternalError);
}

// Changes the arrays through typed pointers and reports what the proof says.
std::string planted(const Planned& planned,
                    const std::function<bool(PlanHeader&, unsigned char*)>& change) {
  Bytes mutant = planned.bytes;
  auto* base = reinterpret_cast<unsigned char*>(mutant.data());
  EXPECT_TRUE(change(header_of(mutant), base)) << "nothing to change";
  rehash(mutant);
  return fault(mutant, planned.forest);
}

// A sample in which some item goes on from a partial.
Planned resuming_plan() {
  for (Planned& planned : sample_plans()) {
    const PlanView view(planned.bytes.data());
    const std::span items(view.items(), view.header().num_items);
    if (std::any_of(items.begin(), items.end(),
                    [](const WorkItem& item) { return item.init_slot != kNoSlot; }))
      return std::move(planned);
  }
  return {};
}

TEST(ValidatePlan, NamesTheFault) {
  const Planned planned = resuming_plan();
  ASSERT_FALSE(planned.bytes.empty());
  const auto items = [](PlanHeader& h, unsigned char* base) {
    return reinterpret_cast<WorkItem*>(base + h.items_offset);
  };
  EXPECT_THAT(planted(planned, [](PlanHeader& h, unsigned char*) { return h.magic = 7; }),
              HasSubstr("validate_plan: magic is wrong; must be CAPILLRY; do not run this plan"));
  EXPECT_THAT(planted(planned, [](PlanHeader& h, unsigned char*) { return h.version = 99; }),
              HasSubstr("version is 99; must be 1"));
  EXPECT_THAT(planted(planned,
                      [&](PlanHeader& h, unsigned char* base) {
                        for (uint32_t i = 0; i < h.num_items; ++i) {
                          if (items(h, base)[i].init_slot != kNoSlot) continue;
                          items(h, base)[i].init_slot = items(h, base)[i].dest_slot;
                          return true;
                        }
                        return false;
                      }),
              HasSubstr("which holds nothing"));
  EXPECT_THAT(planted(planned,
                      [&](PlanHeader& h, unsigned char* base) {
                        for (uint32_t i = 0; i < h.num_items; ++i) {
                          if (items(h, base)[i].init_slot == kNoSlot) continue;
                          items(h, base)[i].init_slot = kNoSlot;
                          return true;
                        }
                        return false;
                      }),
              HasSubstr("overwrites the partial in slot"));
  EXPECT_THAT(planted(planned,
                      [](PlanHeader& h, unsigned char* base) {
                        auto* jobs = reinterpret_cast<Job*>(base + h.jobs_offset);
                        auto* starts = reinterpret_cast<RankStart*>(base + kRankStartOffset);
                        for (uint32_t i = 0; i < h.num_jobs; ++i) jobs[i].needs_exchange ^= 1;
                        for (int32_t i = 0; i < h.num_clusters * h.cluster_size; ++i)
                          starts[i].job.needs_exchange ^=
                              starts[i].schedule_begin < starts[i].schedule_end;
                        return h.num_jobs > 0;
                      }),
              HasSubstr("needs_exchange"));
}

// A partial that is finished without what another stream holds: every array is in order, one key set is short.
TEST(ValidatePlan, RefusesARowFinishedTooEarly) {
  bool found = false;
  for (const Planned& planned : sample_plans()) {
    Bytes mutant = planned.bytes;
    PlanHeader& h = header_of(mutant);
    auto* items =
        reinterpret_cast<WorkItem*>(reinterpret_cast<char*>(mutant.data()) + h.items_offset);
    for (uint32_t i = 0; i < h.num_items; ++i) {
      if (items[i].destination != Destination::kSlot) continue;
      items[i].destination = Destination::kOutput;
      rehash(mutant);
      EXPECT_NE(fault(mutant, planned.forest), "") << "item " << i;
      items[i].destination = Destination::kSlot;
      found = true;
    }
  }
  EXPECT_TRUE(found);
}

// Merges of a rank's own slots: before the ranks meet, of this rank's partials, each used once, the sum left where
// the first of them was.
TEST(ValidatePlan, HoldsOwnSlotMergesToTheirRules) {
  const Planned planned = own_slot_plan();
  ASSERT_EQ(fault(planned.bytes, planned.forest), "");
  struct Arrays {
    RankWork* work;  // of rank 0, and where the CTA that begins with it has its copy
    RankStart* start;
    Merge* merges;
    Partial* partials;
    uint32_t local;  // rank 0's first own-slot merge
  };
  // Changes the arrays of rank 0 and gives what the proof says.
  const auto changed = [&](const std::function<void(const Arrays&)>& change) {
    return planted(planned, [&](PlanHeader& h, unsigned char* base) {
      Arrays a{reinterpret_cast<RankWork*>(base + h.rank_works_offset),
               reinterpret_cast<RankStart*>(base + kRankStartOffset),
               reinterpret_cast<Merge*>(base + h.merges_offset),
               reinterpret_cast<Partial*>(base + h.partials_offset), 0};
      a.local = a.work->merge_begin;
      if (a.merges[a.local].destination != Destination::kSlot) return false;
      EXPECT_GE(a.merges[a.local].num_partials, 2);
      change(a);
      a.start->work = *a.work;
      return true;
    });
  };
  const auto first = [](const Arrays& a) { return a.partials + a.merges[a.local].partial_begin; };
  // As if the rows were finished there, with the other ranks' keys missing.
  EXPECT_NE(changed([](const Arrays& a) { a.merges[a.local].destination = Destination::kOutput; }),
            "");
  // A peer's slots, before the ranks have met.
  EXPECT_THAT(changed([&](const Arrays& a) { first(a)[1].rank = 1; }), HasSubstr("rank"));
  // A partial that was never written; one twice; one left out.
  EXPECT_NE(changed([&](const Arrays& a) { first(a)[1].slot = 159; }), "");
  EXPECT_NE(changed([&](const Arrays& a) { first(a)[1] = first(a)[0]; }), "");
  EXPECT_NE(changed([](const Arrays& a) { a.merges[a.local].num_partials -= 1; }), "");
  // The sum goes to another slot than the one that the exchange reads.
  EXPECT_NE(changed([&](const Arrays& a) { std::swap(first(a)[0], first(a)[1]); }), "");
  // Fewer rows, or others.
  EXPECT_NE(changed([](const Arrays& a) { a.merges[a.local].num_rows -= 1; }), "");
  EXPECT_NE(changed([](const Arrays& a) { a.merges[a.local].row_begin += 1; }), "");
  // After the merge that needs it.
  EXPECT_NE(changed([](const Arrays& a) {
              ASSERT_GE(a.work->num_merges, 2u);
              std::swap(a.merges[a.local], a.merges[a.local + 1]);
            }),
            "");
  // Not at all.
  EXPECT_NE(changed([](const Arrays& a) {
              a.work->merge_begin += 1;
              a.work->num_merges -= 1;
            }),
            "");
  // A row finished by way of the workspace cannot be left in a slot.
  EXPECT_NE(changed([](const Arrays& a) { a.merges[a.local].split_part = 1; }), "");
}

TEST(ValidatePlan, ModesAreHeldToTheirWord) {
  const PrefixForest forest = parents_forest(level_tree("", {1, 16}, {512, 40}));
  const Planned exchanging = plan_of(forest, {8, 1, 128}, {Mode::kAuto, 4, 1});
  EXPECT_THAT(planted(exchanging,
                      [](PlanHeader& h, unsigned char*) {
                        h.mode = static_cast<uint32_t>(PlanMode::kSharedL2);
                        return true;
                      }),
              HasSubstr("shared-l2"));
  EXPECT_THAT(planted(exchanging,
                      [](PlanHeader& h, unsigned char*) {
                        h.mode = static_cast<uint32_t>(PlanMode::kFlat);
                        return true;
                      }),
              HasSubstr("as the plan is flat"));
}

TEST(ValidatePlan, IsQuickOnALargeBatch) {
  const PrefixForest forest = parents_forest(
      level_tree("", {1, 8, 16, 32, 64, 128, 1024}, {256, 128, 64, 32, 32, 32, 32}, 32));
  const Planned planned = plan_of(forest, {32, 8, 128});
  for (int i = 0; i < 20; ++i) EXPECT_EQ(fault(planned.bytes, planned.forest), "");
}

}  // namespace
}  // namespace capillary::testing
