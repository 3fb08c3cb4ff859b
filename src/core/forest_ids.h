// SPDX-License-Identifier: MIT
// The inner loops over page ids. Written in blocks without branches inside, so that a compiler
// vectorises them for any target; everything that reads a block table goes through these.
#pragma once

#include <cstdint>
#include <cstring>

namespace capillary {

inline int64_t num_pages(int64_t num_tokens, int64_t page_size) {
  return (num_tokens + page_size - 1) / page_size;
}

// Length of the common prefix of a[0, count) and b[0, count). memcmp is vectorised for the processor at hand
// whatever this is compiled for: long blocks while all agrees, which is most of the way, then short ones.
inline int64_t common_ids(const int32_t* a, const int32_t* b, int64_t count) {
  constexpr int64_t kLong = 64;
  constexpr int64_t kShort = 8;
  int64_t i = 0;
  while (i + kLong <= count && std::memcmp(a + i, b + i, kLong * sizeof(int32_t)) == 0) i += kLong;
  while (i + kShort <= count && std::memcmp(a + i, b + i, kShort * sizeof(int32_t)) == 0) {
    i += kShort;
  }
  while (i < count && a[i] == b[i]) ++i;
  return i;
}

inline bool any_negative(const int32_t* ids, int64_t count) {
  constexpr int64_t kBlock = 16;
  int32_t signs = 0;
  int64_t i = 0;
  for (; i + kBlock <= count; i += kBlock) {
    for (int64_t j = 0; j < kBlock; ++j) signs |= ids[i + j];
  }
  for (; i < count; ++i) signs |= ids[i];
  return signs < 0;
}

}  // namespace capillary
