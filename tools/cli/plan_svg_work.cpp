// SPDX-License-Identifier: MIT
// Who does the work: ranks by job, clusters by time, and the busiest job phase by phase (plan_svg.h).
#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "cli/plan_svg.h"
#include "cli/svg.h"
#include "fmt/format.h"
#include "shared/plan_layout.h"

namespace capillary::cli {
namespace {

constexpr double kLeft = 90;
constexpr double kPlotWidth = Svg::kWidth - kLeft - 10;
constexpr double kNarrowest = 2;  // px; bars narrower than this are drawn together

const char* heat_class(double share) {
  constexpr const char* kClasses[] = {"h0", "h1", "h2", "h3", "h4"};
  const int step = static_cast<int>(std::ceil(share * 5)) - 1;
  return kClasses[std::clamp(step, 0, 4)];
}

std::string kv_bytes(int64_t bytes) {
  return format_bytes(static_cast<double>(bytes));
}

// Nice steps for a time axis: 1, 2 or 5 times a power of ten, about eight of them.
double axis_step(double largest) {
  double step = std::pow(10.0, std::floor(std::log10(std::max(largest / 8, 1e-6))));
  while (largest / step > 10) step *= largest / step > 25 ? 5 : 2;
  return step;
}

// Bars laid one after another on a row; neighbours too narrow to see become one hatched bar.
class BarRow {
 public:
  BarRow(Svg& svg, double y, double height) : svg_(svg), y_(y), height_(height) {}

  void add(double x, double width, const char* css_class, const std::string& title,
           const std::string& label) {
    if (width >= kNarrowest) {
      flush();
      svg_.rect(x, y_, width, height_, css_class, title);
      svg_.label(x, y_, width, height_, "l", {label});
      return;
    }
    if (count_ == 0) begin_ = x;
    end_ = x + width;
    ++count_;
    class_ = css_class;
    title_ = title;
    if (end_ - begin_ >= kNarrowest * 2) flush();
  }
  void flush() {
    if (count_ == 0) return;
    svg_.rect(begin_, y_, std::max(end_ - begin_, 0.3), height_, class_,
              count_ == 1 ? title_ : fmt::format("{} together, the last: {}", count_, title_));
    count_ = 0;
  }

 private:
  Svg& svg_;
  double y_;
  double height_;
  double begin_ = 0;
  double end_ = 0;
  int count_ = 0;
  const char* class_ = "";
  std::string title_;
};

class JobDrawing {
 public:
  JobDrawing(const PlanReport& report, size_t job)
      : report_(report), view_(report.plan.data()), job_(job) {}

  std::string draw() {
    const JobDigest& job = report_.digest.jobs[job_];
    const int32_t num_ranks = report_.summary.cluster_size;
    double longest_us = 1e-3;
    for (const RankDigest& rank : job.ranks) longest_us = std::max(longest_us, rank.us);
    // Room at the right for the merges.
    px_ = (kPlotWidth - kMergeWidth - 8) / longest_us;
    double y = 4;
    for (int32_t rank = 0; rank < num_ranks; ++rank, y += kRowHeight + 8) draw_rank(rank, y);
    draw_axis(longest_us, y);
    return svg_.str(y + 24,
                    fmt::format("Job {} of {} requests, rank by rank", job_, job.num_queries));
  }

 private:
  static constexpr double kRowHeight = 32;
  static constexpr double kMergeWidth = 120;

  const RankWork& work(int32_t rank) const {
    return view_.rank_works()[job_ * static_cast<size_t>(report_.summary.cluster_size) +
                              static_cast<size_t>(rank)];
  }

  std::string item_title(const WorkItem& item, const char* kind) const {
    int64_t tokens = 0;
    for (uint32_t s = 0; s < item.num_segments; ++s) {
      tokens += view_.segments()[item.segment_begin + s].num_tokens;
    }
    std::string title =
        fmt::format("{} item: rows {} to {}, {} tokens in {} segment{}", kind, item.row_begin,
                    item.row_begin + item.num_rows - 1, format_count(tokens), item.num_segments,
                    item.num_segments == 1 ? "" : "s");
    if (item.num_segments > 0) {
      title += fmt::format(" from position {}",
                           format_count(view_.segments()[item.segment_begin].logical_begin));
    }
    title += item.init_slot == kNoSlot ? ", starts empty"
                                       : fmt::format(", starts from slot {}", item.init_slot);
    title += item.destination == Destination::kOutput
                 ? ", finished to the output"
                 : fmt::format(", left in slot {}", item.dest_slot);
    return title;
  }

