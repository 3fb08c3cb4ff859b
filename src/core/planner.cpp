// SPDX-License-Identifier: MIT
// The search: a few cluster sizes x a few job counts, each estimated by Grouping; the best is laid out by
// PlanBuilder. Everything is deterministic and, once warm, free of allocation.
#include <algorithm>
#include <cstdio>
#include <string>
#include <tuple>
#include <vector>

#include "capillary/error.h"
#include "capillary/plan.h"
#include "core/grouping.h"
#include "core/plan_builder.h"
#include "core/plan_update.h"
#include "shared/tile_table.h"

namespace capillary {

namespace {

constexpr int kReasonBytes = 320;
constexpr double kNeverUs = 1e30;
// Jobs a cluster that are tried: more only add to the starts of jobs. With few KV heads a job more or less changes
// little, and one will do.
constexpr int32_t kFewHeads = 4;
constexpr int32_t kMostRounds = 4;
// Where fewer jobs than this fill the card, an uneven share of requests matters less than a cluster left idle.
constexpr int32_t kLeastEvenFill = 8;
// Predictions closer than this are as good as equal.
constexpr double kTie = 0.02;
// One tile in so many is what counts as less to read, or much less.
constexpr int64_t kLess = 100;
constexpr int64_t kMuchLess = 5;
// Steps that read for less than this may be fastest on few CTAs.
constexpr double kSmallUs = 8;
constexpr int64_t kMostJobsInARow = 8;
constexpr int64_t kLeastBusy = 5;  // one in so many SMs
constexpr int32_t kMaxPieces = 1 << 20;

// The most jobs, up to `fill` but more than half of it, that all get the same number of requests; 0 if there is none.
int32_t even_jobs(int32_t num_requests, int32_t fill) {
  for (int32_t each = (num_requests + fill - 1) / fill; num_requests / each > fill / 2; ++each)
    if (num_requests % each == 0) return num_requests / each;
  return 0;
}

void check_shape(const ModelShape& shape) {
  const auto fail = [](const char* argument, int64_t came, const char* expected) {
    throw InvalidArgument(five_parts("Planner", argument, "is " + std::to_string(came), expected,
                                     "pass the heads and dims of one attention layer on one GPU"));
  };
  if (shape.num_kv_heads < 1) fail("num_kv_heads", shape.num_kv_heads, "be at least 1");
  if (shape.num_q_heads < 1 || shape.num_q_heads % shape.num_kv_heads != 0)
    fail("num_q_heads", shape.num_q_heads, "be a positive multiple of num_kv_heads");
  static_assert(kMaxHeadDim == 576);  // said below
  if (shape.head_dim < 1 || shape.head_dim > kMaxHeadDim)
    fail("head_dim", shape.head_dim, "be 1 to 576");
  if (shape.head_dim_v < 0 || shape.head_dim_v > kMaxHeadDim)
    fail("head_dim_v", shape.head_dim_v, "be 0 (as head_dim) to 576");
  const int max_rows = tile_table(std::max(shape.head_dim, shape.v_dim())).max_job_rows;
  if (shape.group_size() > max_rows)
    throw UnsupportedConfig(five_parts(
        "Planner", "num_q_heads / num_kv_heads", "is " + std::to_string(shape.group_size()),
        "be at most " + std::to_string(max_rows) + " for this head_dim",
        "split the query heads of a KV head over several calls"));
  if (shape.dtype != DType::kBFloat16 && shape.dtype != DType::kFloat16 &&
      shape.dtype != DType::kFloat32)
    throw UnsupportedConfig(
        five_parts("Planner", "dtype", std::string("is ") + dtype_name(shape.dtype),
                   "be bfloat16 or float16 (float32 on the CPU)", "convert the caches"));
}

void check_options(const PlanOptions& options, const DeviceProfile& profile) {
  if (options.cluster_size != 0) {
    const int index = cluster_size_index(options.cluster_size);
    if (index < 0 || profile.max_clusters[static_cast<size_t>(index)] == 0)
      throw InvalidArgument(five_parts("Planner", "cluster_size",
                                       "is " + std::to_string(options.cluster_size),
                                       "be 0, 1, 2, 4, 8 or 16 and launchable on this card",
                                       "pass 0 to let the planner choose"));
  }
  if (options.fixed_grid && options.cluster_size == 0)
    throw InvalidArgument(five_parts("Planner", "fixed_grid", "comes without a cluster_size",
                                     "come with the cluster_size to be captured",
                                     "set PlanOptions::cluster_size to 1, 2, 4, 8 or 16"));
  if (options.num_pieces < 0)
    throw InvalidArgument(five_parts("Planner", "num_pieces",
                                     "is " + std::to_string(options.num_pieces), "be 0 or more",
                                     "pass 0 to let the planner choose"));
}

}  // namespace

struct Planner::Impl {
  Impl(const ModelShape& shape_in, const DeviceProfile& profile_in, const PlanOptions& options_in)
      : shape(shape_in),
        profile(profile_in),
        options(options_in),
        profile_hash(profile_in.hash()),
        model(shape_in, profile_in),
        grouping(model),
        builder(model) {}

