// SPDX-License-Identifier: MIT
// RadixCache: a radix-tree KV cache over a pool of pages. It hands out page ids (block tables); it never
// touches KV bytes. Keys are token ids; sharing is in whole pages.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace capillary {

struct RadixCacheStats {
  int64_t lookups = 0;
  int64_t tokens_requested = 0;
  int64_t tokens_hit = 0;
  int64_t pages_evicted = 0;
  int64_t evictions = 0;  // nodes dropped
  int64_t nodes = 0;
  int64_t cached_pages = 0;  // owned by the tree
  int64_t locked_pages = 0;  // of those, under a lock
  int64_t free_pages = 0;
};

class RadixCache {
 public:
  using NodeId = int64_t;  // stable handle; 0 is the root

  // Pages are numbered first_page .. first_page + num_pages - 1.
  RadixCache(int64_t num_pages, int32_t page_size, int32_t first_page = 0);
  ~RadixCache();
  RadixCache(RadixCache&&) noexcept;
  RadixCache& operator=(RadixCache&&) noexcept;

  struct Match {
    NodeId node = 0;                // deepest node of the match
    std::vector<int32_t> page_ids;  // whole pages that hold the longest cached prefix of the tokens
  };
  // Longest cached prefix in whole pages; splits a node where the match ends inside it; refreshes LRU order.
  Match match_prefix(std::span<const int32_t> tokens);

  // Takes free pages, evicting unlocked leaves in LRU order when there are too few.
  // Throws OutOfPages (and takes nothing) when locked pages and pages in use leave too few.
  std::vector<int32_t> allocate_pages(int64_t count);
  // Returns pages that were allocated and never inserted.
  void free_pages(std::span<const int32_t> page_ids);

  struct Inserted {
    NodeId node = 0;
    int64_t pages_taken = 0;  // now owned by the tree
    std::vector<int32_t>
        duplicate_pages;  // given pages whose content the tree already had: freed by this call
    std::vector<int32_t> page_ids;  // the tree's pages for the tokens, in order
  };
  // Hands the whole pages of tokens (page_ids[i] holds tokens [i*page_size, (i+1)*page_size)) to the tree.
  Inserted insert(std::span<const int32_t> tokens, std::span<const int32_t> page_ids);

  // A locked node and its ancestors cannot be evicted. Locks nest.
  void lock(NodeId node);
  void unlock(NodeId node);

  int64_t evict(int64_t num_pages);  // returns the number evicted
  RadixCacheStats stats() const;
  int32_t page_size() const;
  // Every page free, cached, or handed out, exactly once; parents consistent. Throws InternalError.
  void check_invariants() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace capillary
