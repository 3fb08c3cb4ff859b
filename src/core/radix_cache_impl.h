// SPDX-License-Identifier: MIT
// The inside of RadixCache, shared by radix_cache.cpp (what it does) and radix_cache_check.cpp (the
// proof that it still holds together). Invariants:
//   - a page is free, handed out, or owned by exactly one node;
//   - siblings differ in their first page, so (parent, first page) names a child: one hash index;
//   - a node's lock count is its own locks plus its children's: ancestors of a locked node are
//   locked;
//   - the LRU list holds the unlocked nodes in order of last use, every node before its parent: its
//     head is always a leaf, and eviction never searches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "capillary/radix_cache.h"

namespace capillary {
namespace radix {

inline constexpr int32_t kNone = -1;
inline constexpr int32_t kRoot = 0;

enum class PageState : uint8_t {
  kFree,
  kHandedOut,
  kCached,
  kSeen,  // only inside one call: handed out and already met in its arguments
};

struct Node {
  int32_t parent = kNone;
  uint32_t generation = 0;
  bool alive = false;
  int32_t num_children = 0;
  int64_t lock_count = 0;  // own locks + lock counts of the children
  int64_t own_locks = 0;
  int32_t lru_older = kNone;
  int32_t lru_newer = kNone;
  uint64_t index_key = 0;
  // A split leaves the given-away front in place and moves begin_page past it; see compact().
  size_t begin_page = 0;
  std::vector<int32_t> tokens;
  std::vector<int32_t> pages;

  size_t num_pages() const { return pages.size() - begin_page; }
};

}  // namespace radix

struct RadixCache::Impl {
  Impl(int64_t num_pages, int32_t page_size, int32_t first_page)
      : page_size_(static_cast<size_t>(page_size)), first_page_(first_page) {
    page_state_.assign(static_cast<size_t>(num_pages), radix::PageState::kFree);
    free_.reserve(page_state_.size());
    for (int64_t i = num_pages - 1; i >= 0; --i) {
      free_.push_back(static_cast<int32_t>(first_page + i));
    }
    nodes_.emplace_back();
    nodes_[radix::kRoot].alive = true;
  }

  radix::Node& at(int32_t slot) { return nodes_[static_cast<size_t>(slot)]; }
  const radix::Node& at(int32_t slot) const { return nodes_[static_cast<size_t>(slot)]; }
  radix::PageState& state(int32_t page) {
    return page_state_[static_cast<size_t>(page - first_page_)];
  }
  bool owns(int32_t page) const {
    return page >= first_page_ &&
           static_cast<size_t>(static_cast<int64_t>(page) - first_page_) < page_state_.size();
  }
  const int32_t* tokens_of(const radix::Node& node) const {
    return node.tokens.data() + node.begin_page * page_size_;
  }
  const int32_t* pages_of(const radix::Node& node) const {
    return node.pages.data() + node.begin_page;
  }

  NodeId handle(int32_t slot) const {
    return static_cast<NodeId>((static_cast<uint64_t>(at(slot).generation) << 32) |
                               static_cast<uint32_t>(slot));
  }
  int32_t slot_of(NodeId id, const char* function) const;

  uint64_t key_of(int32_t parent, const int32_t* page_tokens) const;
  int32_t find_child(int32_t parent, const int32_t* page_tokens) const;
  void index_child(int32_t slot);
  void unindex_child(int32_t slot);

  int32_t new_node(int32_t parent);
  void drop_node(int32_t slot);
  int32_t split(int32_t slot, size_t front_pages);
  void compact(radix::Node& node);

  void lru_remove(int32_t slot);
  void lru_append(int32_t slot);
  void touch(int32_t slot);

  struct Walk {
    int32_t slot = radix::kRoot;
    size_t pages_in_node = 0;  // how much of `slot` matched
    std::vector<int32_t> page_ids;
  };
  Walk walk(std::span<const int32_t> tokens) const;
  int32_t settle(const Walk& walk) {
    return walk.slot != radix::kRoot && walk.pages_in_node < at(walk.slot).num_pages()
               ? split(walk.slot, walk.pages_in_node)
               : walk.slot;
  }

  void release_page(int32_t page) {
    state(page) = radix::PageState::kFree;
    free_.push_back(page);
  }
  void check_given_pages(std::span<const int32_t> page_ids, const std::vector<int32_t>& tree_pages);
  int64_t evict(int64_t num_pages);
  int64_t evictable_pages() const { return cached_pages_ - locked_pages_; }

  void check_pages() const;
  void check_nodes() const;
  void check_lru() const;

  size_t page_size_;
  int32_t first_page_;
  std::vector<radix::PageState> page_state_;
  std::vector<int32_t> free_;  // a stack
  std::vector<radix::Node> nodes_;
  std::vector<int32_t> free_slots_;
  std::unordered_multimap<uint64_t, int32_t> children_;
  int32_t lru_oldest_ = radix::kNone;
  int32_t lru_newest_ = radix::kNone;
  int64_t cached_pages_ = 0;
  int64_t locked_pages_ = 0;
  RadixCacheStats counters_;  // the cumulative fields only
};

}  // namespace capillary
