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
  // Eight bytes a step: what a plan of many kilobytes needs to stay within microseconds.
  void add_words(const uint64_t* words, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      value_ = (value_ ^ words[i]) * kPrime;
      value_ ^= value_ >> 29;
    }
  }
  uint64_t value() const { return value_; }

 private:
  static constexpr uint64_t kPrime = 0x100000001b3ull;
  uint64_t value_ = 0xcbf29ce484222325ull;
};

}  // namespace capillary
