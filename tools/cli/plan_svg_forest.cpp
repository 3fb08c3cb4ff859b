// SPDX-License-Identifier: MIT
// The forest and the query groups under it, on one axis: requests in leaf order (plan_svg.h).
#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "cli/plan_svg.h"
#include "cli/svg.h"
#include "fmt/format.h"
#include "shared/plan_layout.h"

namespace capillary::cli {
namespace {

constexpr double kLeft = 90;
constexpr double kPlotWidth = Svg::kWidth - kLeft - 10;
constexpr double kNarrowest = 3;  // px; what is narrower is drawn together with its neighbours
constexpr double kTallestForest = 440;  // px

class ForestDrawing {
 public:
  explicit ForestDrawing(const PlanReport& report)
      : report_(report),
        nodes_(report.forest.nodes()),
        request_px_(kPlotWidth / std::max(report.forest.num_requests(), 1)) {
    scale_ = std::min(1.0, kTallestForest / std::max(deepest(), 1.0));
  }

  std::string draw() {
    svg_.text(kLeft - 8, kTop + 10, "t", "forest", Anchor::kEnd);
    draw_children(0, static_cast<int32_t>(nodes_.size()), kTop);
    double y = kTop + std::max(deepest() * scale_, 24.0) + 14;
    y = draw_axis(y);
    y = draw_groups(y + 10);
    return svg_.str(y, fmt::format("Prefix forest of {} requests with its query groups",
                                   report_.forest.num_requests()));
  }

 private:
  static constexpr double kTop = 6;

  double x_of(double position) const { return kLeft + position * request_px_; }

  // Taller for more tokens, but slowly: a root of 100k tokens and leaves of 16 both stay visible.
  double height_of(double tokens) const {
    return 10 + 9 * std::log2(1 + tokens / report_.forest.page_size());
  }

  double deepest() const {
    std::vector<double> bottom(nodes_.size());
    double deepest = 0;
    for (size_t i = 0; i < nodes_.size(); ++i) {
      const double top = nodes_[i].parent < 0 ? 0 : bottom[static_cast<size_t>(nodes_[i].parent)];
      bottom[i] = top + height_of(nodes_[i].num_tokens);
      deepest = std::max(deepest, bottom[i]);
    }
    return deepest;
  }

  static const char* sharing_class(int32_t requests) {
    return requests >= 64   ? "n4"
           : requests >= 16 ? "n3"
           : requests >= 4  ? "n2"
           : requests >= 2  ? "n1"
                            : "n0";
  }

  // Nodes [begin, end) in preorder are whole subtrees hung at height y; draws them, narrow runs as one.
  void draw_children(int32_t begin, int32_t end, double y) {
    int32_t run_begin = -1;
    int32_t node = begin;
    while (node < end) {
      const ForestNode& at = nodes_[static_cast<size_t>(node)];
      const bool narrow = (at.request_end - at.request_begin) * request_px_ < kNarrowest;
      if (narrow && run_begin < 0) run_begin = node;
      if (!narrow) {
        draw_run(run_begin, node, y);
        run_begin = -1;
        draw_node(node, y);
      }
      node = at.subtree_end;
    }
    draw_run(run_begin, end, y);
  }

  void draw_node(int32_t node, double y) {
    const ForestNode& at = nodes_[static_cast<size_t>(node)];
    const int32_t requests = at.request_end - at.request_begin;
    const double x = x_of(at.request_begin);
    const double width = requests * request_px_;
    const double height = height_of(at.num_tokens) * scale_;
    svg_.rect(x, y, width, height, fmt::format("{} e", sharing_class(requests)),
              fmt::format("node {}: {} tokens from position {}, shared by {} request{} (leaf order "
                          "{} to {})",
                          node, format_count(at.num_tokens), format_count(at.token_begin), requests,
                          requests == 1 ? "" : "s", at.request_begin, at.request_end - 1));
    svg_.label(x, y, width, height, requests >= 16 ? "li" : "l",
               {fmt::format("{} tokens, {} request{}", format_count(at.num_tokens), requests,
                            requests == 1 ? "" : "s"),
                fmt::format("{} x {}", format_count(at.num_tokens), requests),
                format_count(at.num_tokens)});
    draw_children(node + 1, at.subtree_end, y + height);
  }

