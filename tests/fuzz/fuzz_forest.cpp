// SPDX-License-Identifier: MIT
// Fuzzing of everything that builds a forest. The input's first byte picks a mode:
//   block table  arbitrary ids and lengths in a table that ends with its last used entry; what is accepted must
//                be the forest that the same pages give as CSR, and as a tracker's after growing into it
//   CSR          arbitrary arrays, mostly refused; what is accepted must concatenate to its own requests
// Arrays have memory of their exact size, so that an address sanitizer sees every read outside.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "capillary/error.h"
#include "capillary/prefix_forest.h"
#include "support/forest_compare.h"
#include "support/forest_fixtures.h"

namespace {

using capillary::BlockTableView;
using capillary::ForestNode;
using capillary::ForestTracker;
using capillary::InvalidArgument;
using capillary::PrefixForest;

class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  // Zeros after the end.
  int32_t byte() {
    if (size_ == 0) return 0;
    --size_;
    return *data_++;
  }
  int32_t below(int32_t n) { return byte() % n; }
  // Small values, now and then one from the ends of the range.
  int32_t number() {
    const int32_t value = byte();
    if (value < 240) return value % 16;
    constexpr int32_t kRare[] = {
        -1,  -2,  INT32_MIN, INT32_MAX, INT32_MAX - 1, 1 << 30,   1 << 16, 255,
        256, -16, 64,        100,       1073741823,    536870912, 17,      31};
    return kRare[value - 240];
  }
  std::vector<int32_t> numbers(int32_t count) {
    std::vector<int32_t> values;
    values.reserve(static_cast<size_t>(count));
    for (int32_t i = 0; i < count; ++i) values.push_back(number());
    return values;
  }

 private:
  const uint8_t* data_;
  size_t size_;
};

void require(bool condition) {
  if (!condition) std::abort();
}

// Nodes, leaf order and requests fit together.
void check_structure(const PrefixForest& forest) {
  const int32_t num_nodes = static_cast<int32_t>(forest.nodes().size());
  for (int32_t i = 0; i < num_nodes; ++i) {
    const ForestNode& node = forest.nodes()[static_cast<size_t>(i)];
    require(node.parent >= -1 && node.parent < i);
    require(node.num_tokens > 0 && node.token_begin >= 0);
    require(node.request_begin >= 0 && node.request_begin < node.request_end);
    require(node.request_end <= forest.num_requests());
    require(node.subtree_end > i && node.subtree_end <= num_nodes);
  }
  for (size_t position = 0; position < forest.request_node().size(); ++position) {
    int32_t end = forest.seq_lens()[position];
    for (int32_t i = forest.request_node()[position]; i >= 0;) {
      const ForestNode& node = forest.nodes()[static_cast<size_t>(i)];
      require(node.token_begin + node.num_tokens == end);
      require(node.request_begin <= static_cast<int32_t>(position));
      require(node.request_end > static_cast<int32_t>(position));
      end = node.token_begin;
      i = node.parent;
    }
    require(end == 0);
  }
}

void fuzz_table(Input& input) {
  capillary::testing::Batch batch;
  batch.page_size = input.below(5);
  const int32_t num_requests = input.below(12);
  batch.num_columns = input.below(9);
  batch.row_stride = batch.num_columns + input.below(3);
  for (int32_t r = 0; r < num_requests; ++r) {
    batch.seq_lens.push_back(input.byte() < 250 ? input.below(40) : input.number());
  }
  int64_t size = 0;
  if (num_requests > 0 && batch.page_size > 0) {
    // The last row may end with its length.
    const int64_t last = (int64_t{batch.seq_lens.back()} + batch.page_size - 1) / batch.page_size;
    size = (num_requests - 1) * batch.row_stride + std::clamp<int64_t>(last, 0, batch.num_columns);
  }
  batch.table.reserve(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) {
    const int32_t value = input.byte();
    batch.table.push_back(value < 250 ? value % 4 : input.number());
  }
  try {
    const auto forest =
        PrefixForest::from_block_table(batch.view(), batch.seq_lens, batch.page_size);
    check_structure(forest);
    check_structure(PrefixForest::flat(batch.view(), batch.seq_lens, batch.page_size));
    const PrefixForest chains = capillary::testing::make_chains(batch).build(batch.page_size);
    require(capillary::testing::node_difference(forest.nodes(), chains.nodes(), false).empty());
    ForestTracker tracker(batch.page_size);
    std::vector<int32_t> shorter = batch.seq_lens;
    for (int32_t& len : shorter) len = std::max(0, len - input.below(8));
    tracker.update(batch.view(), shorter);
    tracker.update(batch.view(), batch.seq_lens);
    require(capillary::testing::difference(tracker.forest(), forest).empty());
  } catch (const InvalidArgument&) {
    // Refused is fine; anything else is not caught.
  }
}

void fuzz_csr(Input& input) {
  const int32_t num_nodes = input.below(12);
  const int32_t page_size = input.number();
  const std::vector<int32_t> num_tokens = input.numbers(num_nodes);
  std::vector<int32_t> parent;
  std::vector<int32_t> indptr = {0};
  for (int32_t i = 0; i < num_nodes; ++i) {
    // Plausible most of the time, or everything would be refused for the same reason.
    const int32_t kind = input.byte();
    parent.push_back(kind < 240 ? kind % (i + 1) - 1 : input.number());
    const int32_t tokens = num_tokens[static_cast<size_t>(i)];
    const int64_t pages = page_size < 1 ? 0 : (int64_t{tokens} + page_size - 1) / page_size;
    indptr.push_back(input.byte() < 250 && pages >= 0 && pages < 64
                         ? indptr.back() + static_cast<int32_t>(pages)
                         : input.number());
    if (indptr.back() > 4096) indptr.back() = 4096;
  }
  std::vector<int32_t> page_ids;
  const int32_t num_ids = std::max(0, indptr.back());
  page_ids.reserve(static_cast<size_t>(num_ids));
  for (int32_t i = 0; i < num_ids; ++i) page_ids.push_back(input.byte() % 4);
  const int32_t num_requests = input.below(9);
  std::vector<int32_t> request_node;
  for (int32_t r = 0; r < num_requests; ++r) {
    const int32_t kind = input.byte();
    request_node.push_back(kind < 250 ? kind % (num_nodes + 1) - 1 : input.number());
  }
  try {
    check_structure(
        PrefixForest::from_csr(parent, num_tokens, indptr, page_ids, request_node, page_size));
  } catch (const InvalidArgument&) {
    // Refused is fine; anything else is not caught.
  }
  try {
    int64_t total = 0;
    for (const int32_t tokens : num_tokens) total += std::max(tokens, 0);
    if (total < 100000) check_structure(PrefixForest::from_parents(parent, num_tokens, page_size));
  } catch (const InvalidArgument&) {
    // As above.
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  if (input.byte() % 2 == 0) {
    fuzz_table(input);
  } else {
    fuzz_csr(input);
  }
  return 0;
}
