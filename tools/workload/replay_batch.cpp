// SPDX-License-Identifier: MIT
// The scheduler of the replay (replay_batch.h).
#include "workload/replay_batch.h"

#include <algorithm>
#include <utility>

#include "capillary/error.h"
#include "fmt/format.h"

namespace capillary {
namespace {

void check_options(const BatchingOptions& options) {
  const auto fail = [](const char* argument, const std::string& came, const char* expected) {
    throw InvalidArgument(
        five_parts("replay", argument, "is " + came, expected, "correct the option"));
  };
  if (options.max_batch < 1 || options.max_batch > 65536) {
    fail("max_batch", fmt::format("{}", options.max_batch), "be from 1 to 65536 requests");
  }
  if (options.page_size < 1 || options.page_size > 65536) {
    fail("page_size", fmt::format("{}", options.page_size), "be from 1 to 65536 tokens");
  }
  if (options.num_pages < 1 || options.num_pages >= ContinuousBatch::kWildPage) {
    fail("pages", fmt::format("{}", options.num_pages), "be from 1 to 2147483646");
  }
  if (options.max_prefill_tokens < 1) {
    fail("max_prefill_tokens", fmt::format("{}", options.max_prefill_tokens), "be at least 1");
  }
  if (!(options.time_scale >= 0 && options.time_scale <= 1e6)) {
    fail("time_scale", fmt::format("{}", options.time_scale), "be from 0 to 1e6");
  }
}

const BatchingOptions& checked(const BatchingOptions& options) {
  check_options(options);
  return options;
}

// Tokens whose KV is needed in the end: the last token generated is never attended to.
int64_t final_length(const TraceRequest& request) {
  return int64_t{request.input_length} + std::max(0, request.output_length - 1);
}

}  // namespace

ContinuousBatch::ContinuousBatch(const Trace& trace, const TokenIds& token_ids,
                                 const BatchingOptions& options)
    : trace_(trace),
      token_ids_(token_ids),
      options_(checked(options)),
      cache_(options.num_pages, options.page_size) {
  for (const TraceRequest& request : trace.requests) {
    const int64_t pages = pages_for(final_length(request));
    if (pages <= options_.num_pages) {
      num_columns_ = std::max(num_columns_, static_cast<size_t>(pages));
    }
  }
  rows_.reserve(static_cast<size_t>(options_.max_batch));
}

BlockTableView ContinuousBatch::table() const {
  const auto columns = static_cast<int64_t>(num_columns_);
  return {table_.data(), size(), columns, columns};
}

void ContinuousBatch::take_arrivals() {
  for (; next_arrival_ < trace_.requests.size() && arrival_ms(next_arrival_) <= now_ms_;
       ++next_arrival_) {
    ++counters_.arrived;
    const TraceRequest& request = trace_.requests[next_arrival_];
    const int64_t pages = pages_for(final_length(request));
    if (pages > options_.num_pages) {
      if (counters_.too_long++ == 0) {
        first_too_long_ = fmt::format("request {} of the trace needs {} pages, the pool has {}",
                                      next_arrival_, pages, options_.num_pages);
      }
      continue;
    }
    waiting_.push_back({next_arrival_, 0, {}});
  }
}

// Prefill: looks the tokens up, takes pages for the rest, and hands the whole ones to the cache at once, so
// that whoever comes next, even in this step, shares them.
bool ContinuousBatch::admit_one(Waiting& waiting) {
  const bool is_new = waiting.tokens.empty();
  if (is_new) token_ids_.append_prompt(waiting.request, waiting.tokens);
  const std::span<const int32_t> tokens = waiting.tokens;
  const auto page_size = static_cast<size_t>(options_.page_size);

  // The last token is computed in any case: its output is what the first new token comes from.
  const RadixCache::Match match = cache_.match_prefix(tokens.first(tokens.size() - 1));
  cache_.lock(match.node);
  const auto hit = static_cast<int64_t>(match.page_ids.size());
  const int64_t needed = pages_for(static_cast<int64_t>(tokens.size())) - hit;
  const RadixCacheStats stats = cache_.stats();
  const int64_t available = stats.free_pages + stats.cached_pages - stats.locked_pages;
  // A page a request in reserve, or the next steps would preempt whom this one admits.
  const auto reserve = static_cast<int64_t>(rows_.size());
  if (needed + reserve > available) {
    cache_.unlock(match.node);
    if (is_new) waiting.tokens.clear();
    return false;
  }

  const size_t row = rows_.size();
  if (table_.size() < (row + 1) * num_columns_) table_.resize((row + 1) * num_columns_, kWildPage);
  std::vector<int32_t> pages = match.page_ids;
  const std::vector<int32_t> fresh = cache_.allocate_pages(needed);
  pages.insert(pages.end(), fresh.begin(), fresh.end());
  const size_t whole = tokens.size() / page_size;
  const RadixCache::Inserted inserted =
      cache_.insert(tokens, std::span<const int32_t>(pages).first(whole));
  std::copy(inserted.page_ids.begin(), inserted.page_ids.end(), pages.begin());
  cache_.lock(inserted.node);
  cache_.unlock(match.node);
  std::copy(pages.begin(), pages.end(), table_row(row));

  const auto num_tokens = static_cast<int64_t>(tokens.size());
  const int64_t hit_tokens = hit * options_.page_size;
  prefill_tokens_ += num_tokens - hit_tokens;
  (is_new ? counters_.prompt_tokens : counters_.returned_tokens) += num_tokens;
  (is_new ? counters_.prompt_tokens_hit : counters_.returned_tokens_hit) += hit_tokens;
  if (is_new && trace_.requests[waiting.request].output_length > 0) {
    waiting.generated = 1;
    ++counters_.generated_tokens;
  }
  rows_.push_back({waiting.request, num_admissions_++, waiting.generated,
                   static_cast<int64_t>(pages.size()), inserted.node, std::move(waiting.tokens)});
  previous_row_.push_back(-1);
  return true;
}

void ContinuousBatch::admit() {
  if (rows_.empty()) admission_blocked_ = false;
  while (!waiting_.empty() && !admission_blocked_ && size() < options_.max_batch &&
         prefill_tokens_ < options_.max_prefill_tokens) {
    // Prompts are counted whole before they are looked up: the budget is a bound, not a target.
    const Waiting& first = waiting_.front();
    const int64_t length = first.tokens.empty() ? trace_.requests[first.request].input_length
                                                : static_cast<int64_t>(first.tokens.size());
    if (prefill_tokens_ > 0 && prefill_tokens_ + length > options_.max_prefill_tokens) break;
    if (!admit_one(waiting_.front())) {
      admission_blocked_ = true;
      break;
    }
    waiting_.pop_front();
    const Running& admitted = rows_.back();
    if (admitted.generated >= trace_.requests[admitted.request].output_length) {
      ++counters_.finished;  // nothing to decode
      leave(rows_.size() - 1);
    }
  }
}

// Hands the whole pages to the cache, gives the rest back, and lets go of the row.
void ContinuousBatch::leave(size_t row) {
  Running& running = rows_[row];
  const int32_t* pages = table_row(row);
  const size_t whole = running.tokens.size() / static_cast<size_t>(options_.page_size);
  static_cast<void>(cache_.insert(running.tokens, {pages, whole}));
  cache_.free_pages({pages + whole, static_cast<size_t>(running.num_pages) - whole});
  cache_.unlock(running.locked);
  remove_row(row);
}

// The last row takes the place of the one that left.
void ContinuousBatch::remove_row(size_t row) {
  const size_t last = rows_.size() - 1;
  const auto left = static_cast<size_t>(rows_[row].num_pages);
  size_t dirty = left;
  if (row != last) {
    const auto moved = static_cast<size_t>(rows_[last].num_pages);
    std::copy(table_row(last), table_row(last) + moved, table_row(row));
    if (left > moved) std::fill(table_row(row) + moved, table_row(row) + left, kWildPage);
    rows_[row] = std::move(rows_[last]);
    previous_row_[row] = previous_row_[last];
    dirty = moved;
  }
  std::fill(table_row(last), table_row(last) + dirty, kWildPage);
  rows_.pop_back();
  previous_row_.pop_back();
}

void ContinuousBatch::preempt_youngest() {
  const auto youngest = std::max_element(
      rows_.begin(), rows_.end(),
      [](const Running& a, const Running& b) { return a.admission < b.admission; });
  ++counters_.preemptions;
  admission_blocked_ = true;
  waiting_.push_front({youngest->request, youngest->generated, youngest->tokens});
  leave(static_cast<size_t>(youngest - rows_.begin()));
}

// A page for everybody whose next token starts one; the oldest are served first by preempting the youngest.
void ContinuousBatch::give_pages() {
  for (size_t row = 0; row < rows_.size();) {
    Running& running = rows_[row];
    if (pages_for(static_cast<int64_t>(running.tokens.size()) + 1) <= running.num_pages) {
      ++row;
      continue;
    }
    const RadixCacheStats stats = cache_.stats();
    if (stats.free_pages + stats.cached_pages - stats.locked_pages < 1) {
      preempt_youngest();  // may be this row, or move another row here: look at it again
      row = 0;
      continue;
    }
    table_row(row)[running.num_pages++] = cache_.allocate_pages(1).front();
    ++row;
  }
}

bool ContinuousBatch::begin_step() {
  prefill_tokens_ = 0;
  take_arrivals();
  while (true) {
    if (rows_.empty() && waiting_.empty()) {
      if (next_arrival_ == trace_.requests.size()) return false;
      now_ms_ = std::max(now_ms_, arrival_ms(next_arrival_));
      take_arrivals();
      continue;
    }
    admit();
    if (!rows_.empty() || prefill_tokens_ > 0) break;
  }
  give_pages();
  seq_lens_.clear();
  for (Running& running : rows_) {
    running.tokens.push_back(token_ids_.generated(running.request, running.generated - 1));
    seq_lens_.push_back(static_cast<int32_t>(running.tokens.size()));
    counters_.longest_context =
        std::max(counters_.longest_context, static_cast<int64_t>(running.tokens.size()));
  }
  counters_.largest_batch = std::max(counters_.largest_batch, size());
  return true;
}

void ContinuousBatch::end_step(double duration_ms) {
  now_ms_ += duration_ms;
  for (size_t row = 0; row < rows_.size(); ++row) previous_row_[row] = static_cast<int32_t>(row);
  for (size_t row = rows_.size(); row-- > 0;) {
    Running& running = rows_[row];
    ++running.generated;
    ++counters_.generated_tokens;
    if (running.generated >= trace_.requests[running.request].output_length) {
      ++counters_.finished;
      leave(row);
      admission_blocked_ = false;
    }
  }
}

}  // namespace capillary
