// SPDX-License-Identifier: MIT
// The table of check cases: the same list for `capillary check`, for the tests and for every backend.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "capillary/plan.h"
#include "check/batch.h"
#include "check/trees.h"

namespace capillary::check {

struct CheckCase {
  std::string name;
  ModelShape shape;
  int32_t page_size = 16;
  CacheLayout layout = CacheLayout::kNhd;
  ValuePattern values = ValuePattern::kNormal;
  PlanOptions options;
  // false: from the block table, which is also the page id array; true: from CSR, with a page list of its
  // own (the step must come out the same).
  bool from_csr = false;
  std::function<TreeSpec(uint64_t seed)> tree;
};

// Every named case; the same order and names in every version of a build.
const std::vector<CheckCase>& case_table();
// Everything about the case is drawn from the seed.
CheckCase random_case(uint64_t seed);
// A case of the table, or "random". Throws InvalidArgument.
CheckCase find_case(const std::string& name, uint64_t seed);

// "32/8 d128 bf16, page 16, nhd, normal, auto, cluster size 4"
std::string describe(const CheckCase& check_case);

// What the case runs on; seed places its pages (and shapes the tree of a random case).
HostBatch case_batch(const CheckCase& check_case, uint64_t seed);
// The forest of the batch; replaces the batch's page id array where the case wants a list.
PrefixForest case_forest(const CheckCase& check_case, HostBatch& batch);

}  // namespace capillary::check