  void draw_run(int32_t begin, int32_t end, double y) {
    if (begin < 0 || begin == end) return;
    int32_t first_request = INT32_MAX;
    int32_t last_request = 0;
    int64_t path_tokens = 0;  // tokens below y, counted once a request
    int32_t fewest = INT32_MAX;
    int32_t most = 0;
    for (int32_t node = begin; node < end; ++node) {
      const ForestNode& at = nodes_[static_cast<size_t>(node)];
      first_request = std::min(first_request, at.request_begin);
      last_request = std::max(last_request, at.request_end);
      path_tokens += int64_t{at.num_tokens} * (at.request_end - at.request_begin);
      fewest = std::min(fewest, at.num_tokens);
      most = std::max(most, at.num_tokens);
    }
    const int32_t requests = last_request - first_request;
    const double x = x_of(first_request);
    const double width = requests * request_px_;
    const double height = height_of(static_cast<double>(path_tokens) / requests) * scale_;
    const std::string tokens =
        fewest == most ? format_count(most)
                       : fmt::format("{} to {}", format_count(fewest), format_count(most));
    svg_.rect(x, y, width, height, "n0 e");
    svg_.rect(x, y, width, height, "hatch",
              fmt::format("{} nodes of {} tokens each, {} requests (leaf order {} to {})",
                          end - begin, tokens, requests, first_request, last_request - 1));
    svg_.label(x, y, width, height, "l",
               {fmt::format("{} nodes of {} tokens", end - begin, tokens),
                fmt::format("{} x {}", end - begin, tokens), fmt::format("{}", end - begin)});
  }

  double draw_axis(double y) {
    const int32_t requests = report_.forest.num_requests();
    svg_.line(kLeft, y, kLeft + kPlotWidth, y, "ax");
    svg_.text(kLeft - 8, y + 4, "t", "requests", Anchor::kEnd);
    // 1, 2 or 5 times a power of ten, so that at most about a dozen numbers stand on the axis.
    double step = std::pow(10.0, std::floor(std::log10(std::max(requests / 12.0, 1.0))));
    while (requests / step > 12) step *= requests / step > 30 ? 5 : 2;
    for (double at = 0; at <= requests; at += step) {
      svg_.line(x_of(at), y, x_of(at), y + 5, "ax");
      svg_.text(x_of(at), y + 17, "t", fmt::format("{:.0f}", at), Anchor::kMiddle);
    }
    return y + 24;
  }

  struct Group {
    int32_t query_begin, num_queries;
    std::vector<uint32_t> jobs;
    int64_t kv_bytes = 0;
    double us = 0;
  };

