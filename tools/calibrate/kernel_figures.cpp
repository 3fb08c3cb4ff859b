// SPDX-License-Identifier: MIT
// Each function below varies one thing (kernel_figures.h). Warm steps keep their keys in L2 and their CTAs few, so that
// what is timed is the kernel and not the memory; cold ones read HBM.
#include "calibrate/kernel_figures.h"

#include <algorithm>
#include <cstdio>

#include "calibrate/fit.h"
#include "core/cost_model.h"
#include "shared/plan_layout.h"

namespace capillary::calibrate {

namespace {

// Few enough CTAs that one never waits for another's traffic.
constexpr int32_t kFewCtas = 4;
// A group size whose every item is wide: more rows than a stream takes.
constexpr int32_t kWideGroup = 32;
// Figures that are what is left after others were taken away do not go below this: the model divides by none, but
// a profile refuses zero.
constexpr double kLeastUs = 0.05;
constexpr double kLeastLatencyUs = 0.01;

std::string text(double value, int digits) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.*f", digits, value);
  return buffer;
}

class KernelMeasurement {
 public:
  KernelMeasurement(StepTimer& timer, const CardLimits& card,
                    const std::function<void(const std::string&)>& progress)
      : timer_(timer), card_(card), progress_(progress) {}

  Measurements run() {
    narrow_tile();
    stream_item();
    wide_step();
    phase();
    job();
    launch();
    split();
    exchange();
    read_by_ctas();
    return std::move(found_);
  }

 private:
  void narrow_tile();
  void stream_item();
  void wide_step();
  void phase();
  void job();
  void launch();
  void split();
  void exchange();
  void read_by_ctas();

  // Times points of one experiment; what they had in samples and spread goes into its figures.
  void begin(const std::string& what) {
    progress_(what);
    samples_ = 0;
    spread_ = 0;
  }
  double time_us(const SyntheticShape& shape, Cache cache) {
    const Timing timing = summarise(timer_.time_us(make_synthetic_step(shape), cache));
    samples_ += timing.samples;
    spread_ = std::max(spread_, timing.spread);
    return timing.median;
  }
  void record(const std::string& field, double value, const std::string& method) {
    found_.figures[field] = {value, {method, samples_, spread_}};
  }
  void record_slope(const std::string& field, double value, const Line& line,
                    const std::string& method) {
    record(field, value,
           method + "; farthest point " + text(100 * line.worst_residual, 1) + " % off the line");
  }
  double value(const std::string& field) const { return found_.figures.at(field).value; }
  Curve& new_curve(const std::string& name, const std::string& x, const std::string& unit) {
    found_.curves.push_back({name, x, unit, {}});
    return found_.curves.back();
  }