  void search(const PrefixForest& forest);
  void search_sharing(const PrefixForest& forest, bool flat);
  bool try_groups(Mode mode, int32_t num_pieces, bool keep_trees);
  void collect_piece_counts();
  void note(const PlanCandidate& candidate);
  bool may_use(int index) const;
  bool is_tried(int index, int32_t num_pieces) const;
  int32_t max_clusters(int index) const { return profile.max_clusters[static_cast<size_t>(index)]; }
  // An estimate that is not below it is not the best.
  double good_us() const { return fastest_us * (1 + kTie); }
  bool is_better(const Grouping::Estimate& estimate, int32_t cluster_size) const;
  void build(const PrefixForest& forest);
  void summarise();
  void give_reason();

  ModelShape shape;
  DeviceProfile profile;
  PlanOptions options;
  uint64_t profile_hash;
  CostModel model;
  Grouping grouping;
  PlanBuilder builder;
  PlanUpdater updater;

  std::vector<int32_t> piece_counts;
  std::vector<PlanCandidate> candidates;
  bool is_small = false;  // little to read: few jobs may be best
  PlanCandidate best;
  double fastest_us = kNeverUs;  // of all estimates so far; the best may be slower by a tie
  int64_t best_tiles = 0;
  TileTimes best_tile_times{};
  std::vector<QueryGroup> best_groups;
  Plan plan;
  PlanSummary summary;
  bool planned_anew = false;
  double added_us = 0;        // by updates
  bool is_summarised = true;  // a step is planned far more often than anybody asks how
};

bool Planner::Impl::may_use(int index) const {
  if (profile.max_clusters[static_cast<size_t>(index)] == 0) return false;
  if (options.cluster_size != 0) return options.cluster_size == 1 << index;
  // Without exchange on chip a cluster is only a grid that fits worse.
  return options.mode != Mode::kSharedL2 || index == 0;
}

// Job counts that fill the clusters of some size one to four times over, and those that rows force. With few KV heads
// jobs are small, and a group that reaches into one more subtree is a good deal longer than the others: there also
// the nearest count that shares the requests out evenly, for trees most often branch by whole numbers.
void Planner::Impl::collect_piece_counts() {
  piece_counts.clear();
  const auto tiles =
      static_cast<int32_t>(std::clamp<int64_t>(grouping.unique_tiles(), 1, kMaxPieces));
  if (options.num_pieces != 0) {
    piece_counts.push_back(std::min(options.num_pieces, tiles));
    return;
  }
  const int32_t least = std::max(grouping.min_groups(), 1);
  const int32_t most = std::max(tiles / kWideTiles, 1);
  piece_counts.push_back(least);
  const double read_us = static_cast<double>(grouping.unique_tiles() * model.tile_bytes()) *
                         shape.num_kv_heads / (profile.hbm_gbps * 1e3);
  is_small = read_us < kSmallUs;
  for (const int32_t pieces : {1, 2, 4})
    if (is_small && pieces > least && pieces <= most) piece_counts.push_back(pieces);
  const bool few_heads = shape.num_kv_heads < kFewHeads;
  for (int index = 0; index < kNumClusterSizes; ++index) {
    if (!may_use(index)) continue;
    const int32_t rounds = few_heads ? 1 : index < 2 ? kMostRounds : 2;
    for (int32_t round = 1; round <= rounds; ++round) {
      const int32_t pieces = max_clusters(index) * round / shape.num_kv_heads;
      piece_counts.push_back(std::max({std::min(pieces, most), least, 1}));
    }
    const int32_t fill = max_clusters(index) / shape.num_kv_heads;
    if (few_heads && fill >= kLeastEvenFill)
      piece_counts.push_back(std::max({even_jobs(grouping.num_queries(), fill), least, 1}));
  }
  std::sort(piece_counts.begin(), piece_counts.end());
  piece_counts.erase(std::unique(piece_counts.begin(), piece_counts.end()), piece_counts.end());
}

// The same choice can come with and without trees kept whole, one after the other: the better of both counts.
void Planner::Impl::note(const PlanCandidate& candidate) {
  for (size_t i = candidates.size(); i-- > 0;) {
    PlanCandidate& seen = candidates[i];
    if (seen.mode != candidate.mode || seen.num_pieces != candidate.num_pieces) break;
    if (seen.cluster_size != candidate.cluster_size) continue;
    seen.predicted_us = std::min(seen.predicted_us, candidate.predicted_us);
    return;
  }
  candidates.push_back(candidate);
}

// Not jobs by the dozen in a row, nor, with much to read, a small share of the CTAs busy.
bool Planner::Impl::is_tried(int index, int32_t num_pieces) const {
  if (!may_use(index)) return false;
  if (best_groups.empty() && num_pieces == piece_counts.back()) return true;
  const int64_t jobs = int64_t{num_pieces} * shape.num_kv_heads;
  const int64_t clusters = max_clusters(index);
  if (num_pieces > piece_counts.front() && jobs > clusters * kMostJobsInARow) return false;
  return is_small || num_pieces == piece_counts.back() ||
         (jobs << index) * kLeastBusy >= profile.num_sms;
}

// Faster, or as fast and reads less: what a model cannot tell apart is decided by traffic. On clusters of one size a
// little less will do: groups that begin inside a subtree read a little more and, what the model does not see, have
// uneven streams.
bool Planner::Impl::is_better(const Grouping::Estimate& estimate, int32_t cluster_size) const {
  if (best_groups.empty()) return true;
  const int64_t less = cluster_size == best.cluster_size ? kLess : kMuchLess;
  const bool reads_less = estimate.planned_tiles * less < best_tiles * (less - 1);
  const bool reads_more = estimate.planned_tiles * (less - 1) > best_tiles * less;
  const double margin = reads_less ? 1 + kTie : reads_more ? 1 - kTie : 1;
  // Ties do not add up: the second bound.
  return estimate.us < best.predicted_us * margin && estimate.us < good_us();
}

// Returns whether more pieces than these may do better: always where no cluster size was tried. Where cuts go through
// trees that is no longer so once all jobs together take too long, for more pieces read more; with trees kept whole,
// once a bound of any kind says no.
bool Planner::Impl::try_groups(Mode mode, int32_t num_pieces, bool keep_trees) {
  if (keep_trees) grouping.keep_trees();
  bool tried = false, more_may_win = false;
  for (int index = 0; index < kNumClusterSizes; ++index) {
    if (!is_tried(index, num_pieces)) continue;
    tried = true;
    const int32_t cluster_size = 1 << index;
    const double good = good_us();
    const Grouping::Estimate estimate = grouping.evaluate(cluster_size, max_clusters(index), good);
    more_may_win |= !(keep_trees ? estimate.by_bound : estimate.by_total);
    const PlanCandidate candidate{mode, cluster_size, num_pieces, estimate.us};
    note(candidate);
    if (estimate.us >= good) continue;
    const bool wins = is_better(estimate, cluster_size);
    fastest_us = std::min(fastest_us, estimate.us);
    if (!wins) continue;
    best = candidate;
    best_tiles = estimate.planned_tiles;
    best_tile_times = estimate.tile_times;
    best_groups.assign(grouping.groups().begin(), grouping.groups().end());
  }
  return !tried || more_may_win;
}

void Planner::Impl::search_sharing(const PrefixForest& forest, bool flat) {
  const Mode mode = flat                              ? Mode::kFlat
                    : options.mode == Mode::kSharedL2 ? Mode::kSharedL2
                                                      : Mode::kAuto;
  grouping.set_forest(forest, flat);
  collect_piece_counts();
  for (const int32_t num_pieces : piece_counts) {
    const bool cuts_trees = grouping.cut(num_pieces);
    bool more_may_win = try_groups(mode, num_pieces, false);
    if (!cuts_trees) continue;
    more_may_win |= try_groups(mode, num_pieces, true);
    const bool fills_card = int64_t{num_pieces} * shape.num_kv_heads >= max_clusters(0);
    if (fills_card && !more_may_win) break;
  }
}

void Planner::Impl::search(const PrefixForest& forest) {
  if (options.mode != Mode::kFlat) search_sharing(forest, false);
  const bool shares = forest.flat_tokens() > forest.unique_tokens();
  if (options.mode == Mode::kAuto && shares) {
    // Sharing that does not pay is not used: "never slower than plain decode". Most often there is nothing
    // to look for: reading all of the flat bytes takes longer than the best plan.
    const double bytes = static_cast<double>(model.tile_bytes()) / kTileTokens * shape.num_kv_heads;
    const double unique = static_cast<double>(forest.unique_tokens()) * bytes;
    const double again = static_cast<double>(forest.flat_tokens()) * bytes - unique;
    const double again_gbps = profile.l2_gbps_per_cta * profile.num_sms;
    const double flat_us = profile.launch_us + profile.job_start_us +
                           std::min(profile.item_start_us, profile.stream_start_us) +
                           (unique / profile.hbm_gbps + again / again_gbps) / 1e3;
    if (flat_us >= best.predicted_us) return;
  }
  if (options.mode == Mode::kFlat || (options.mode == Mode::kAuto && shares))
    search_sharing(forest, true);
}

void Planner::Impl::build(const PrefixForest& forest) {
  const auto index = static_cast<size_t>(cluster_size_index(best.cluster_size));
  builder.build({&forest, best.mode, best.cluster_size, profile.max_clusters[index], best_groups,
                 best_tile_times, options.fixed_grid});
  builder.assemble(profile_hash, best.predicted_us, &plan.words_);
}

void Planner::Impl::summarise() {
  is_summarised = true;
  std::sort(candidates.begin(), candidates.end(),
            [&](const PlanCandidate& a, const PlanCandidate& b) {
              const auto key = [&](const PlanCandidate& c) {
                const bool chosen = c.mode == best.mode && c.cluster_size == best.cluster_size &&
                                    c.num_pieces == best.num_pieces;
                return std::tuple(!chosen, c.predicted_us, c.mode, c.cluster_size, c.num_pieces);
              };
              return key(a) < key(b);
            });
  summary.mode = best.mode;
  const PlanHeader& header = PlanView(plan.data()).header();
  const int64_t unique_tokens = header.unique_tokens, flat_tokens = header.flat_tokens;
  summary.fallback = flat_tokens == unique_tokens  ? Fallback::kNothingShared
                     : options.mode != Mode::kAuto ? Fallback::kAsked
                     : best.mode == Mode::kFlat    ? Fallback::kNotWorthIt
                                                   : Fallback::kNone;
  summary.num_groups = static_cast<int32_t>(best_groups.size());
  summary.num_jobs = static_cast<int32_t>(builder.job_costs().size());
  summary.cluster_size = best.cluster_size;
  summary.num_clusters = builder.num_clusters();
  summary.resident_clusters =
      profile.max_clusters[static_cast<size_t>(cluster_size_index(best.cluster_size))];
  const int64_t heads = shape.num_kv_heads;
  const int64_t token_bytes = dtype_bytes(shape.dtype) * (shape.head_dim + shape.v_dim());
  summary.unique_bytes = unique_tokens * token_bytes * heads;
  summary.flat_bytes = flat_tokens * token_bytes * heads;
  summary.planned_bytes =
      (builder.planned_tiles() + updater.added_tiles()) * model.tile_bytes() * heads;
  summary.exchange_bytes = builder.exchange_rows() * model.partial_bytes() * heads;
  summary.split_bytes = builder.split_rows() * model.partial_bytes() * heads;
  const double flops =
      2.0 * static_cast<double>(flat_tokens) * shape.num_q_heads * (shape.head_dim + shape.v_dim());
  summary.hbm_us = static_cast<double>(summary.unique_bytes) / (profile.hbm_gbps * 1e3);
  summary.compute_us = flops / (profile.matrix_tflops * 1e6);
  summary.floor_us = model.floor_us(unique_tokens, flat_tokens);
  const int active = best.cluster_size * std::max(summary.num_clusters, 1);
  const int64_t reread = std::max<int64_t>(summary.planned_bytes - summary.unique_bytes, 0);
  summary.l2_us = static_cast<double>(reread) / (profile.l2_gbps_per_cta * 1e3 * active);
  summary.exchange_us = 0;
  for (const PlanBuilder::JobCost& job : builder.job_costs())
    summary.exchange_us = std::max(
        summary.exchange_us, model.exchange_us(job.rows, job.partial_rows, best.cluster_size));
  const int64_t entries = static_cast<int64_t>(summary.num_jobs) * heads;
  const int64_t rounds =
      summary.num_clusters > 0 ? (entries + summary.num_clusters - 1) / summary.num_clusters : 0;
  summary.launch_us = profile.launch_us;
  summary.job_start_us = static_cast<double>(rounds) * profile.job_start_us;
  summary.predicted_us = best.predicted_us + added_us;
  summary.candidates = candidates;
  give_reason();
}

// Fits the string that is there: a warm planner does not allocate.
void Planner::Impl::give_reason() {
  const PlanSummary& s = summary;
  const auto ratio = [](int64_t a, int64_t b) {
    return static_cast<double>(a) / static_cast<double>(std::max<int64_t>(b, 1));
  };
  char text[kReasonBytes];
  int used = std::snprintf(text, sizeof text, "nothing to do: no request has keys");
  if (s.flat_bytes > 0) {
    used = std::snprintf(
        text, sizeof text,
        "%d job%s a KV head on clusters of %d: reads %.2f times the unique keys (flat: %.2f), "
        "%.1f us predicted against a floor of %.1f us",
        s.num_jobs, s.num_jobs == 1 ? "" : "s", s.cluster_size,
        ratio(s.planned_bytes, s.unique_bytes), ratio(s.flat_bytes, s.unique_bytes), s.predicted_us,
        s.floor_us);
    if (s.candidates.size() > 1 && used > 0 && used < kReasonBytes) {
      const PlanCandidate& other = s.candidates[1];
      const int more = std::snprintf(text + used, sizeof text - static_cast<size_t>(used),
                                     "; next best: %s, clusters of %d, %d piece%s, %.1f us%s",
                                     mode_name(other.mode), other.cluster_size, other.num_pieces,
                                     other.num_pieces == 1 ? "" : "s", other.predicted_us,
                                     other.predicted_us < s.candidates[0].predicted_us
                                         ? ", as good as equal (within 2 %)"
                                         : "");
      used = more < 0 ? used : used + more;
    }
  }
  summary.reason.assign(text, static_cast<size_t>(std::clamp(used, 0, kReasonBytes - 1)));
}

Planner::Planner(const ModelShape& shape, const DeviceProfile& profile,
                 const PlanOptions& options) {
  check_shape(shape);
  validate_profile(profile);
  check_options(options, profile);
  impl_ = std::make_unique<Impl>(shape, profile, options);
  impl_->summary.reason.reserve(kReasonBytes);
}
Planner::~Planner() = default;
Planner::Planner(Planner&&) noexcept = default;
Planner& Planner::operator=(Planner&&) noexcept = default;

const Plan& Planner::plan(const PrefixForest& forest) {
  Impl& self = *impl_;
  self.candidates.clear();
  self.best_groups.clear();
  self.best = {};
  self.fastest_us = kNeverUs;
  if (self.options.cluster_size != 0) self.best.cluster_size = self.options.cluster_size;
  if (forest.num_requests() > 0) {
    self.search(forest);
    if (self.best_groups.empty())
      throw InternalError(five_parts("Planner::plan", "search", "found no groups",
                                     "find some for any batch", "report the profile and options"));
  }
  self.build(forest);
  self.summary.num_requests = forest.num_requests();
  self.summary.num_nodes = static_cast<int32_t>(forest.nodes().size());
  self.is_summarised = false;
  self.planned_anew = true;
  self.added_us = 0;
  self.updater.planned(forest);
  return self.plan;
}

const Plan& Planner::update(const PrefixForest& forest) {
  Impl& self = *impl_;
  if (!self.updater.update(forest, &self.plan.words_)) return plan(forest);
  // What was added comes from HBM, whatever else the step does.
  const int64_t bytes =
      self.updater.added_tiles() * self.model.tile_bytes() * self.shape.num_kv_heads;
  self.added_us = static_cast<double>(bytes) / (self.profile.hbm_gbps * 1e3);
  reinterpret_cast<PlanHeader*>(self.plan.words_.data())->predicted_us =
      static_cast<float>(self.best.predicted_us + self.added_us);
  self.is_summarised = false;
  self.planned_anew = false;
  return self.plan;
}

bool Planner::planned_anew() const {
  return impl_->planned_anew;
}

const PlanSummary& Planner::summary() const {
  if (!impl_->is_summarised) impl_->summarise();
  return impl_->summary;
}
const ModelShape& Planner::shape() const {
  return impl_->shape;
}
const DeviceProfile& Planner::profile() const {
  return impl_->profile;
}
const PlanOptions& Planner::options() const {
  return impl_->options;
}

}  // namespace capillary