  void draw_rank(int32_t rank, double y) {
    const RankDigest& digest = report_.digest.jobs[job_].ranks[static_cast<size_t>(rank)];
    svg_.text(kLeft - 8, y + 14, "t", fmt::format("rank {}", rank), Anchor::kEnd);
    svg_.text(kLeft - 8, y + 27, "t", kv_bytes(digest.kv_bytes), Anchor::kEnd);
    svg_.rect(kLeft, y, kPlotWidth - kMergeWidth - 8, kRowHeight, "track");
    double x = kLeft;
    for (uint32_t p = 0; p < work(rank).num_phases; ++p) {
      const Phase& phase = view_.phases()[work(rank).phase_begin + p];
      const double width = digest.phase_us[p] * px_;
      x += report_.profile.item_start_us * px_;
      if (phase.kind == PhaseKind::kWide) {
        draw_wide(phase, x, y, width);
      } else {
        draw_narrow(phase, x, y, width);
      }
      x += width;
      svg_.line(x, y - 2, x, y + kRowHeight + 2, "ph");
    }
    if (work(rank).num_merges > 0) {
      const double at = kLeft + kPlotWidth - kMergeWidth;
      svg_.rect(at, y, kMergeWidth, kRowHeight, "m e",
                fmt::format("{} merge{}: {} rows finished here, {} partial rows fetched from other "
                            "ranks",
                            work(rank).num_merges, work(rank).num_merges == 1 ? "" : "s",
                            digest.merged_rows, digest.peer_rows));
      svg_.label(at, y, kMergeWidth, kRowHeight, "l",
                 {fmt::format("merges {} rows", digest.merged_rows), "merges"});
    }
  }

  void draw_wide(const Phase& phase, double x, double y, double width) {
    BarRow row(svg_, y, kRowHeight);
    double tiles = 0;
    for (uint32_t i = 0; i < phase.num_items; ++i) {
      tiles += view_.items()[phase.item_begin + i].num_tiles;
    }
    for (uint32_t i = 0; i < phase.num_items; ++i) {
      const WorkItem& item = view_.items()[phase.item_begin + i];
      const double item_width = width * item.num_tiles / std::max(tiles, 1.0);
      row.add(x, item_width, "w e", item_title(item, "wide"),
              fmt::format("{} rows", item.num_rows));
      x += item_width;
    }
    row.flush();
  }

  // A lane a stream; the longest stream fills the phase.
  void draw_narrow(const Phase& phase, double x, double y, double width) {
    const int streams = std::clamp(view_.header().num_streams, 1, kMaxStreams);
    const double height = kRowHeight / streams;
    const double longest =
        std::max(*std::max_element(phase.stream_tiles, phase.stream_tiles + kMaxStreams), 1u);
    uint32_t item_index = phase.item_begin;
    for (int stream = 0; stream < kMaxStreams; ++stream) {
      BarRow row(svg_, y + stream * height, height);
      double at = x;
      for (uint32_t i = 0; i < phase.stream_items[stream]; ++i, ++item_index) {
        const WorkItem& item = view_.items()[item_index];
        const double item_width = width * item.num_tiles / longest;
        row.add(at, item_width, "n e", item_title(item, "narrow"), "");
        at += item_width;
      }
      row.flush();
    }
  }

  void draw_axis(double longest_us, double y) {
    const double step = axis_step(longest_us);
    for (double at = 0; at <= longest_us; at += step) {
      svg_.text(kLeft + at * px_, y + 12, "t", fmt::format("{:g} us", at), Anchor::kMiddle);
    }
  }

