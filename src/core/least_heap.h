// SPDX-License-Identifier: MIT
// A heap with the least at the front, as std::make_heap makes it with std::greater, whose least grows.
#pragma once

#include <cstddef>
#include <vector>

namespace capillary {

// The least becomes `value`, which is not less: half of the work of pop_heap and push_heap.
template <class T, class Greater>
void replace_least(std::vector<T>* heap, const T& value, const Greater& greater) {
  T* const all = heap->data();
  const size_t size = heap->size();
  size_t hole = 0;
  for (size_t child = 1; child < size; child = 2 * hole + 1) {
    if (child + 1 < size && greater(all[child], all[child + 1])) ++child;
    if (!greater(value, all[child])) break;
    all[hole] = all[child];
    hole = child;
  }
  all[hole] = value;
}

}  // namespace capillary
