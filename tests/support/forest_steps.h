// SPDX-License-Identifier: MIT
// A batch that lives: requests grow, roll back, fork, join, leave, are preempted and return with other pages,
// change rows. After every step it lays out a fenced block table and says where each request was before.
// Ids come from few values, so that appended pages meet their neighbours' often.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "capillary/prefix_forest.h"
#include "support/forest_fixtures.h"

namespace capillary::testing {

class StepBatch {
 public:
  StepBatch(int32_t page_size, uint32_t seed, int32_t id_range)
      : page_size_(page_size), id_range_(id_range), random_(seed) {}

  size_t size() const { return requests_.size(); }
  bool chance(int32_t one_in) { return random_() % static_cast<uint32_t>(one_in) == 0; }
  int32_t below(size_t n) { return static_cast<int32_t>(random_() % n); }

  void grow(int32_t r, int32_t tokens) {
    Request& request = at(r);
    request.len += tokens;
    while (static_cast<int64_t>(request.ids.size()) * page_size_ < request.len) {
      request.ids.push_back(new_id());
    }
  }
  void grow_all(int32_t tokens) {
    for (size_t r = 0; r < size(); ++r) grow(static_cast<int32_t>(r), tokens);
  }
  // Forgets tokens, as after rejected drafts; pages given back are written anew when it grows again.
  void roll_back(int32_t r, int32_t tokens) {
    Request& request = at(r);
    request.len = std::max(0, request.len - tokens);
    request.ids.resize(static_cast<size_t>(pages(request.len)));
  }
  // Copy on write of a page that is still being filled.
  void replace_partial_page(int32_t r) {
    Request& request = at(r);
    if (request.len % page_size_ != 0) request.ids.back() = new_id();
  }
  void join(int32_t len) {
    requests_.push_back({{}, 0, -1});
    grow(static_cast<int32_t>(size()) - 1, len);
  }
  // A copy of the first `len` tokens: whole pages are shared, the page in which it forks is copied.
  void fork(int32_t r, int32_t len) {
    Request copy{at(r).ids, std::min(len, at(r).len), -1};
    copy.ids.resize(static_cast<size_t>(pages(copy.len)));
    if (copy.len % page_size_ != 0) copy.ids.back() = new_id();
    requests_.push_back(std::move(copy));
  }
  void leave(int32_t r) { requests_.erase(requests_.begin() + r); }
  void leave_to_last(int32_t r) {
    std::swap(at(r), requests_.back());
    requests_.pop_back();
  }
  void preempt_and_return(int32_t r) {
    const int32_t len = at(r).len;
    at(r) = {{}, 0, -1};
    grow(r, len);
  }
  void shuffle_rows() { std::shuffle(requests_.begin(), requests_.end(), random_); }

  // Page ids outside the used entries are wild; the stride changes now and then.
  void lay_out() {
    batch_.page_size = page_size_;
    batch_.seq_lens.clear();
    previous_row_.clear();
    int64_t columns = 1;
    for (const Request& request : requests_) {
      columns = std::max(columns, static_cast<int64_t>(request.ids.size()));
    }
    if (columns > batch_.num_columns || chance(50)) batch_.num_columns = columns + below(4);
    if (batch_.row_stride < batch_.num_columns || chance(50)) {
      batch_.row_stride = batch_.num_columns + below(4);
    }
    batch_.table.resize(size() * static_cast<size_t>(batch_.row_stride));
    for (int32_t& id : batch_.table) id = wild_id(random_);
    for (size_t r = 0; r < size(); ++r) {
      Request& request = requests_[r];
      std::copy(request.ids.begin(), request.ids.end(),
                batch_.table.begin() + static_cast<int64_t>(r) * batch_.row_stride);
      batch_.seq_lens.push_back(request.len);
      previous_row_.push_back(request.row);
      request.row = static_cast<int32_t>(r);
    }
  }
  const Batch& batch() const { return batch_; }
  const std::vector<int32_t>& previous_row() const { return previous_row_; }

  // One random step; `lively` steps restructure more often than real ones do.
  void random_step(size_t most_requests, int32_t longest) {
    if (!chance(4)) {
      for (size_t r = 0; r < size(); ++r) {
        if (at(static_cast<int32_t>(r)).len < longest && !chance(10)) {
          grow(static_cast<int32_t>(r),
               chance(10) ? 1 + below(3 * static_cast<size_t>(page_size_)) : 1);
        }
      }
    }
    for (int32_t events = chance(2) ? 1 + below(3) : 0; events > 0; --events) {
      if (size() == 0 || (size() < most_requests && chance(3))) {
        if (size() == 0 || chance(2)) {
          join(chance(8) ? 0 : below(static_cast<size_t>(longest) / 2));
        } else {
          const int32_t r = below(size());
          fork(r, chance(2) ? at(r).len : below(static_cast<size_t>(at(r).len) + 1));
        }
        continue;
      }
      const int32_t r = below(size());
      switch (below(7)) {
        case 0:
          leave(r);
          break;
        case 1:
          leave_to_last(r);
          break;
        case 2:
          preempt_and_return(r);
          break;
        case 3:
          roll_back(r, 1 + below(2 * static_cast<size_t>(page_size_)));
          break;
        case 4:
          replace_partial_page(r);
          break;
        case 5:
          if (chance(4)) shuffle_rows();
          break;
        default:
          if (at(r).len >= longest) leave(r);
          break;
      }
    }
  }

 private:
  struct Request {
    std::vector<int32_t> ids;
    int32_t len;
    int32_t row;  // in the layout before, -1: new, or with other pages
  };

  Request& at(int32_t r) { return requests_[static_cast<size_t>(r)]; }
  int64_t pages(int32_t len) const { return (int64_t{len} + page_size_ - 1) / page_size_; }
  int32_t new_id() { return below(static_cast<size_t>(id_range_)); }

  int32_t page_size_;
  int32_t id_range_;
  std::mt19937 random_;
  std::vector<Request> requests_;
  std::vector<int32_t> previous_row_;
  Batch batch_;
};

}  // namespace capillary::testing
