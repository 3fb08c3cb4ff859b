// SPDX-License-Identifier: MIT
// capillary_fit_profile WORKLOADS.json BENCH.jsonl: fits the figures of a DeviceProfile that cannot be measured by
// themselves to the times of whole steps. BENCH.jsonl is what `capillary bench --device cuda` wrote, planned with
// the same profile; a record whose plan comes out different now is left out and counted. Every other record,
// by a hash of workload and heads, is held out: fitted on one half, scored on both. Coordinate descent on the
// mean absolute log error of plan_time() against the measured time. Prints the profile's figures.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "capillary/plan.h"
#include "nlohmann/json.hpp"
#include "plan_time.h"
#include "workload/workload.h"

namespace {

using namespace capillary;

struct Point {
  ModelShape shape;
  Plan plan;
  double measured_us;
  bool held_out;
};

struct Figure {
  const char* name;
  double DeviceProfile::*member;
};
constexpr Figure kFitted[] = {{"hbm_gbps_per_cta", &DeviceProfile::hbm_gbps_per_cta},
                              {"l2_gbps_per_cta", &DeviceProfile::l2_gbps_per_cta},
                              {"dsm_latency_us", &DeviceProfile::dsm_latency_us},
                              {"cluster_barrier_us", &DeviceProfile::cluster_barrier_us},
                              {"l2_merge_latency_us", &DeviceProfile::l2_merge_latency_us},
                              {"matrix_tflops", &DeviceProfile::matrix_tflops},
                              {"narrow_tile_us", &DeviceProfile::narrow_tile_us},
                              {"stream_item_us", &DeviceProfile::stream_item_us},
                              {"launch_us", &DeviceProfile::launch_us},
                              {"job_start_us", &DeviceProfile::job_start_us},
                              {"item_start_us", &DeviceProfile::item_start_us}};

std::vector<double> errors_of(const std::vector<Point>& points, const DeviceProfile& profile,
                              bool held_out) {
  std::vector<double> errors;
  for (const Point& point : points) {
    if (point.held_out != held_out) continue;
    const double us = plan_time(point.plan, CostModel(point.shape, profile)).us;
    errors.push_back(std::abs(std::log(us / point.measured_us)));
  }
  return errors;
}

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(std::max<size_t>(values.size(), 1));
}

void report(const char* what, std::vector<double> errors) {
  if (errors.empty()) return;
  std::sort(errors.begin(), errors.end());
  const auto percent = [&](double part) {
    return 100 *
           std::expm1(errors[static_cast<size_t>(part * static_cast<double>(errors.size() - 1))]);
  };
  std::printf("%-9s %4zu points: median error %.1f %%, 95th percentile %.1f %%\n", what,
              errors.size(), percent(0.5), percent(0.95));
}

void fit(const std::vector<Point>& points, DeviceProfile* profile) {
  double best = mean(errors_of(points, *profile, false));
  for (double step = 1.25; step > 1.01; step = std::sqrt(step)) {
    for (bool improved = true; improved;) {
      improved = false;
      for (const Figure& figure : kFitted) {
        for (const double factor : {step, 1 / step}) {
          DeviceProfile tried = *profile;
          tried.*figure.member *= factor;
          const double error = mean(errors_of(points, tried, false));
          if (error > best - 1e-5) continue;
          best = error;
          *profile = tried;
          improved = true;
        }
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: capillary_fit_profile WORKLOADS.json BENCH.jsonl\n");
    return 2;
  }
  try {
    std::ifstream file(argv[1]);
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    const std::vector<Workload> workloads = workloads_from_json(text, argv[1]);
    std::ifstream lines(argv[2]);
    std::vector<Point> points;
    int replanned = 0;
    for (std::string line; std::getline(lines, line);) {
      const auto record = nlohmann::json::parse(line);
      const std::string name = record["workload"], heads = record["heads"], mode = record["mode"];
      for (const Workload& workload : workloads) {
        if (workload.name != name) continue;
        for (const Heads& pair : workload.heads) {
          if (heads_name(pair) != heads) continue;
          const Batch batch = make_batch(workload, workload.page_size);
          const PrefixForest forest =
              PrefixForest::from_block_table(batch.view(), batch.seq_lens, batch.page_size);
          PlanOptions options;
          options.mode = mode == "flat"        ? Mode::kFlat
                         : mode == "shared-l2" ? Mode::kSharedL2
                                               : Mode::kAuto;
          if (record.contains("forced_cluster_size"))
            options.cluster_size = record["forced_cluster_size"];
          const ModelShape shape{pair.num_q_heads, pair.num_kv_heads, workload.head_dim};
          Planner planner(shape, builtin_h200(), options);
          const Plan& plan = planner.plan(forest);
          if (planner.summary().num_jobs != record["num_jobs"] ||
              planner.summary().cluster_size != record["cluster_size"]) {
            ++replanned;
            continue;
          }
          const bool held_out = std::hash<std::string>{}(name + heads) % 2 == 1;
          points.push_back({shape, plan, record["time_us_graph_cold"], held_out});
        }
      }
    }
    std::printf("%zu points, %d left out (planned differently now)\n", points.size(), replanned);
    DeviceProfile profile = builtin_h200();
    report("before", errors_of(points, profile, false));
    fit(points, &profile);
    report("fitted", errors_of(points, profile, false));
    report("held out", errors_of(points, profile, true));
    for (const Figure& figure : kFitted)
      std::printf("%-22s %.4g (was %.4g)\n", figure.name, profile.*figure.member,
                  builtin_h200().*figure.member);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
