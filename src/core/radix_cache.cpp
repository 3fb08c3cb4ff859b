// SPDX-License-Identifier: MIT
// What RadixCache does. Every operation costs O(pages matched or handed over), amortised;
// radix_cache_impl.h names the invariants each one keeps. Arguments are checked before anything
// changes.
#include "capillary/radix_cache.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>
#include <utility>

#include "capillary/error.h"
#include "core/radix_cache_impl.h"

namespace capillary {

using radix::kNone;
using radix::kRoot;
using radix::Node;
using radix::PageState;

namespace {

std::string page_text(int32_t page) {
  return "has page " + std::to_string(page);
}

}  // namespace

int32_t RadixCache::Impl::slot_of(NodeId id, const char* function) const {
  const auto bits = static_cast<uint64_t>(id);
  const auto slot = static_cast<uint32_t>(bits);
  const auto generation = static_cast<uint32_t>(bits >> 32);
  if (slot >= nodes_.size() || !nodes_[slot].alive || nodes_[slot].generation != generation) {
    throw InvalidArgument(five_parts(function, "node", "is " + std::to_string(id),
                                     "be the handle of a node that the cache still holds",
                                     "lock a node before anything can evict it"));
  }
  return static_cast<int32_t>(slot);
}

uint64_t RadixCache::Impl::key_of(int32_t parent, const int32_t* page_tokens) const {
  uint64_t hash = 0x9e3779b97f4a7c15ull ^ static_cast<uint64_t>(handle(parent));
  for (size_t i = 0; i < page_size_; ++i) {
    hash = (hash ^ static_cast<uint32_t>(page_tokens[i])) * 0xff51afd7ed558ccdull;
    hash ^= hash >> 32;
  }
  return hash;
}

int32_t RadixCache::Impl::find_child(int32_t parent, const int32_t* page_tokens) const {
  const auto [begin, end] = children_.equal_range(key_of(parent, page_tokens));
  for (auto it = begin; it != end; ++it) {
    const Node& node = at(it->second);
    if (node.parent == parent &&
        std::equal(page_tokens, page_tokens + page_size_, tokens_of(node))) {
      return it->second;
    }
  }
  return kNone;
}

void RadixCache::Impl::index_child(int32_t slot) {
  Node& node = at(slot);
  node.index_key = key_of(node.parent, tokens_of(node));
  children_.emplace(node.index_key, slot);
}

void RadixCache::Impl::unindex_child(int32_t slot) {
  const auto [begin, end] = children_.equal_range(at(slot).index_key);
  children_.erase(std::find_if(begin, end, [&](const auto& e) { return e.second == slot; }));
}

int32_t RadixCache::Impl::new_node(int32_t parent) {
  int32_t slot;
  if (free_slots_.empty()) {
    slot = static_cast<int32_t>(nodes_.size());
    nodes_.emplace_back();
  } else {
    slot = free_slots_.back();
    free_slots_.pop_back();
  }
  Node& node = at(slot);
  node.alive = true;
  node.parent = parent;
  ++at(parent).num_children;
  return slot;
}

void RadixCache::Impl::drop_node(int32_t slot) {
  Node& node = at(slot);
  unindex_child(slot);
  lru_remove(slot);
  --at(node.parent).num_children;
  const uint32_t generation = node.generation + 1;
  node = Node{};
  node.generation = generation;
  // A slot whose generations ran out retires, so that a stale handle never names a new node.
  if (generation != std::numeric_limits<uint32_t>::max() / 2) free_slots_.push_back(slot);
}

// A new node takes the first pages; `slot` keeps the rest, so its handle and locks still mean the
// deeper end.
int32_t RadixCache::Impl::split(int32_t slot, size_t front_pages) {
  unindex_child(slot);
  const int32_t front = new_node(at(slot).parent);
  Node& back = at(slot);
  Node& upper = at(front);
  const int32_t* tokens = tokens_of(back);
  const int32_t* pages = pages_of(back);
  upper.tokens.assign(tokens, tokens + front_pages * page_size_);
  upper.pages.assign(pages, pages + front_pages);
  upper.lock_count = back.lock_count;
  upper.num_children = 1;
  --at(back.parent).num_children;
  back.parent = front;
  back.begin_page += front_pages;
  compact(back);
  index_child(front);
  index_child(slot);
  if (upper.lock_count == 0) lru_append(front);  // whoever splits touches the path next
  return front;
}

// Moving the rest to the front only when it is the smaller half charges the copy to pages already
// matched.
void RadixCache::Impl::compact(Node& node) {
  if (node.begin_page < node.num_pages()) return;
  const auto gone = static_cast<std::ptrdiff_t>(node.begin_page);
  const auto gone_tokens = static_cast<std::ptrdiff_t>(node.begin_page * page_size_);
  node.tokens = std::vector<int32_t>(node.tokens.begin() + gone_tokens, node.tokens.end());
  node.pages = std::vector<int32_t>(node.pages.begin() + gone, node.pages.end());
  node.begin_page = 0;
}

void RadixCache::Impl::lru_remove(int32_t slot) {
  Node& node = at(slot);
  (node.lru_older == kNone ? lru_oldest_ : at(node.lru_older).lru_newer) = node.lru_newer;
  (node.lru_newer == kNone ? lru_newest_ : at(node.lru_newer).lru_older) = node.lru_older;
  node.lru_older = node.lru_newer = kNone;
}

void RadixCache::Impl::lru_append(int32_t slot) {
  Node& node = at(slot);
  node.lru_older = lru_newest_;
  node.lru_newer = kNone;
  (lru_newest_ == kNone ? lru_oldest_ : at(lru_newest_).lru_newer) = slot;
  lru_newest_ = slot;
}

// Deepest first, so that every node stays before its parent.
void RadixCache::Impl::touch(int32_t slot) {
  for (; slot != kRoot; slot = at(slot).parent) {
    if (at(slot).lock_count != 0) break;  // the ancestors of a locked node are locked
    lru_remove(slot);
    lru_append(slot);
  }
}

RadixCache::Impl::Walk RadixCache::Impl::walk(std::span<const int32_t> tokens) const {
  Walk result;
  const size_t num_pages = tokens.size() / page_size_;
  size_t done = 0;
  while (done < num_pages) {
    const int32_t* rest = tokens.data() + done * page_size_;
    const int32_t child = find_child(result.slot, rest);
    if (child == kNone) break;
    const Node& node = at(child);
    const size_t limit = std::min(node.num_pages(), num_pages - done);
    const auto* end = std::mismatch(rest, rest + limit * page_size_, tokens_of(node)).first;
    const size_t matched = static_cast<size_t>(end - rest) / page_size_;
    result.page_ids.insert(result.page_ids.end(), pages_of(node), pages_of(node) + matched);
    result.slot = child;
    result.pages_in_node = matched;
    done += matched;
    if (matched < node.num_pages()) break;
  }
  return result;
}

// Marks pages while it looks, to find one given twice, and always takes the marks back.
void RadixCache::Impl::check_given_pages(std::span<const int32_t> page_ids,
                                         const std::vector<int32_t>& tree_pages) {
  std::string came;
  size_t i = 0;
  for (; i < page_ids.size() && came.empty(); ++i) {
    const int32_t page = page_ids[i];
    const std::string where = " at position " + std::to_string(i);
    if (!owns(page)) {
      came = page_text(page) + where + ", which is not of this pool";
    } else if (i < tree_pages.size() && page == tree_pages[i]) {
      continue;
    } else if (state(page) == PageState::kHandedOut) {
      state(page) = PageState::kSeen;
    } else if (state(page) == PageState::kSeen) {
      came = page_text(page) + where + ", given twice";
    } else {
      came = page_text(page) + where +
             (state(page) == PageState::kFree ? ", which is free" : ", cached for other tokens");
    }
  }
  while (i-- > 0) {
    if (owns(page_ids[i]) && state(page_ids[i]) == PageState::kSeen) {
      state(page_ids[i]) = PageState::kHandedOut;
    }
  }
  if (!came.empty()) {
    throw InvalidArgument(five_parts(
        "RadixCache::insert", "page_ids", came,
        "hold pages from allocate_pages, or at their own positions pages from match_prefix",
        "pass the request's block table row as it stands"));
  }
}

int64_t RadixCache::Impl::evict(int64_t num_pages) {
  int64_t evicted = 0;
  while (evicted < num_pages && lru_oldest_ != kNone) {
    const int32_t slot = lru_oldest_;
    Node& node = at(slot);
    // From the end: what is left is still a prefix, and no more than was asked for is lost.
    while (node.num_pages() > 0 && evicted < num_pages) {
      release_page(node.pages.back());
      node.pages.pop_back();
      --cached_pages_;
      ++evicted;
    }
    node.tokens.resize(node.pages.size() * page_size_);
    if (node.num_pages() == 0) {
      ++counters_.evictions;
      // The index key was made from tokens that are gone; it is stored, so dropping needs none of
      // them.
      drop_node(slot);
    }
  }
  counters_.pages_evicted += evicted;
  return evicted;
}

RadixCache::RadixCache(int64_t num_pages, int32_t page_size, int32_t first_page) {
  if (page_size < 1) {
    throw InvalidArgument(five_parts("RadixCache", "page_size", "is " + std::to_string(page_size),
                                     "be at least 1", "pass the cache's page size in tokens"));
  }
  constexpr int64_t kMaxPage = std::numeric_limits<int32_t>::max();
  if (num_pages < 0 || first_page < 0 || num_pages > kMaxPage - first_page) {
    throw InvalidArgument(
        five_parts("RadixCache", "num_pages",
                   "is " + std::to_string(num_pages) + " from page " + std::to_string(first_page),
                   "give page ids from 0 to 2147483647", "use fewer pages"));
  }
  impl_ = std::make_unique<Impl>(num_pages, page_size, first_page);
}

RadixCache::~RadixCache() = default;
RadixCache::RadixCache(RadixCache&&) noexcept = default;
RadixCache& RadixCache::operator=(RadixCache&&) noexcept = default;

int32_t RadixCache::page_size() const {
  return static_cast<int32_t>(impl_->page_size_);
}

RadixCache::Match RadixCache::match_prefix(std::span<const int32_t> tokens) {
  Impl::Walk walk = impl_->walk(tokens);
  const int32_t slot = impl_->settle(walk);
  impl_->touch(slot);
  RadixCacheStats& counters = impl_->counters_;
  ++counters.lookups;
  counters.tokens_requested += static_cast<int64_t>(tokens.size());
  counters.tokens_hit += static_cast<int64_t>(walk.page_ids.size() * impl_->page_size_);
  return {impl_->handle(slot), std::move(walk.page_ids)};
}

std::vector<int32_t> RadixCache::allocate_pages(int64_t count) {
  if (count < 0) {
    throw InvalidArgument(five_parts("RadixCache::allocate_pages", "count",
                                     "is " + std::to_string(count), "be at least 0",
                                     "pass the number of pages to take"));
  }
  std::vector<int32_t>& free = impl_->free_;
  const auto num_free = static_cast<int64_t>(free.size());
  if (count > num_free + impl_->evictable_pages()) {
    throw OutOfPages(five_parts(
        "RadixCache::allocate_pages", "count", "is " + std::to_string(count),
        "be at most " + std::to_string(num_free + impl_->evictable_pages()) + " (" +
            std::to_string(num_free) + " pages free, " + std::to_string(impl_->evictable_pages()) +
            " cached and unlocked, of " + std::to_string(impl_->page_state_.size()) + ")",
        "finish or preempt a request, or use a larger pool"));
  }
  if (count > num_free) impl_->evict(count - num_free);
  std::vector<int32_t> taken(free.rbegin(), free.rbegin() + static_cast<std::ptrdiff_t>(count));
  free.resize(free.size() - taken.size());
  for (const int32_t page : taken) impl_->state(page) = PageState::kHandedOut;
  return taken;
}

void RadixCache::free_pages(std::span<const int32_t> page_ids) {
  size_t i = 0;
  for (; i < page_ids.size(); ++i) {
    const int32_t page = page_ids[i];
    if (!impl_->owns(page) || impl_->state(page) != PageState::kHandedOut) break;
    impl_->state(page) = PageState::kSeen;
  }
  if (i == page_ids.size()) {
    for (const int32_t page : page_ids) impl_->release_page(page);
    return;
  }
  for (size_t j = 0; j < i; ++j) impl_->state(page_ids[j]) = PageState::kHandedOut;
  throw InvalidArgument(five_parts("RadixCache::free_pages", "page_ids",
                                   page_text(page_ids[i]) + " at position " + std::to_string(i),
                                   "hold pages that are handed out, each once",
                                   "free only pages from allocate_pages that were never inserted"));
}

RadixCache::Inserted RadixCache::insert(std::span<const int32_t> tokens,
                                        std::span<const int32_t> page_ids) {
  Impl& cache = *impl_;
  const size_t num_pages = tokens.size() / cache.page_size_;
  if (page_ids.size() != num_pages) {
    throw InvalidArgument(five_parts(
        "RadixCache::insert", "page_ids", "has length " + std::to_string(page_ids.size()),
        "have length " + std::to_string(num_pages) + " (whole pages of " +
            std::to_string(tokens.size()) + " tokens)",
        "keep a page that is not full out of the cache and free it when the request ends"));
  }
  Impl::Walk walk = cache.walk(tokens);
  cache.check_given_pages(page_ids, walk.page_ids);

  Inserted result;
  const size_t matched = walk.page_ids.size();
  for (size_t i = 0; i < matched; ++i) {
    if (page_ids[i] != walk.page_ids[i]) result.duplicate_pages.push_back(page_ids[i]);
  }
  for (const int32_t page : result.duplicate_pages) cache.release_page(page);
  int32_t slot = cache.settle(walk);
  if (matched < num_pages) {
    const int32_t leaf = cache.new_node(slot);
    Node& node = cache.at(leaf);
    const auto skip = static_cast<std::ptrdiff_t>(matched);
    node.pages.assign(page_ids.begin() + skip, page_ids.end());
    node.tokens.assign(tokens.begin() + skip * static_cast<std::ptrdiff_t>(cache.page_size_),
                       tokens.begin() + static_cast<std::ptrdiff_t>(num_pages * cache.page_size_));
    for (const int32_t page : node.pages) cache.state(page) = PageState::kCached;
    cache.index_child(leaf);
    cache.lru_append(leaf);
    result.pages_taken = static_cast<int64_t>(num_pages - matched);
    cache.cached_pages_ += result.pages_taken;
    slot = leaf;
  }
  cache.touch(slot);
  result.node = cache.handle(slot);
  result.page_ids = std::move(walk.page_ids);
  result.page_ids.insert(result.page_ids.end(),
                         page_ids.begin() + static_cast<std::ptrdiff_t>(matched), page_ids.end());
  return result;
}

void RadixCache::lock(NodeId node) {
  int32_t slot = impl_->slot_of(node, "RadixCache::lock");
  ++impl_->at(slot).own_locks;
  for (; slot != kNone; slot = impl_->at(slot).parent) {
    Node& locked = impl_->at(slot);
    if (locked.lock_count++ == 0 && slot != kRoot) {
      impl_->lru_remove(slot);
      impl_->locked_pages_ += static_cast<int64_t>(locked.num_pages());
    }
  }
}

void RadixCache::unlock(NodeId node) {
  int32_t slot = impl_->slot_of(node, "RadixCache::unlock");
  if (impl_->at(slot).own_locks == 0) {
    throw InvalidArgument(five_parts("RadixCache::unlock", "node", "is " + std::to_string(node),
                                     "be locked", "unlock a node once for every lock"));
  }
  --impl_->at(slot).own_locks;
  // A lock is a use until it ends: what becomes free to go is the newest of all.
  for (; slot != kNone; slot = impl_->at(slot).parent) {
    Node& unlocked = impl_->at(slot);
    if (--unlocked.lock_count == 0 && slot != kRoot) {
      impl_->lru_append(slot);
      impl_->locked_pages_ -= static_cast<int64_t>(unlocked.num_pages());
    }
  }
}

int64_t RadixCache::evict(int64_t num_pages) {
  if (num_pages < 0) {
    throw InvalidArgument(five_parts("RadixCache::evict", "num_pages",
                                     "is " + std::to_string(num_pages), "be at least 0",
                                     "pass the number of pages to give back"));
  }
  return impl_->evict(num_pages);
}

RadixCacheStats RadixCache::stats() const {
  RadixCacheStats stats = impl_->counters_;
  stats.nodes =
      static_cast<int64_t>(impl_->children_.size());  // every node but the root is one child
  stats.cached_pages = impl_->cached_pages_;
  stats.locked_pages = impl_->locked_pages_;
  stats.free_pages = static_cast<int64_t>(impl_->free_.size());
  return stats;
}

}  // namespace capillary
