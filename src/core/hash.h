// SPDX-License-Identifier: MIT
// FNV-1a over raw bytes and scalars: plan content and profile identity, not security.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace capillary {

class Fnv1a {
 public:
  void add_bytes(const void* data, size_t size) {
    const auto* bytes = static_cast<const unsigned char*>(data);
    for (size_t i = 0; i < size; ++i) value_ = (value_ ^ bytes[i]) * kPrime;
  }
  template <class T>
  void add(const T& scalar) {
    unsigned char bytes[sizeof(T)];
    std::memcpy(bytes, &scalar, sizeof(T));
    add_bytes(bytes, sizeof(T));
  }
  uint64_t value() const { return value_; }

 private:
  static constexpr uint64_t kPrime = 0x100000001b3ull;
  uint64_t value_ = 0xcbf29ce484222325ull;
};

// Four independent chains of 8-byte steps: a plan of 100 KB has to be hashed within a few microseconds.
inline uint64_t hash_words(const uint64_t* words, size_t count) {
  constexpr uint64_t kPrime = 0x9e3779b97f4a7c15ull;
  uint64_t lanes[4] = {0x243f6a8885a308d3ull, 0x13198a2e03707344ull, 0xa4093822299f31d0ull,
                       0x082efa98ec4e6c89ull};
  const auto step = [](uint64_t lane, uint64_t word) {
    lane = (lane ^ word) * kPrime;
    return lane ^ (lane >> 29);
  };
  size_t i = 0;
  for (; i + 4 <= count; i += 4)
    for (size_t lane = 0; lane < 4; ++lane) lanes[lane] = step(lanes[lane], words[i + lane]);
  for (; i < count; ++i) lanes[i % 4] = step(lanes[i % 4], words[i]);
  uint64_t hash = count;
  for (const uint64_t lane : lanes) hash = step(hash, lane);
  return hash;
}

}  // namespace capillary
