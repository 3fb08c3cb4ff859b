// SPDX-License-Identifier: MIT
// A fixed-size array of floats on cache line boundaries, zeroed; vectors of any width may load from it.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

namespace capillary::cpu {

class AlignedFloats {
 public:
  explicit AlignedFloats(int64_t count) {
    constexpr size_t kLine = 64;
    const size_t bytes = (static_cast<size_t>(count) * sizeof(float) + kLine) / kLine * kLine;
    data_.reset(static_cast<float*>(std::aligned_alloc(kLine, bytes)));
    if (!data_) throw std::bad_alloc();
    std::memset(data_.get(), 0, bytes);
  }
  float* data() { return data_.get(); }
  const float* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(float* memory) const { std::free(memory); }
  };
  std::unique_ptr<float[], Free> data_;
};

}  // namespace capillary::cpu
