// SPDX-License-Identifier: MIT
// Thousands of random batches, small enough that every corner comes up, against the forest by definition; the
// same batch through every source.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "capillary/prefix_forest.h"
#include "support/forest_compare.h"
#include "support/forest_fixtures.h"
#include "support/forest_reference.h"

namespace capillary::testing {
namespace {

// Rows copy a random part of an earlier row and go on with ids from few values; lengths favour page edges;
// everything past a row's end is wild.
Batch random_batch(std::mt19937& random, int32_t most_requests, int32_t most_columns) {
  const auto below = [&random](int64_t n) {
    return static_cast<int32_t>(random() % static_cast<uint64_t>(n));
  };
  Batch batch;
  batch.page_size = 1 + below(5);
  batch.num_columns = 1 + below(most_columns);
  batch.row_stride = batch.num_columns + below(4);
  const int32_t num_requests = below(most_requests + 1);
  const int32_t id_range = 1 + below(4);
  batch.table.resize(static_cast<size_t>(num_requests * batch.row_stride));
  for (int32_t& id : batch.table) id = wild_id(random);
  for (int32_t r = 0; r < num_requests; ++r) {
    const int64_t most_tokens = batch.num_columns * batch.page_size;
    int32_t len = below(6) == 0 ? 0 : below(most_tokens + 1);
    if (below(3) == 0) len -= len % batch.page_size;
    const int32_t from = r == 0 ? 0 : below(r);
    const int64_t from_len = r == 0 ? 0 : batch.seq_lens[static_cast<size_t>(from)];
    const int64_t copied = std::min<int64_t>(below(batch.num_columns + 1),
                                             (from_len + batch.page_size - 1) / batch.page_size);
    for (int64_t page = 0; page * batch.page_size < len; ++page) {
      batch.table[static_cast<size_t>(r * batch.row_stride + page)] =
          page < copied ? batch.table[static_cast<size_t>(from * batch.row_stride + page)]
                        : below(id_range);
    }
    batch.seq_lens.push_back(len);
  }
  return batch;
}

void compare_all_sources(const Batch& batch, std::mt19937& random) {
  const BlockTableView view = batch.view();
  const ReferenceForest expected = reference_forest(view, batch.seq_lens, batch.page_size);
  const int32_t p = batch.page_size;
  ASSERT_EQ("",
            difference(PrefixForest::from_block_table(view, batch.seq_lens, p), expected, view));
  ASSERT_EQ("", difference(PrefixForest::flat(view, batch.seq_lens, p),
                           reference_flat(view, batch.seq_lens, p), view));
  ASSERT_EQ("", difference(make_csr(expected, p, random).build(p), expected, view));
  ASSERT_EQ("", difference(make_chains(batch).build(p), expected, view));
  ASSERT_EQ("", difference(make_levels(expected).build(p), expected, view));
}

TEST(PrefixForestRandom, SmallBatches) {
  for (uint32_t seed = 0; seed < 6000; ++seed) {
    std::mt19937 random(seed);
    const Batch batch = random_batch(random, 9, 7);
    ASSERT_NO_FATAL_FAILURE(compare_all_sources(batch, random)) << "seed " << seed;
  }
}

TEST(PrefixForestRandom, LargeBatches) {
  for (uint32_t seed = 0; seed < 120; ++seed) {
    std::mt19937 random(seed);
    const Batch batch = random_batch(random, 150, 120);
    ASSERT_NO_FATAL_FAILURE(compare_all_sources(batch, random)) << "seed " << seed;
  }
}

// Shapes only: the parent array's forest is that of the block table with the same tree.
TEST(PrefixForestRandom, ParentArrays) {
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    std::mt19937 random(seed);
    Fixture fixture{"random", static_cast<int32_t>(1 + random() % 6), {}, {}};
    const auto num_nodes = static_cast<int32_t>(1 + random() % 20);
    for (int32_t i = 0; i < num_nodes; ++i) {
      const auto n = static_cast<uint32_t>(i) + 1;
      fixture.parent.push_back(static_cast<int32_t>(random() % n) - 1);
      fixture.num_tokens.push_back(static_cast<int32_t>(random() % 14));
    }
    const Batch batch = make_batch(fixture, seed);
    const ReferenceForest expected =
        reference_forest(batch.view(), batch.seq_lens, batch.page_size);
    const PrefixForest forest =
        PrefixForest::from_parents(fixture.parent, fixture.num_tokens, fixture.page_size);
    ASSERT_EQ("", node_difference(forest.nodes(), expected.nodes, false)) << "seed " << seed;
    ASSERT_TRUE(std::equal(forest.leaf_order().begin(), forest.leaf_order().end(),
                           expected.leaf_order.begin(), expected.leaf_order.end()))
        << "seed " << seed;
    for (size_t i = 0; i < forest.page_ids().size(); ++i) {
      ASSERT_EQ(forest.page_ids()[i], static_cast<int32_t>(i)) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace capillary::testing
