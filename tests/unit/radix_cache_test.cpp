// SPDX-License-Identifier: MIT
// RadixCache against a brute-force model: a trie with one page a node, searched in full for every
// eviction. Long random sequences of every operation, legal and illegal, must leave both in the
// same state.
#include "capillary/radix_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "capillary/error.h"

namespace capillary {
namespace {

using Tokens = std::vector<int32_t>;
using Pages = std::vector<int32_t>;

// The whole pages of tokens 0, 1, 2, ... shifted by `first`.
Tokens iota_tokens(int32_t first, size_t count) {
  Tokens tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

template <class ErrorType, class Call>
std::string message_of(Call&& call) {
  try {
    call();
  } catch (const ErrorType& error) {
    return error.what();
  }
  return "(nothing thrown)";
}

void expect_has(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' missing in: " << message;
}

// ---- the model
// ------------------------------------------------------------------------------------------

struct PageNode {
  PageNode* parent = nullptr;
  std::map<Tokens, std::unique_ptr<PageNode>> children;
  int32_t page = -1;
  int depth = 0;
  int64_t last_use = 0;
  int64_t locks = 0;  // of the node and everything below
};

class Model {
 public:
  Model(int64_t num_pages, int32_t page_size, int32_t first_page) : page_size_(page_size) {
    for (int64_t i = 0; i < num_pages; ++i) free_.insert(static_cast<int32_t>(first_page + i));
  }

  PageNode* match(const Tokens& tokens, Pages* pages = nullptr) {
    PageNode* node = &root_;
    for (const Tokens& key : keys(tokens)) {
      const auto it = node->children.find(key);
      if (it == node->children.end()) break;
      node = it->second.get();
      if (pages) pages->push_back(node->page);
    }
    return node;
  }

  void touch(PageNode* node) {
    ++clock_;
    for (; node != &root_; node = node->parent) {
      if (node->locks == 0) node->last_use = clock_;
    }
  }

  struct Inserted {
    PageNode* node;
    Pages duplicates;
    Pages pages;
  };
  Inserted insert(const Tokens& tokens, const Pages& given) {
    Inserted result{&root_, {}, {}};
    const std::vector<Tokens> all = keys(tokens);
    for (size_t i = 0; i < all.size(); ++i) {
      auto& child = result.node->children[all[i]];
      if (!child) {
        child = std::make_unique<PageNode>();
        child->parent = result.node;
        child->depth = result.node->depth + 1;
        child->page = given[i];
        out_.erase(given[i]);
        cached_.insert(given[i]);
      } else if (child->page != given[i]) {
        result.duplicates.push_back(given[i]);
        out_.erase(given[i]);
        free_.insert(given[i]);
      }
      result.node = child.get();
      result.pages.push_back(child->page);
    }
    touch(result.node);
    return result;
  }

  void lock(PageNode* node) {
    for (; node != nullptr; node = node->parent) ++node->locks;
  }
  void unlock(PageNode* node) {
    ++clock_;
    for (; node != nullptr; node = node->parent) {
      if (--node->locks == 0) node->last_use = clock_;
    }
  }

  int64_t evict(int64_t count) {
    int64_t evicted = 0;
    while (evicted < count) {
      PageNode* victim = nullptr;
      oldest_leaf(&root_, &victim);
      if (victim == nullptr) break;
      cached_.erase(victim->page);
      free_.insert(victim->page);
      auto& siblings = victim->parent->children;
      siblings.erase(std::find_if(siblings.begin(), siblings.end(),
                                  [&](const auto& e) { return e.second.get() == victim; }));
      ++evicted;
    }
    return evicted;
  }

  int64_t evictable() { return count_unlocked(&root_); }
  void take(int32_t page) {
    ASSERT_EQ(free_.erase(page), 1u) << "page " << page << " was not free";
    out_.insert(page);
  }
  void give_back(int32_t page) {
    ASSERT_EQ(out_.erase(page), 1u);
    free_.insert(page);
  }

  // Every cached path, to compare against what the cache finds.
  void paths(std::vector<std::pair<Tokens, Pages>>& all) { collect(&root_, {}, {}, all); }

  const std::set<int32_t>& free() const { return free_; }
  const std::set<int32_t>& cached() const { return cached_; }
  const std::set<int32_t>& out() const { return out_; }
  PageNode* root() { return &root_; }

 private:
  std::vector<Tokens> keys(const Tokens& tokens) const {
    std::vector<Tokens> result;
    const auto step = page_size_;
    for (auto i = 0; i + step <= static_cast<int32_t>(tokens.size()); i += step) {
      result.emplace_back(tokens.begin() + i, tokens.begin() + i + step);
    }
    return result;
  }
  void oldest_leaf(PageNode* node, PageNode** best) {
    for (auto& [key, child] : node->children) oldest_leaf(child.get(), best);
    if (node == &root_ || !node->children.empty() || node->locks != 0) return;
    if (*best == nullptr || node->last_use < (*best)->last_use) *best = node;
  }
  int64_t count_unlocked(PageNode* node) {
    int64_t count = node != &root_ && node->locks == 0 ? 1 : 0;
    for (auto& [key, child] : node->children) count += count_unlocked(child.get());
    return count;
  }
  void collect(PageNode* node, Tokens tokens, Pages pages,
               std::vector<std::pair<Tokens, Pages>>& all) {
    if (node->children.empty() && node != &root_) all.emplace_back(tokens, pages);
    for (auto& [key, child] : node->children) {
      Tokens longer = tokens;
      longer.insert(longer.end(), key.begin(), key.end());
      Pages more = pages;
      more.push_back(child->page);
      collect(child.get(), std::move(longer), std::move(more), all);
    }
  }

  int32_t page_size_;
  PageNode root_;
  std::set<int32_t> free_, cached_, out_;
  int64_t clock_ = 0;
};

// ---- random operations
// ----------------------------------------------------------------------------------

class Exerciser {
 public:
  Exerciser(uint64_t seed, int32_t page_size, int64_t num_pages)
      : random_(seed),
        page_size_(page_size),
        cache_(num_pages, page_size, kFirstPage),
        model_(num_pages, page_size, kFirstPage) {}

  void step() {
    switch (pick(9)) {
      case 0:
        match();
        break;
      case 1:
        allocate();
        break;
      case 2:
        free_some();
        break;
      case 3:
      case 4:
        insert();
        break;
      case 5:
        unlock();
        break;
      case 6:
        evict();
        break;
      case 7:
        match_and_lock();
        break;
      case 8:
        misuse();
        break;
    }
    cache_.check_invariants();
    const RadixCacheStats stats = cache_.stats();
    ASSERT_EQ(stats.free_pages, static_cast<int64_t>(model_.free().size()));
    ASSERT_EQ(stats.cached_pages, static_cast<int64_t>(model_.cached().size()));
    ASSERT_EQ(stats.cached_pages - stats.locked_pages, model_.evictable());
  }

  // Looking every path up refreshes all of them, so this is done now and then, on both sides.
  void compare_content() {
    std::vector<std::pair<Tokens, Pages>> all;
    model_.paths(all);
    for (const auto& [tokens, pages] : all) {
      model_.touch(model_.match(tokens));
      ASSERT_EQ(cache_.match_prefix(tokens).page_ids, pages);
    }
  }

  void drain() {
    while (!locks_.empty()) unlock();
    cache_.free_pages(Pages(model_.out().begin(), model_.out().end()));
    while (!model_.out().empty()) model_.give_back(*model_.out().begin());
    const int64_t cached = cache_.stats().cached_pages;
    ASSERT_EQ(cache_.evict(cached + 5), cached);
    ASSERT_EQ(model_.evict(cached + 5), cached);
    cache_.check_invariants();
    ASSERT_EQ(cache_.stats().nodes, 0);
    ASSERT_EQ(cache_.stats().free_pages, static_cast<int64_t>(model_.free().size()));
  }

 private:
  static constexpr int32_t kFirstPage = 7;

  int pick(int count) { return std::uniform_int_distribution<int>(0, count - 1)(random_); }

  // Few distinct tokens, and often the extension of an older sequence, so that prefixes collide.
  Tokens random_tokens() {
    Tokens tokens;
    if (!history_.empty() && pick(3) != 0) {
      tokens = history_[static_cast<size_t>(pick(static_cast<int>(history_.size())))];
      tokens.resize(static_cast<size_t>(pick(static_cast<int>(tokens.size()) + 1)));
    }
    const int extra = pick(6 * page_size_);
    for (int i = 0; i < extra; ++i) tokens.push_back(pick(2) - 1);
    if (history_.size() < 40) {
      history_.push_back(tokens);
    } else {
      history_[static_cast<size_t>(pick(40))] = tokens;
    }
    return tokens;
  }

  RadixCache::Match match() {
    const Tokens tokens = random_tokens();
    Pages expected;
    PageNode* node = model_.match(tokens, &expected);
    model_.touch(node);
    const RadixCache::Match match = cache_.match_prefix(tokens);
    EXPECT_EQ(match.page_ids, expected);
    EXPECT_EQ(match.node == 0, node == model_.root());
    last_node_ = node;
    return match;
  }

  void match_and_lock() {
    const RadixCache::Match found = match();
    if (locks_.size() > 4) return;
    cache_.lock(found.node);
    model_.lock(last_node_);
    locks_.push_back({found.node, last_node_});
  }

  Pages allocate_checked(int64_t count) {
    const int64_t can = static_cast<int64_t>(model_.free().size()) + model_.evictable();
    if (count > can) {
      const auto before = cache_.stats();
      const std::string message =
          message_of<OutOfPages>([&] { static_cast<void>(cache_.allocate_pages(count)); });
      expect_has(message, "RadixCache::allocate_pages: count is " + std::to_string(count));
      expect_has(message, "must be at most " + std::to_string(can) + " (");
      EXPECT_EQ(cache_.stats().free_pages, before.free_pages);
      EXPECT_EQ(cache_.stats().pages_evicted, before.pages_evicted);
      return {};
    }
    model_.evict(count - static_cast<int64_t>(model_.free().size()));
    const Pages pages = cache_.allocate_pages(count);
    EXPECT_EQ(static_cast<int64_t>(pages.size()), count);
    for (const int32_t page : pages) model_.take(page);
    return pages;
  }

  void allocate() { allocate_checked(pick(8)); }

  Pages random_out_pages(size_t count) {
    Pages pages(model_.out().begin(), model_.out().end());
    std::shuffle(pages.begin(), pages.end(), random_);
    pages.resize(std::min(pages.size(), count));
    return pages;
  }

  void free_some() {
    const Pages pages = random_out_pages(static_cast<size_t>(pick(5)));
    cache_.free_pages(pages);
    for (const int32_t page : pages) model_.give_back(page);
  }

  // Pages for all whole pages of tokens: the tree's own where it has them, or (duplicates) others.
  bool pages_for(const Tokens& tokens, Pages& given) {
    Pages tree;
    model_.match(tokens, &tree);
    const size_t count = tokens.size() / static_cast<size_t>(page_size_);
    if (model_.out().size() < count) allocate_checked(static_cast<int64_t>(count));
    if (model_.out().size() < count) return false;
    tree.clear();
    model_.match(tokens, &tree);  // allocating may have evicted some
    given = random_out_pages(count);
    for (size_t i = 0; i < tree.size(); ++i) {
      if (pick(2) == 0) given[i] = tree[i];
    }
    return true;
  }

  void insert() {
    const Tokens tokens = random_tokens();
    Pages given;
    if (!pages_for(tokens, given)) return;
    const int64_t cached_before = cache_.stats().cached_pages;
    const Model::Inserted expected = model_.insert(tokens, given);
    const RadixCache::Inserted inserted = cache_.insert(tokens, given);
    EXPECT_EQ(inserted.page_ids, expected.pages);
    EXPECT_EQ(inserted.duplicate_pages, expected.duplicates);
    EXPECT_EQ(cache_.stats().cached_pages - cached_before, inserted.pages_taken);
    if (locks_.size() < 4 && pick(2) == 0) {
      cache_.lock(inserted.node);
      model_.lock(expected.node);
      locks_.push_back({inserted.node, expected.node});
    }
  }

  void unlock() {
    if (locks_.empty()) return;
    const auto i = static_cast<size_t>(pick(static_cast<int>(locks_.size())));
    cache_.unlock(locks_[i].handle);
    model_.unlock(locks_[i].node);
    locks_.erase(locks_.begin() + static_cast<std::ptrdiff_t>(i));
  }

  void evict() {
    const int64_t count = pick(6);
    EXPECT_EQ(cache_.evict(count), model_.evict(count));
  }

  // Each of these must throw and change nothing; step() compares the states afterwards.
  void misuse() {
    Pages bad = random_out_pages(3);
    switch (pick(5)) {
      case 0:
        bad.push_back(kFirstPage - 1);
        EXPECT_THROW(cache_.free_pages(bad), InvalidArgument);
        break;
      case 1:
        if (bad.empty()) return;
        bad.push_back(bad.front());
        EXPECT_THROW(cache_.free_pages(bad), InvalidArgument);
        break;
      case 2:
        if (model_.cached().empty()) return;
        bad.push_back(*model_.cached().begin());
        EXPECT_THROW(cache_.free_pages(bad), InvalidArgument);
        break;
      case 3: {
        const Tokens fresh(static_cast<size_t>(page_size_) * (bad.size() + 1), 99);
        bad.push_back(bad.empty() ? 1 << 30 : bad.front());
        EXPECT_THROW(static_cast<void>(cache_.insert(fresh, bad)), InvalidArgument);
        break;
      }
      case 4: {
        if (model_.free().empty()) return;
        const Tokens fresh(static_cast<size_t>(page_size_) * (bad.size() + 1), 99);
        bad.push_back(*model_.free().begin());
        EXPECT_THROW(static_cast<void>(cache_.insert(fresh, bad)), InvalidArgument);
        break;
      }
    }
  }

  struct HeldLock {
    RadixCache::NodeId handle;
    PageNode* node;
  };

  std::mt19937_64 random_;
  int32_t page_size_;
  RadixCache cache_;
  Model model_;
  std::vector<Tokens> history_;
  std::vector<HeldLock> locks_;
  PageNode* last_node_ = nullptr;
};

class RadixCacheModel : public testing::TestWithParam<std::tuple<int, int, int>> {};

TEST_P(RadixCacheModel, RandomOperationsAgree) {
  const auto [seed, page_size, num_pages] = GetParam();
  Exerciser exerciser(static_cast<uint64_t>(seed), page_size, num_pages);
  for (int i = 0; i < 4000; ++i) {
    SCOPED_TRACE("operation " + std::to_string(i));
    exerciser.step();
    if (i % 97 == 0) exerciser.compare_content();
    if (testing::Test::HasFailure()) return;
  }
  exerciser.drain();
}

INSTANTIATE_TEST_SUITE_P(Pools, RadixCacheModel,
                         testing::Combine(testing::Range(0, 4), testing::Values(1, 2, 3, 16),
                                          testing::Values(0, 1, 11, 60)),
                         [](const auto& pool) {
                           return "seed" + std::to_string(std::get<0>(pool.param)) + "_page" +
                                  std::to_string(std::get<1>(pool.param)) + "_pool" +
                                  std::to_string(std::get<2>(pool.param));
                         });

// ---- single facts
// ---------------------------------------------------------------------------------------

TEST(RadixCache, SharesWholePagesOnly) {
  RadixCache cache(10, 4);
  const Tokens tokens = iota_tokens(0, 11);  // two whole pages and three tokens
  const Pages pages = cache.allocate_pages(2);
  EXPECT_EQ(cache.insert(tokens, pages).pages_taken, 2);

  EXPECT_EQ(cache.match_prefix(tokens).page_ids, pages);
  EXPECT_EQ(cache.match_prefix(iota_tokens(0, 7)).page_ids, Pages{pages[0]});
  EXPECT_EQ(cache.match_prefix(iota_tokens(0, 3)).page_ids, Pages{});
  EXPECT_EQ(cache.match_prefix(iota_tokens(1, 8)).page_ids, Pages{});
  const RadixCacheStats stats = cache.stats();
  EXPECT_EQ(stats.lookups, 4);
  EXPECT_EQ(stats.tokens_requested, 11 + 7 + 3 + 8);
  EXPECT_EQ(stats.tokens_hit, 8 + 4);
  EXPECT_EQ(stats.nodes, 2);  // split by the second look-up
  EXPECT_EQ(stats.free_pages, 8);
}

TEST(RadixCache, SecondCopyOfTheSameTokensIsFreed) {
  RadixCache cache(10, 2);
  const Tokens tokens = iota_tokens(0, 6);
  const Pages first = cache.allocate_pages(3);
  const Pages second = cache.allocate_pages(3);
  static_cast<void>(cache.insert(tokens, first));
  const RadixCache::Inserted again = cache.insert(tokens, second);
  EXPECT_EQ(again.pages_taken, 0);
  EXPECT_EQ(again.page_ids, first);
  EXPECT_EQ(again.duplicate_pages, second);
  EXPECT_EQ(cache.stats().free_pages, 7);
  cache.check_invariants();
}

TEST(RadixCache, AHandleStaysWithTheDeeperEndOfASplitNode) {
  RadixCache cache(8, 1);
  const RadixCache::Inserted whole = cache.insert(iota_tokens(0, 6), cache.allocate_pages(6));
  cache.lock(whole.node);
  const RadixCache::Match front = cache.match_prefix(iota_tokens(0, 2));
  EXPECT_NE(front.node, whole.node);
  EXPECT_EQ(cache.stats().locked_pages, 6);
  EXPECT_EQ(cache.evict(8), 0);
  cache.unlock(whole.node);
  cache.lock(front.node);
  EXPECT_EQ(cache.evict(8), 4);
  EXPECT_EQ(cache.match_prefix(iota_tokens(0, 6)).page_ids, front.page_ids);
}

TEST(RadixCache, EvictsLeastRecentlyUsedFirstAndOnlyWhatIsNeeded) {
  RadixCache cache(9, 1);
  for (const int32_t first : {0, 100, 200}) {
    static_cast<void>(cache.insert(iota_tokens(first, 3), cache.allocate_pages(3)));
  }
  static_cast<void>(cache.match_prefix(iota_tokens(0, 3)));  // now 100.. is the oldest
  EXPECT_EQ(cache.allocate_pages(2).size(), 2u);
  EXPECT_EQ(cache.match_prefix(iota_tokens(100, 3)).page_ids.size(), 1u);
  EXPECT_EQ(cache.match_prefix(iota_tokens(0, 3)).page_ids.size(), 3u);
  EXPECT_EQ(cache.match_prefix(iota_tokens(200, 3)).page_ids.size(), 3u);
  EXPECT_EQ(cache.stats().pages_evicted, 2);
  EXPECT_EQ(cache.stats().evictions, 0);  // the node lost its end, not its life
}

TEST(RadixCache, ExhaustedPoolTakesNothing) {
  RadixCache cache(4, 2, 100);
  const RadixCache::Inserted held = cache.insert(iota_tokens(0, 6), cache.allocate_pages(3));
  cache.lock(held.node);
  const std::string message =
      message_of<OutOfPages>([&] { static_cast<void>(cache.allocate_pages(2)); });
  EXPECT_EQ(message,
            "RadixCache::allocate_pages: count is 2; must be at most 1 (1 pages free, 0 cached and "
            "unlocked, of 4); finish or preempt a request, or use a larger pool");
  EXPECT_EQ(cache.stats().free_pages, 1);
  cache.unlock(held.node);
  EXPECT_EQ(cache.allocate_pages(2), (Pages{102, 103}));
  cache.check_invariants();
}

TEST(RadixCache, MessagesNameTheArgumentAndTheRemedy) {
  expect_has(message_of<InvalidArgument>([] { RadixCache(4, 0); }),
             "RadixCache: page_size is 0; must be at least 1");
  expect_has(message_of<InvalidArgument>([] { RadixCache(-1, 16); }),
             "RadixCache: num_pages is -1 from page 0; must give page ids from 0 to 2147483647");
  expect_has(message_of<InvalidArgument>([] { RadixCache(2147483647, 16, 1); }), "num_pages is");
  RadixCache cache(4, 2);
  expect_has(message_of<InvalidArgument>([&] { static_cast<void>(cache.allocate_pages(-1)); }),
             "RadixCache::allocate_pages: count is -1; must be at least 0");
  expect_has(message_of<InvalidArgument>([&] { cache.evict(-3); }), "num_pages is -3");
  expect_has(message_of<InvalidArgument>([&] { cache.free_pages(Pages{2}); }),
             "RadixCache::free_pages: page_ids has page 2 at position 0; must hold pages that are "
             "handed out, each once");
  expect_has(message_of<InvalidArgument>(
                 [&] { static_cast<void>(cache.insert(iota_tokens(0, 5), Pages{0})); }),
             "RadixCache::insert: page_ids has length 1; must have length 2 (whole pages of 5 "
             "tokens)");
  expect_has(message_of<InvalidArgument>(
                 [&] { static_cast<void>(cache.insert(iota_tokens(0, 2), Pages{3})); }),
             "page_ids has page 3 at position 0, which is free");
  const Pages pages = cache.allocate_pages(2);
  expect_has(message_of<InvalidArgument>([&] {
               static_cast<void>(cache.insert(iota_tokens(0, 4), Pages{pages[0], pages[0]}));
             }),
             "at position 1, given twice");
  static_cast<void>(cache.insert(iota_tokens(0, 4), pages));
  expect_has(message_of<InvalidArgument>(
                 [&] { static_cast<void>(cache.insert(iota_tokens(50, 2), Pages{pages[0]})); }),
             "cached for other tokens");
  cache.check_invariants();
}

TEST(RadixCache, HandlesOfEvictedNodesAreRefused) {
  RadixCache cache(2, 1);
  const RadixCache::Inserted old = cache.insert(iota_tokens(0, 2), cache.allocate_pages(2));
  expect_has(message_of<InvalidArgument>([&] { cache.unlock(old.node); }),
             "RadixCache::unlock: node is 1; must be locked; unlock a node once for every lock");
  EXPECT_EQ(cache.evict(2), 2);
  const RadixCache::Inserted now = cache.insert(iota_tokens(9, 2), cache.allocate_pages(2));
  EXPECT_NE(now.node, old.node);
  expect_has(message_of<InvalidArgument>([&] { cache.lock(old.node); }),
             "must be the handle of a node that the cache still holds");
  expect_has(message_of<InvalidArgument>([&] { cache.lock(-1); }), "RadixCache::lock: node is -1");
  expect_has(message_of<InvalidArgument>([&] { cache.unlock(0); }), "must be locked");
}

TEST(RadixCache, ALongNodeSplitAgainAndAgain) {
  constexpr int64_t kPages = 1 << 17;
  RadixCache cache(kPages, 1);
  const Tokens tokens = iota_tokens(0, kPages);
  static_cast<void>(cache.insert(tokens, cache.allocate_pages(kPages)));
  // Every look-up cuts the rest of the node once more; what is left must stay whole.
  for (size_t length = 1; length < 700; ++length) {
    const std::span<const int32_t> front(tokens.data(), length);
    ASSERT_EQ(cache.match_prefix(front).page_ids.size(), length);
  }
  EXPECT_EQ(cache.stats().nodes, 700);
  EXPECT_EQ(cache.match_prefix(tokens).page_ids.back(), kPages - 1);
  cache.check_invariants();
  EXPECT_EQ(cache.evict(kPages), kPages);
  EXPECT_EQ(cache.stats().nodes, 0);
}

}  // namespace
}  // namespace capillary