  const PlanReport& report_;
  PlanView view_;
  size_t job_;
  double px_ = 1;
  Svg svg_;
};

}  // namespace

std::string ranks_svg(const PlanReport& report) {
  const std::vector<JobDigest>& jobs = report.digest.jobs;
  const int32_t num_ranks = report.summary.cluster_size;
  // At most one column every 6 px: more jobs share a column, which shows its largest.
  const size_t num_columns = std::min(jobs.size(), static_cast<size_t>(kPlotWidth / 6));
  Svg svg;
  int64_t most = 1;
  for (const JobDigest& job : jobs) {
    for (const RankDigest& rank : job.ranks) most = std::max(most, rank.kv_bytes);
  }
  const double column_px = kPlotWidth / static_cast<double>(std::max<size_t>(num_columns, 1));
  constexpr double kCell = 20;
  for (int32_t rank = 0; rank < num_ranks; ++rank) {
    const double y = rank * kCell;
    svg.text(kLeft - 8, y + 14, "t", fmt::format("rank {}", rank), Anchor::kEnd);
    for (size_t column = 0; column < num_columns; ++column) {
      const size_t begin = column * jobs.size() / num_columns;
      const size_t end = (column + 1) * jobs.size() / num_columns;
      size_t largest = begin;
      const auto bytes_of = [&](size_t job) {
        return jobs[job].ranks[static_cast<size_t>(rank)].kv_bytes;
      };
      for (size_t job = begin; job < end; ++job) {
        if (bytes_of(job) > bytes_of(largest)) largest = job;
      }
      const RankDigest& digest = jobs[largest].ranks[static_cast<size_t>(rank)];
      const double x = kLeft + static_cast<double>(column) * column_px;
      std::string title = fmt::format(
          "job {}, rank {}: reads {} a KV head in {} wide and {} narrow items, merges {} "
          "rows, {} partial rows from peers, about {}",
          largest, rank, kv_bytes(digest.kv_bytes), digest.wide_items, digest.narrow_items,
          digest.merged_rows, digest.peer_rows, format_us(digest.us));
      if (end - begin > 1) {
        title = fmt::format("largest of jobs {} to {}: ", begin, end - 1) + title;
      }
      const double share = static_cast<double>(digest.kv_bytes) / static_cast<double>(most);
      svg.rect(x, y, column_px, kCell,
               digest.kv_bytes == 0 ? "track e" : fmt::format("{} e", heat_class(share)), title);
      svg.label(x, y, column_px, kCell, share > 0.6 ? "li" : "l", {kv_bytes(digest.kv_bytes)});
    }
  }
  const double y = num_ranks * kCell;
  svg.text(kLeft - 8, y + 15, "t", "jobs", Anchor::kEnd);
  svg.text(kLeft, y + 15, "t", "0");
  if (jobs.size() > 1) {
    svg.text(kLeft + kPlotWidth, y + 15, "t", fmt::format("{}", jobs.size() - 1), Anchor::kEnd);
  }
  return svg.str(y + 22, fmt::format("KV bytes of each rank of {} jobs", jobs.size()));
}

std::string clusters_svg(const PlanReport& report) {
  const PlanView view(report.plan.data());
  const std::vector<ClusterDigest>& clusters = report.digest.clusters;
  const double height = std::clamp(420.0 / static_cast<double>(clusters.size()), 3.0, 18.0);
  const double launch_us = report.profile.launch_us;
  const double longest_us = std::max(
      {launch_us + report.busiest_us, report.summary.predicted_us, report.summary.floor_us, 0.1});
  const double px = kPlotWidth / (longest_us * 1.02);
  Svg svg;
  for (size_t c = 0; c < clusters.size(); ++c) {
    const double y = static_cast<double>(c) * height + 16;
    BarRow row(svg, y, height > 4 ? height - 1 : height);
    double at_us = launch_us;
    for (uint32_t e = view.schedule_begin()[c]; e < view.schedule_begin()[c + 1]; ++e) {
      const ScheduleEntry& entry = view.schedule()[e];
      const JobDigest& job = report.digest.jobs[entry.job];
      const std::string title = fmt::format(
          "cluster {}: job {}, KV head {}, {}, about {}: start {}, keys {}, exchange {}", c,
          entry.job, entry.kv_head, kv_bytes(job.kv_bytes), format_us(job.us),
          format_us(job.start_us), format_us(job.us - job.start_us - job.exchange_us),
          format_us(job.exchange_us));
      const auto part = [&](double us, const char* css_class, const std::string& label) {
        if (us > 0) row.add(kLeft + at_us * px, us * px, css_class, title, label);
        at_us += us;
      };
      part(job.start_us, "n1 e", "");
      part(job.us - job.start_us - job.exchange_us, entry.job % 2 == 0 ? "g0 e" : "g1 e",
           fmt::format("job {}, head {}", entry.job, entry.kv_head));
      part(job.exchange_us, "m e", "");
    }
    row.flush();
  }
  const double bottom = static_cast<double>(clusters.size()) * height + 20;
  if (launch_us * px >= kNarrowest) {
    svg.rect(kLeft, 16, launch_us * px, static_cast<double>(clusters.size()) * height, "track",
             fmt::format("launch, first bytes and drain: {}", format_us(launch_us)));
  }
  svg.text(kLeft - 8, 26, "t",
           fmt::format("{} cluster{}", clusters.size(), clusters.size() == 1 ? "" : "s"),
           Anchor::kEnd);
  const double step = axis_step(longest_us);
  for (double at = 0; at <= longest_us; at += step) {
    svg.line(kLeft + at * px, bottom, kLeft + at * px, bottom + 5, "ax");
    svg.text(kLeft + at * px, bottom + 17, "t", fmt::format("{:g} us", at), Anchor::kMiddle);
  }
  svg.line(kLeft, bottom, kLeft + kPlotWidth, bottom, "ax");
  const double floor_x = kLeft + report.summary.floor_us * px;
  const double predicted_x = kLeft + report.summary.predicted_us * px;
  svg.line(floor_x, 12, floor_x, bottom, "mark");
  svg.line(predicted_x, 12, predicted_x, bottom, "mark");
  // "predicted" ends at its line; "floor" makes room for it where the two lines are close.
  constexpr double kPredictedWidth = 58;
  const double floor_end = std::min(floor_x, predicted_x - kPredictedWidth);
  svg.text(std::max(floor_end, kLeft + 30), 10, "t", "floor", Anchor::kEnd);
  svg.text(predicted_x, 10, "t", "predicted", Anchor::kEnd);
  return svg.str(bottom + 24, fmt::format("Schedule of {} clusters", clusters.size()));
}

std::string busiest_job_svg(const PlanReport& report) {
  const std::vector<JobDigest>& jobs = report.digest.jobs;
  const auto busiest = std::max_element(
      jobs.begin(), jobs.end(), [](const JobDigest& a, const JobDigest& b) { return a.us < b.us; });
  return JobDrawing(report, static_cast<size_t>(busiest - jobs.begin())).draw();
}

}  // namespace capillary::cli
