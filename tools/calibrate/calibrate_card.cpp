// SPDX-License-Identifier: MIT
#include "calibrate/calibrate_card.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>

#include "calibrate/fit.h"
#include "calibrate/kernel_figures.h"
#include "calibrate/micro.h"
#include "capillary/cuda.h"
#include "cuda/cuda_check.h"
#include "cuda/dispatch.h"
#include "device/device_step.h"
#include "fmt/format.h"

namespace capillary::calibrate {

namespace {

constexpr DType kDtype = DType::kBFloat16;
constexpr int kHeadDim = 128;
constexpr int kStepRepeats = 15;

// The real kernel on the card.
class CardTimer final : public StepTimer {
 public:
  explicit CardTimer(int device) : device_(device) {}
  std::vector<double> time_us(const SyntheticStep& step, Cache cache) override {
    device::StepSpec spec;
    spec.shape = step.shape;
    spec.table = step.batch.view();
    spec.seq_lens = step.batch.seq_lens;
    spec.page_size = step.batch.page_size;
    spec.num_pages = step.batch.num_pages;
    spec.device = device_;
    device::DeviceStep on_card(spec);
    on_card.load(step.plan);
    return on_card.time_us(
        cache == Cache::kCold ? device::Timing::kGraphCold : device::Timing::kGraphWarm,
        kStepRepeats);
  }

 private:
  int device_;
};

class CardCalibration {
 public:
  CardCalibration(int device, const std::function<void(const std::string&)>& progress)
      : device_(device), progress_(progress), info_(cuda::device_info(device)) {}

  Calibration run() {
    facts();
    co_residence();
    reads();
    peers();
    launches();
    arithmetic();
    kernel();
    return make_calibration(profile_, found_);
  }

 private:
  void facts();
  void co_residence();
  void reads();
  void peers();
  void launches();
  void arithmetic();
  void kernel();

  void record(const std::string& field, double value, const Timing& timing,
              const std::string& method) {
    found_.figures[field] = {value, {method, timing.samples, timing.spread}};
  }
  // calls visit(index, cluster size, clusters) for every size that can be launched.
  template <class Visit>
  void each_cluster_size(const Visit& visit) {
    for (int index = 0; index < kNumClusterSizes; ++index) {
      const int32_t clusters = profile_.max_clusters[static_cast<size_t>(index)];
      if (clusters > 0) visit(static_cast<size_t>(index), 1 << index, clusters);
    }
  }
  template <class Measure>
  Curve curve_by_cluster_size(const char* name, const char* unit, const Measure& measure) {
    Curve curve{name, "cluster size", unit, {}};
    each_cluster_size([&](size_t, int cluster_size, int clusters) {
      curve.points.push_back(
          {static_cast<double>(cluster_size), summarise(measure(cluster_size, clusters)).median});
    });
    return curve;
  }

