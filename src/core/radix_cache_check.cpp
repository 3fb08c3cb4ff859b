// SPDX-License-Identifier: MIT
// RadixCache::check_invariants: recounts everything from the nodes and pages themselves.
#include <string>

#include "capillary/error.h"
#include "core/radix_cache_impl.h"

namespace capillary {

using radix::kNone;
using radix::kRoot;
using radix::Node;
using radix::PageState;

namespace {

void require(bool holds, const std::string& what, int64_t id) {
  if (!holds) {
    throw InternalError(five_parts("RadixCache::check_invariants", what, std::to_string(id), "hold",
                                   "report this as a bug with the calls that led here"));
  }
}

}  // namespace

void RadixCache::Impl::check_pages() const {
  enum : uint8_t { kUnseen, kInFreeList, kInNode };
  std::vector<uint8_t> seen(page_state_.size(), kUnseen);
  const auto see = [&](int32_t page, uint8_t where, PageState state) {
    require(owns(page), "page of the pool:", page);
    const auto i = static_cast<size_t>(page - first_page_);
    require(seen[i] == kUnseen, "one owner of page", page);
    seen[i] = where;
    require(page_state_[i] == state, "state of page", page);
  };
  for (const int32_t page : free_) see(page, kInFreeList, PageState::kFree);
  int64_t cached = 0;
  for (const Node& node : nodes_) {
    for (size_t i = node.begin_page; i < node.pages.size(); ++i) {
      see(node.pages[i], kInNode, PageState::kCached);
      ++cached;
    }
  }
  for (size_t i = 0; i < seen.size(); ++i) {
    require(seen[i] != kUnseen || page_state_[i] == PageState::kHandedOut, "owner of page",
            static_cast<int64_t>(i) + first_page_);
  }
  require(cached == cached_pages_, "count of cached pages:", cached);
}

void RadixCache::Impl::check_nodes() const {
  std::vector<int32_t> num_children(nodes_.size(), 0);
  std::vector<int64_t> child_locks(nodes_.size(), 0);
  size_t alive = 0;
  int64_t locked_pages = 0;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    if (!node.alive || i == kRoot) continue;
    const auto id = static_cast<int64_t>(i);
    ++alive;
    const auto parent = static_cast<size_t>(node.parent);
    require(parent < nodes_.size() && nodes_[parent].alive, "living parent of node", id);
    require(node.num_pages() > 0, "pages of node", id);
    require(node.tokens.size() == node.pages.size() * page_size_, "tokens of node", id);
    require(find_child(node.parent, tokens_of(node)) == id, "index entry of node", id);
    ++num_children[parent];
    child_locks[parent] += node.lock_count;
    if (node.lock_count > 0) locked_pages += static_cast<int64_t>(node.num_pages());
  }
  require(alive == children_.size(), "count of nodes:", static_cast<int64_t>(alive));
  require(locked_pages == locked_pages_, "count of locked pages:", locked_pages);
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (!nodes_[i].alive) continue;
    const auto id = static_cast<int64_t>(i);
    require(num_children[i] == nodes_[i].num_children, "child count of node", id);
    require(child_locks[i] + nodes_[i].own_locks == nodes_[i].lock_count, "lock count of node", id);
  }
}

void RadixCache::Impl::check_lru() const {
  std::vector<uint8_t> passed(nodes_.size(), 0);
  int32_t older = kNone;
  size_t count = 0;
  for (int32_t slot = lru_oldest_; slot != kNone; slot = at(slot).lru_newer) {
    const Node& node = at(slot);
    require(node.alive && node.lock_count == 0 && slot != kRoot, "LRU membership of node", slot);
    require(node.lru_older == older && passed[static_cast<size_t>(slot)] == 0, "LRU links of node",
            slot);
    require(node.parent == kRoot || passed[static_cast<size_t>(node.parent)] == 0,
            "LRU order of parent and node", slot);
    passed[static_cast<size_t>(slot)] = 1;
    older = slot;
    ++count;
  }
  require(lru_newest_ == older, "LRU end:", lru_newest_);
  size_t unlocked = 0;
  for (size_t i = 1; i < nodes_.size(); ++i) {
    if (nodes_[i].alive && nodes_[i].lock_count == 0) ++unlocked;
  }
  require(unlocked == count, "count of LRU entries:", static_cast<int64_t>(count));
}

void RadixCache::check_invariants() const {
  impl_->check_pages();
  impl_->check_nodes();
  impl_->check_lru();
}

}  // namespace capillary