  StepTimer& timer_;
  CardLimits card_;
  const std::function<void(const std::string&)>& progress_;
  Measurements found_;
  int samples_ = 0;
  double spread_ = 0;
};

// Bytes of one tile of the synthetic steps: K and V, 16 tokens, head_dim 128, 16 bits.
constexpr double kTileBytes = 2.0 * kTileTokens * 128 * 2;

// A query a stream, more and more tiles each.
void KernelMeasurement::narrow_tile() {
  begin("narrow tiles");
  const auto tile_us = [&](int32_t rows, Line* line) {
    std::vector<Point> points;
    for (const int32_t tiles : {8, 16, 32, 64}) {
      SyntheticShape shape;
      shape.num_kv_heads = shape.max_clusters = kFewCtas;
      shape.group_size = rows;
      shape.num_queries = kMaxStreams;
      shape.private_tiles = tiles;
      points.push_back({static_cast<double>(tiles), time_us(shape, Cache::kWarm)});
    }
    *line = fit_line(points);
    return line->slope;
  };
  Line line;
  const double us = tile_us(4, &line);
  record_slope("narrow_tile_us", us, line,
               "kernel: eight streams of one query each (4 rows), 8 to 64 tiles a stream, on " +
                   std::to_string(kFewCtas) + " CTAs, keys in L2; slope over tiles");
  Curve& curve = new_curve("narrow_tile_us_by_rows", "rows of the item", "us");
  curve.points.push_back({4, us});
  for (const int32_t rows : {8, 16})
    curve.points.push_back({static_cast<double>(rows), tile_us(rows, &line)});
}

// The same tiles in more and more items.
void KernelMeasurement::stream_item() {
  begin("items of streams");
  constexpr int32_t kTiles = 32;  // of a stream
  std::vector<Point> points;
  for (const int32_t items : {1, 2, 4, 8, 16}) {
    SyntheticShape shape;
    shape.num_kv_heads = shape.max_clusters = kFewCtas;
    shape.group_size = 1;
    shape.num_queries = kMaxStreams * items;
    shape.private_tiles = kTiles / items;
    points.push_back({static_cast<double>(items), time_us(shape, Cache::kWarm)});
  }
  const Line line = fit_line(points);
  record_slope("stream_item_us", std::max(line.slope, kLeastUs), line,
               "kernel: 32 tiles a stream in 1 to 16 items, on " + std::to_string(kFewCtas) +
                   " CTAs, keys in L2; slope over items");
}

// Every CTA reads the same shared keys for its own rows, as the groups of one long prefix do.
void KernelMeasurement::wide_step() {
  begin("wide steps");
  const auto tile_us = [&](int32_t rows, Line* line) {
    const int32_t queries = rows / kWideGroup;
    std::vector<Point> points;
    for (const int32_t tiles : {64, 128, 256}) {
      SyntheticShape shape;
      shape.max_clusters = card_.num_sms;
      shape.group_size = kWideGroup;
      shape.num_queries = card_.num_sms * queries;
      shape.levels = {{shape.num_queries, tiles}};
      shape.groups = even_groups(shape.num_queries, queries);
      points.push_back({static_cast<double>(tiles), time_us(shape, Cache::kWarm)});
    }
    *line = fit_line(points);
    return line->slope;
  };
  Curve by_rows{"wide_tile_us_by_rows", "rows of the item", "us", {}};
  Line line64, line128, other;
  for (const int32_t rows : {32, 64, 96, 128}) {
    Line& line = rows == 64 ? line64 : rows == 128 ? line128 : other;
    by_rows.points.push_back({static_cast<double>(rows), tile_us(rows, &line)});
  }
  const std::string method =
      " rows a CTA, all CTAs on the same 64 to 256 tiles, keys in L2; slope over tiles";
  record_slope("wide_gbps_per_cta", kTileBytes / (line64.slope * 1e3), line64,
               "kernel: 64" + method);
  // A tile for two blocks of 64 rows: 2 (K and V) x 2 x 16 x 128 x 128 operations.
  const double flops = 2 * 2.0 * kTileTokens * 128 * 128;
  record_slope("matrix_tflops", flops * card_.num_sms / (line128.slope * 1e6), line128,
               "kernel: 128" + method);
  found_.curves.push_back(std::move(by_rows));
}

// A path of nodes, each shared by one query fewer: a phase a node, the same tiles and blocks of rows in all.
void KernelMeasurement::phase() {
  begin("phases");
  constexpr int32_t kGroup = 17, kQueries = 7, kTiles = 48;  // 68 to 119 rows: two blocks
  std::vector<Point> points;
  for (const int32_t phases : {1, 2, 3, 4}) {
    SyntheticShape shape;
    shape.num_kv_heads = shape.max_clusters = kFewCtas;
    shape.group_size = kGroup;
    shape.num_queries = kQueries;
    for (int32_t level = 0; level < phases; ++level)
      shape.levels.push_back({kQueries - level, kTiles / phases});
    points.push_back({static_cast<double>(phases), time_us(shape, Cache::kWarm)});
  }
  const Line line = fit_line(points);
  record_slope("item_start_us", std::max(line.slope, kLeastUs), line,
               "kernel: 48 tiles for 68 to 119 rows in 1 to 4 phases, on " +
                   std::to_string(kFewCtas) + " CTAs, keys in L2; slope over phases");
}

// The same tiles in more and more jobs of one phase: wide ones, then those of streams.
void KernelMeasurement::job() {
  begin("jobs");
  constexpr int32_t kCtas = 16;
  const auto over_jobs = [&](bool wide) {
    std::vector<Point> points;
    for (const int32_t jobs : {1, 2, 4, 8}) {
      SyntheticShape shape;
      shape.num_kv_heads = kCtas * jobs;
      shape.max_clusters = kCtas;
      if (wide) {
        shape.group_size = kWideGroup;
        shape.num_queries = 4;
        shape.levels = {{4, 64 / jobs}};
      } else {
        shape.num_queries = kMaxStreams;
        shape.private_tiles = 16 / jobs;
      }
      points.push_back({static_cast<double>(jobs), time_us(shape, Cache::kWarm)});
    }
    return fit_line(points);
  };
  const auto left = [](double us) {
    return us < kLeastUs ? "; less than nothing is left, so the least figure stands here" : "";
  };
  const Line wide = over_jobs(true);
  const double job_us = wide.slope - value("item_start_us");
  record_slope("job_start_us", std::max(job_us, kLeastUs), wide,
               "kernel: 64 tiles for 128 rows in 1 to 8 jobs a CTA, on 16 CTAs, keys in L2; slope "
               "over jobs (" +
                   text(wide.slope, 2) + " us) less item_start_us" + left(job_us));
  begin("jobs of streams");
  const Line narrow = over_jobs(false);
  const double start_us = narrow.slope - value("job_start_us") - value("stream_item_us");
  record_slope(
      "stream_start_us", std::max(start_us, kLeastUs), narrow,
      "kernel: 16 tiles a stream in 1 to 8 jobs a CTA, on 16 CTAs, keys in L2; slope over jobs (" +
          text(narrow.slope, 2) + " us) less job_start_us and stream_item_us" + left(start_us));
}

// The smallest step that uses every CTA, less what the model gives its parts.
void KernelMeasurement::launch() {
  begin("launch");
  SyntheticShape shape;
  shape.num_kv_heads = shape.max_clusters = card_.num_sms;
  shape.private_tiles = 2;
  const double us = time_us(shape, Cache::kCold);
  const double parts = value("job_start_us") + value("stream_start_us") + value("stream_item_us") +
                       2 * value("narrow_tile_us");
  record("launch_us", std::max(us - parts, kLeastUs),
         "kernel: one query of 2 tiles a CTA on all CTAs, in a graph, L2 cold (" + text(us, 2) +
             " us), less job_start_us, stream_start_us, stream_item_us and two of narrow_tile_us");
}

// The same tiles a CTA, once as one query cut over the CTAs and once as a query a CTA.
void KernelMeasurement::split() {
  begin("splits through L2");
  constexpr int32_t kRows = 8, kTiles = 16;
  std::vector<Point> points;
  for (const int32_t parts : {2, 4, 8, 16, 32}) {
    SyntheticShape shape;
    shape.num_kv_heads = std::max(card_.num_sms / parts, 1);
    shape.max_clusters = card_.num_sms;
    shape.group_size = kRows;
    shape.private_tiles = kTiles * parts;
    shape.groups = {{0, 1, parts}};
    const double together = time_us(shape, Cache::kCold);
    shape.num_queries = parts;
    shape.private_tiles = kTiles;
    shape.groups = even_groups(parts, 1);
    points.push_back({static_cast<double>(parts), together - time_us(shape, Cache::kCold)});
  }
  const Line line = fit_line(points);
  record_slope("l2_merge_latency_us", std::max(line.intercept, kLeastUs), line,
               "kernel: 8 rows whose keys are cut over 2 to 32 CTAs, less the same CTAs with a "
               "query each, L2 "
               "cold; intercept over parts (slope " +
                   text(line.slope, 3) + " us a part; the model has " + text(kPartUs, 3) + ")");
  new_curve("split_us_by_parts", "parts", "us").points = points;
}

// The same tiles a CTA, once as keys that the ranks of a cluster share out and once as keys of each CTA alone.
void KernelMeasurement::exchange() {
  begin("exchange between SMs");
  constexpr int32_t kTiles = 16;
  constexpr double kPartialBytes = 128 * 4 + 8;
  std::vector<Sample> samples;
  for (int index = 1; index < kNumClusterSizes; ++index) {
    const int32_t clusters = card_.max_clusters[static_cast<size_t>(index)];
    if (clusters == 0) continue;
    const int32_t cluster_size = 1 << index;
    Curve curve{"exchange_us_cluster_of_" + std::to_string(cluster_size), "rows", "us", {}};
    for (const int32_t queries : {1, 2, 4}) {
      const int32_t rows = queries * kWideGroup;
      SyntheticShape shape;
      shape.group_size = kWideGroup;
      shape.num_queries = queries;
      shape.num_kv_heads = shape.max_clusters = clusters;
      shape.cluster_size = cluster_size;
      shape.levels = {{queries, kTiles * cluster_size}};
      const double together = time_us(shape, Cache::kWarm);
      shape.num_kv_heads = shape.max_clusters = clusters * cluster_size;
      shape.cluster_size = 1;
      shape.levels = {{queries, kTiles}};
      const double us = together - time_us(shape, Cache::kWarm);
      curve.points.push_back({static_cast<double>(rows), us});
      // A rank reads a partial of each of its rows from every rank.
      const double bytes = rows * kPartialBytes;
      const double gbps = card_.dsm_load_gbps_per_cta[static_cast<size_t>(index)];
      const int32_t warps = kMergeWarps * cluster_size;
      const double known_us = bytes / (gbps * 1e3) + largest_cluster_us(cluster_size);
      samples.push_back({2, 2.0 * ((rows + warps - 1) / warps), us - known_us});
    }
    found_.curves.push_back(std::move(curve));
  }
  if (samples.empty()) {
    const std::string method =
        "not measured: no cluster of two CTAs fits on this card; the built-in figure";
    record("cluster_barrier_us", builtin_h200().cluster_barrier_us, method);
    record("dsm_latency_us", builtin_h200().dsm_latency_us, method);
    return;
  }
  const TwoTerms terms = fit_two_terms(samples);
  const std::string method =
      "kernel: 32, 64 and 128 rows whose keys the ranks of a cluster share out, less the same CTAs "
      "with keys of "
      "their own, keys in L2, the partials' bytes taken away, and from clusters of 16 " +
      text(largest_cluster_us(16), 1) + " us; ";
  record("cluster_barrier_us", std::max(terms.a, kLeastUs),
         method + "half of what is the same for all rows");
  record("dsm_latency_us", std::max(terms.b, kLeastLatencyUs),
         method + "half of what each row of the busiest warp adds");
}

// Streaming as the kernel does it, by how many CTAs take part.
void KernelMeasurement::read_by_ctas() {
  begin("the kernel's read rate");
  Curve curve{"kernel_read_gbps_per_cta", "CTAs at work", "GB/s a CTA", {}};
  double most = 0;
  for (const int32_t divisor : {16, 4, 2, 1}) {
    const int32_t ctas = std::max(card_.num_sms / divisor, 1);
    std::vector<Point> points;
    for (const int32_t tiles : {16, 64}) {
      SyntheticShape shape;
      shape.num_kv_heads = shape.max_clusters = ctas;
      shape.num_queries = kMaxStreams;
      shape.private_tiles = tiles;
      points.push_back({static_cast<double>(tiles), time_us(shape, Cache::kCold)});
    }
    const double gbps = kMaxStreams * kTileBytes / (fit_line(points).slope * 1e3);
    curve.points.push_back({static_cast<double>(ctas), gbps});
    most = std::max(most, gbps);
  }
  found_.curves.push_back(std::move(curve));
  record("hbm_gbps_per_cta", most,
         "kernel: eight streams a CTA, 16 and 64 tiles a stream, L2 cold, on a sixteenth of the "
         "CTAs to all; the "
         "highest rate of one CTA (" +
             text(kTileBytes * kMaxStreams / (value("narrow_tile_us") * 1e3), 1) +
             " where the arithmetic is the limit)");
}

}  // namespace

Measurements measure_kernel(StepTimer& timer, const CardLimits& card,
                            const std::function<void(const std::string&)>& progress) {
  return KernelMeasurement(timer, card, progress).run();
}

}  // namespace capillary::calibrate