  int device_;
  const std::function<void(const std::string&)>& progress_;
  cuda::DeviceInfo info_;
  DeviceProfile profile_;
  Measurements found_;
};

// What the driver knows.
void CardCalibration::facts() {
  profile_.name = info_.name;
  profile_.card = cuda::card_identity(device_);
  profile_.num_sms = info_.num_sms;
  profile_.l2_bytes = info_.l2_bytes;
  int smem_bytes = 0;
  CAPILLARY_CUDA(
      cudaDeviceGetAttribute(&smem_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device_));
  profile_.smem_bytes_per_cta = smem_bytes;
}

// How many clusters fit: asked for the kernel itself, and looked at with a kernel of its size.
void CardCalibration::co_residence() {
  progress_("co-resident clusters");
  profile_.max_clusters = cuda::max_clusters(device_, kDtype, kHeadDim);
  const auto smem_bytes =
      static_cast<int>(cuda::find_instance("calibrate", kDtype, kHeadDim).smem_bytes);
  each_cluster_size([&](size_t index, int cluster_size, int32_t clusters) {
    int32_t& count = profile_.max_clusters[index];
    while (count > 1 && !run_at_once(cluster_size, count, smem_bytes)) --count;
    const bool one_more = run_at_once(cluster_size, count + 1, smem_bytes);
    found_.figures[fmt::format("max_clusters[{}]", cluster_size)] = {
        static_cast<double>(count),
        {fmt::format("the driver says {} for the kernel; {} with {} bytes of shared memory a CTA "
                     "were seen at the "
                     "same time, one more {}",
                     clusters, count, smem_bytes, one_more ? "too" : "not"),
         1, 0}};
  });
  for (const int kibibytes : {100, 64}) {
    Curve curve{
        fmt::format("co_resident_clusters_{}_kib", kibibytes), "cluster size", "clusters", {}};
    for (int cluster_size = 1; cluster_size <= 16; cluster_size *= 2)
      curve.points.push_back(
          {static_cast<double>(cluster_size),
           static_cast<double>(clusters_that_fit(cluster_size, kibibytes << 10))});
    found_.curves.push_back(std::move(curve));
  }
}

void CardCalibration::reads() {
  progress_("HBM and L2 reads");
  PageReads reads;
  const auto by_ctas = [&](const char* name, int64_t span) {
    Curve curve{name, "co-resident CTAs", "GB/s", {}};
    Timing all;
    for (const int sixteenths : {1, 2, 4, 8, 12, 14, 15, 16}) {
      const int ctas = std::max(info_.num_sms * sixteenths / 16, 1);
      all = summarise(reads.gbps(ctas, span));
      curve.points.push_back({static_cast<double>(ctas), all.median});
    }
    found_.curves.push_back(std::move(curve));
    return all;
  };
  const Timing hbm = by_ctas("hbm_gbps_by_ctas", PageReads::kHbmSpan);
  record("hbm_gbps", hbm.median, hbm,
         fmt::format("bulk copies of 4 KiB from 4 GiB at random into shared memory, {} CTAs",
                     info_.num_sms));
  const Timing l2 = by_ctas("l2_gbps_by_ctas", PageReads::kL2Span);
  record(
      "l2_gbps_per_cta", l2.median / info_.num_sms, l2,
      fmt::format(
          "bulk copies of 4 KiB from 16 MiB at random into shared memory, {} CTAs, a CTA's share",
          info_.num_sms));
}

void CardCalibration::peers() {
  progress_("distributed shared memory");
  double last = 0;
  for (int index = 0; index < kNumClusterSizes; ++index) {
    const auto at = static_cast<size_t>(index);
    const std::string field = fmt::format("dsm_load_gbps_per_cta[{}]", 1 << index);
    const int32_t clusters = profile_.max_clusters[at];
    if (clusters == 0) {
      record(field, last, {}, "not measured: this size cannot be launched; the size before it");
    } else {
      const Timing timing = summarise(dsm_load_gbps(1 << index, clusters));
      last = timing.median;
      record(field, last, timing,
             fmt::format("16-byte loads from the {} shared memory, {} clusters of {}",
                         index == 0 ? "CTA's own" : "next rank's", clusters, 1 << index));
    }
    profile_.dsm_load_gbps_per_cta[at] = last;
  }
  found_.curves.push_back(
      curve_by_cluster_size("dsm_store_gbps_per_cta", "GB/s a CTA", dsm_store_gbps));
  found_.curves.push_back(curve_by_cluster_size("peer_load_latency_us", "us", dsm_latency_us));
  found_.curves.push_back(
      curve_by_cluster_size("hardware_cluster_barrier_us", "us", calibrate::cluster_barrier_us));
}

void CardCalibration::launches() {
  progress_("empty launches");
  found_.curves.push_back(
      curve_by_cluster_size("empty_kernel_in_graph_us", "us", calibrate::empty_launch_us));
}

void CardCalibration::arithmetic() {
  progress_("tensor cores and exponentials");
  const Timing matrix = summarise(calibrate::matrix_tflops());
  record(
      "matrix_ceiling_tflops", matrix.median, matrix,
      "products m64n64k16 of random bf16 numbers in registers and shared memory, all SMs, 50 ms");
  const Timing exponentials = summarise(exp2_per_ns());
  found_.curves.push_back({"exp2_per_ns", "SMs", "1/ns a SM", {{1, exponentials.median}}});
}

void CardCalibration::kernel() {
  CardTimer timer(device_);
  const CardLimits limits{info_.num_sms, profile_.max_clusters, profile_.dsm_load_gbps_per_cta};
  Measurements kernel = measure_kernel(timer, limits, progress_);
  found_.figures.merge(kernel.figures);
  found_.curves.insert(found_.curves.end(), kernel.curves.begin(), kernel.curves.end());
}

}  // namespace

Calibration calibrate_card(int device, const std::function<void(const std::string&)>& progress) {
  cuda::require_supported(device);
  const cuda::DeviceGuard guard(device);
  return CardCalibration(device, progress).run();
}

}  // namespace capillary::calibrate