  // A run of neighbouring groups, drawn as one when they are narrow.
  void draw_group_run(const std::vector<Group>& groups, size_t begin, size_t end, double y,
                      double most_bytes_per_px) {
    if (begin == end) return;
    const double x = x_of(groups[begin].query_begin);
    const double width = x_of(groups[end - 1].query_begin + groups[end - 1].num_queries) - x;
    int64_t bytes = 0;
    size_t num_jobs = 0;
    double longest_us = 0;
    for (size_t g = begin; g < end; ++g) {
      bytes += groups[g].kv_bytes;
      num_jobs += groups[g].jobs.size();
      longest_us = std::max(longest_us, groups[g].us);
    }
    const size_t count = end - begin;
    const std::string requests =
        fmt::format("leaf order {} to {}", groups[begin].query_begin,
                    groups[end - 1].query_begin + groups[end - 1].num_queries - 1);
    const std::string title =
        count == 1
            ? fmt::format(
                  "query group {}: {} requests ({}), {} of {}, reads {} a KV head, about {}", begin,
                  groups[begin].num_queries, requests,
                  num_jobs == 1 ? fmt::format("job {}", groups[begin].jobs.front())
                                : fmt::format("{} jobs", num_jobs),
                  fmt::format("{} CTAs", report_.summary.cluster_size),
                  format_bytes(static_cast<double>(bytes)), format_us(longest_us))
            : fmt::format("{} query groups ({}), {} jobs, read {} a KV head, the longest about {}",
                          count, requests, num_jobs, format_bytes(static_cast<double>(bytes)),
                          format_us(longest_us));
    const std::string tone = begin % 2 == 0 ? "g0 e" : "g1 e";
    svg_.rect(x, y, width, 20, tone, title);
    if (count > 1) svg_.rect(x, y, width, 20, "hatch", title);
    svg_.label(x, y, width, 20, "l",
               {count == 1 ? fmt::format("{} request{}, {} job{}", groups[begin].num_queries,
                                         groups[begin].num_queries == 1 ? "" : "s", num_jobs,
                                         num_jobs == 1 ? "" : "s")
                           : fmt::format("{} groups", count),
                count == 1 ? fmt::format("{} request{}", groups[begin].num_queries,
                                         groups[begin].num_queries == 1 ? "" : "s")
                           : fmt::format("{}", count)});
    // Area stands for bytes: the same height means the same bytes a request.
    const double height = 60 * static_cast<double>(bytes) / width / most_bytes_per_px;
    svg_.rect(x, y + 88 - height, width, height, tone, title);
    svg_.label(x, y + 26, width, 60, "l", {format_bytes(static_cast<double>(bytes))});
  }

  double draw_groups(double y) {
    std::map<std::pair<int32_t, int32_t>, size_t> index;
    std::vector<Group> groups;
    for (size_t j = 0; j < report_.digest.jobs.size(); ++j) {
      const JobDigest& job = report_.digest.jobs[j];
      const auto [found, is_new] =
          index.try_emplace({job.query_begin, job.num_queries}, groups.size());
      if (is_new) groups.push_back({job.query_begin, job.num_queries, {}, 0, 0});
      Group& group = groups[found->second];
      group.jobs.push_back(static_cast<uint32_t>(j));
      group.kv_bytes += job.kv_bytes;
      group.us = std::max(group.us, job.us);
    }
    std::sort(groups.begin(), groups.end(),
              [](const Group& a, const Group& b) { return a.query_begin < b.query_begin; });
    svg_.text(kLeft - 8, y + 14, "t", "groups", Anchor::kEnd);
    svg_.text(kLeft - 8, y + 56, "t", "KV bytes", Anchor::kEnd);
    svg_.text(kLeft - 8, y + 69, "t", "per request", Anchor::kEnd);
    std::vector<size_t> run_ends;  // runs of groups that are drawn as one
    for (size_t g = 0; g < groups.size(); ++g) {
      const bool narrow = groups[g].num_queries * request_px_ < kNarrowest;
      const bool joins = narrow && g > 0 && groups[g - 1].num_queries * request_px_ < kNarrowest;
      if (joins) {
        run_ends.back() = g + 1;
      } else {
        run_ends.push_back(g + 1);
      }
    }
    double most_bytes_per_px = 1e-9;
    size_t begin = 0;
    for (const size_t end : run_ends) {
      int64_t bytes = 0;
      int32_t queries = 0;
      for (size_t g = begin; g < end; ++g) {
        bytes += groups[g].kv_bytes;
        queries += groups[g].num_queries;
      }
      most_bytes_per_px =
          std::max(most_bytes_per_px, static_cast<double>(bytes) / (queries * request_px_));
      begin = end;
    }
    begin = 0;
    for (const size_t end : run_ends) {
      draw_group_run(groups, begin, end, y, most_bytes_per_px);
      begin = end;
    }
    svg_.line(kLeft, y + 88, kLeft + kPlotWidth, y + 88, "ax");
    return y + 96;
  }

  const PlanReport& report_;
  std::span<const ForestNode> nodes_;
  double request_px_;
  double scale_ = 1;
  Svg svg_;
};

}  // namespace

std::string forest_svg(const PlanReport& report) {
  return ForestDrawing(report).draw();
}

}  // namespace capillary::cli
