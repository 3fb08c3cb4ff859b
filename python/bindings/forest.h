// SPDX-License-Identifier: MIT
// A forest with what its page offsets point into: the planner has to hold the caller's table against it.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

#include "array_argument.h"
#include "capillary/prefix_forest.h"

namespace capillary::python {

struct Forest {
  PrefixForest forest;
  int64_t row_stride = 0;  // of the block table, in elements; unused where the forest owns its ids
};

// The block table and lengths of a batch in host memory. Arrays that are there already are used in place; those on
// a device are copied, which waits for `stream`.
class HostBatch {
 public:
  HostBatch(const char* function, nb::handle block_table, nb::handle seq_lens, nb::handle stream);

  const BlockTableView& table() const { return table_; }
  std::span<const int32_t> seq_lens() const { return seq_lens_; }

 private:
  ArrayArgument table_argument_;
  ArrayArgument seq_lens_argument_;
  std::vector<int32_t> table_copy_;
  std::vector<int32_t> seq_lens_copy_;
  BlockTableView table_;
  std::span<const int32_t> seq_lens_;
};

}  // namespace capillary::python
