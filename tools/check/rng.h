// SPDX-License-Identifier: MIT
// A counter-based random stream that gives the same numbers on every platform, so that a seed printed on one
// machine reproduces on another (the standard distributions do not promise that).
#pragma once

#include <cstdint>

namespace capillary::check {

constexpr uint64_t mix64(uint64_t value) {
  value += 0x9e3779b97f4a7c15ull;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return value ^ (value >> 31);
}

class Rng {
 public:
  explicit Rng(uint64_t seed) : state_(mix64(seed ^ 0x5ca1ab1ef00dull)) {}

  uint64_t next() { return mix64(state_++); }
  // Uniform in [low, high].
  int32_t range(int32_t low, int32_t high) {
    const auto width = static_cast<uint64_t>(static_cast<int64_t>(high) - low + 1);
    return static_cast<int32_t>(low + static_cast<int64_t>(next() % width));
  }
  bool chance(double probability) {
    return static_cast<double>(next() >> 11) * 0x1p-53 < probability;
  }
  template <class Container>
  const auto& pick(const Container& choices) {
    return choices[static_cast<size_t>(next() % static_cast<uint64_t>(choices.size()))];
  }
  template <class Container>
  void shuffle(Container& items) {
    for (size_t i = items.size(); i > 1; --i) {
      const auto j = static_cast<size_t>(next() % i);
      std::swap(items[i - 1], items[j]);
    }
  }

 private:
  uint64_t state_;
};

}  // namespace capillary::check
