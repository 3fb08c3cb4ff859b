// SPDX-License-Identifier: MIT
// Sorting and grouping of the short lists that forest building is made of.
// A key is (what to sort by, an index). Keys come with their indices ascending, so a stable sort by the upper
// half alone orders both. Depths and request indices differ in a byte or two: a byte-wise radix sort that
// skips the others beats comparison sorting from a few dozen keys on.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

namespace capillary {

inline uint64_t make_key(uint32_t upper, int32_t index) {
  return static_cast<uint64_t>(upper) << 32 | static_cast<uint32_t>(index);
}
inline uint32_t key_upper(uint64_t key) {
  return static_cast<uint32_t>(key >> 32);
}
inline int32_t key_index(uint64_t key) {
  return static_cast<int32_t>(static_cast<uint32_t>(key));
}

class KeySorter {
 public:
  // Sorts keys whose indices ascend.
  void sort(std::vector<uint64_t>& keys) {
    if (keys.size() <= kSmall) {
      insertion_sort(keys);
      return;
    }
    uint64_t differing = 0;
    bool ascending = true;
    for (size_t i = 1; i < keys.size(); ++i) {
      differing |= keys[i] ^ keys[0];
      ascending &= keys[i - 1] < keys[i];
    }
    if (ascending) return;
    scratch_.resize(keys.size());
    for (int shift = 32; shift < 64; shift += 8) {
      if ((differing >> shift & 0xff) == 0) continue;
      std::array<uint32_t, 256> next{};
      for (const uint64_t key : keys) ++next[key >> shift & 0xff];
      uint32_t begin = 0;
      for (uint32_t& n : next) {
        const uint32_t count = n;
        n = begin;
        begin += count;
      }
      for (const uint64_t key : keys) scratch_[next[key >> shift & 0xff]++] = key;
      keys.swap(scratch_);
    }
  }

 private:
  static constexpr size_t kSmall = 32;

  static void insertion_sort(std::vector<uint64_t>& keys) {
    for (size_t i = 1; i < keys.size(); ++i) {
      const uint64_t key = keys[i];
      size_t j = i;
      for (; j > 0 && keys[j - 1] > key; --j) keys[j] = keys[j - 1];
      keys[j] = key;
    }
  }

  std::vector<uint64_t> scratch_;
};

// Numbers equal page ids alike, in order of first appearance: open addressing, emptied for every list.
class IdGrouper {
 public:
  void start(size_t num_ids) {
    shift_ = 32 - 4;
    while ((size_t{1} << (32 - shift_)) < 2 * num_ids) --shift_;
    slots_.assign(size_t{1} << (32 - shift_), Slot{0, kFree});
  }

  // The number of the group of `id`, which is `next_group` where the id is met for the first time.
  int32_t group_of(int32_t id, int32_t next_group) {
    constexpr uint32_t kGoldenRatio = 0x9e3779b9u;
    const size_t mask = slots_.size() - 1;
    size_t i = static_cast<uint32_t>(id) * kGoldenRatio >> shift_;
    while (slots_[i].group != kFree && slots_[i].id != id) i = (i + 1) & mask;
    if (slots_[i].group == kFree) slots_[i] = {id, next_group};
    return slots_[i].group;
  }

 private:
  static constexpr int32_t kFree = -1;
  struct Slot {
    int32_t id;
    int32_t group;
  };
  int shift_ = 0;
  std::vector<Slot> slots_;
};

}  // namespace capillary
