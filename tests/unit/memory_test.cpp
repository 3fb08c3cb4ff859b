// SPDX-License-Identifier: MIT
// Host memory is linear in pages: twice the pages take at most twice the bytes, and a page takes no more than
// its tokens' ids and a few words.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "support/host_memory.h"

namespace capillary {
namespace {

using testing::peak_bytes_of;

// Each entry for twice the size of the one before. 2.1: what grows by doubling is rounded up.
void expect_linear(const std::vector<int64_t>& bytes) {
  for (size_t i = 1; i < bytes.size(); ++i) {
    EXPECT_LE(static_cast<double>(bytes[i]), 2.1 * static_cast<double>(bytes[i - 1])) << i;
  }
}

TEST(Memory, RadixCacheIsLinearInPages) {
  for (const int32_t page_size : {1, 16, 64}) {
    for (const int64_t pages_each : {4, 256}) {
      SCOPED_TRACE(::testing::Message()
                   << page_size << " tokens a page, " << pages_each << " pages a request");
      std::vector<int64_t> all;
      for (int64_t num_pages = 4096; num_pages <= 65536; num_pages *= 2) {
        const int64_t bytes =
            peak_bytes_of([&] { testing::fill_radix_cache(num_pages, pages_each, page_size); });
        // A token's id and a page's; a node for every two pages, where requests are that short.
        const int64_t page_bytes = int64_t{page_size} * 4 + 4;
        EXPECT_LE(bytes, num_pages * (2 * page_bytes + (pages_each == 4 ? 240 : 40)));
        EXPECT_GE(bytes, num_pages * page_bytes);
        all.push_back(bytes);
      }
      expect_linear(all);
    }
  }
}

TEST(Memory, ForestAndPlanGrowLessThanTheBlockTable) {
  std::vector<int64_t> all;
  for (int32_t pages_each = 64; pages_each <= 2048; pages_each *= 2) {
    const testing::HalfShared batch(256, pages_each, 16);
    const int64_t bytes = peak_bytes_of([&] { testing::plan_step(batch); });
    // Neither copies page ids; below some size the batch's requests are what takes the memory.
    EXPECT_LE(bytes, std::max<int64_t>(int64_t{4} << 20, static_cast<int64_t>(batch.table.size())));
    all.push_back(bytes);
  }
  expect_linear(all);
}

TEST(Memory, ForestAndPlanAreLinearInRequests) {
  std::vector<int64_t> all;
  for (int32_t num_requests = 128; num_requests <= 8192; num_requests *= 2) {
    const testing::HalfShared batch(num_requests, 32, 16);
    const int64_t bytes = peak_bytes_of([&] { testing::plan_step(batch); });
    all.push_back(bytes);
  }
  expect_linear(all);
}

}  // namespace
}  // namespace capillary
