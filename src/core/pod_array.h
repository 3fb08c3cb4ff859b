// SPDX-License-Identifier: MIT
// What the plan builder appends to by the hundred: an array that knows its size as a number. std::vector derives
// it from two pointers, which for structs of 20 or 24 bytes is a multiplication, several times an item.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>

namespace capillary {

template <class T>
class PodArray {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  void clear() { size_ = 0; }  // keeps the memory
  uint32_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T& operator[](size_t index) { return data_[index]; }
  const T& operator[](size_t index) const { return data_[index]; }
  T& back() { return data_[size_ - 1]; }
  T* data() { return data_.get(); }
  T* begin() { return data_.get(); }
  T* end() { return data_.get() + size_; }
  operator std::span<const T>() const { return {data_.get(), size_}; }
  void push_back(const T& value) {
    if (size_ == capacity_) grow();
    data_[size_++] = value;
  }
  T* append(uint32_t count) {  // whatever is there, to be written
    while (capacity_ - size_ < count) grow();
    size_ += count;
    return data_.get() + (size_ - count);
  }
  T& emplace_back() {  // all zero
    if (size_ == capacity_) grow();
    return data_[size_++] = T{};
  }

 private:
  [[gnu::noinline]] void grow() {
    capacity_ = std::max<uint32_t>(64, capacity_ * 2);
    auto larger = std::make_unique<T[]>(capacity_);
    std::copy_n(data_.get(), size_, larger.get());
    data_ = std::move(larger);
  }

  std::unique_ptr<T[]> data_;
  uint32_t size_ = 0, capacity_ = 0;
};

}  // namespace capillary
