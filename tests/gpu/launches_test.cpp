// SPDX-License-Identifier: MIT
// What can go wrong between launches: graphs replayed over rewritten plans, two streams at once, uploads that
// overtake a slow stream, dependent launches, a rank that idles while its peers read. Outputs are compared bit
// by bit with one eager launch of the same plan, and that with the CPU interpreter. Skipped without a card.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "capillary/cuda.h"
#include "capillary/decode.h"
#include "capillary/error.h"
#include "shared/plan_layout.h"

namespace capillary {
namespace {

constexpr int32_t kRequests = 64, kPageSize = 16, kColumns = 80, kPages = 6000;
constexpr int32_t kQHeads = 8, kKvHeads = 2, kDim = 128;
constexpr size_t kQElems = size_t{kRequests} * kQHeads * kDim;
constexpr size_t kCacheElems = size_t{kPages} * kPageSize * kKvHeads * kDim;

void require(cudaError_t error) {
  if (error != cudaSuccess) throw DeviceError(cudaGetErrorString(error));
}

class Bytes {
 public:
  explicit Bytes(size_t size) : size_(size) { require(cudaMalloc(&data_, size)); }
  ~Bytes() { (void)cudaFree(data_); }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  void* get() const { return data_; }
  size_t size() const { return size_; }

 private:
  void* data_ = nullptr;
  size_t size_;
};

struct Stream {
  Stream() { require(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking)); }
  ~Stream() { (void)cudaStreamDestroy(handle); }
  cudaStream_t handle = nullptr;
};

// Nodes x tokens a level; the requests are dealt to the nodes of a level in equal runs.
using Tree = std::vector<std::pair<int32_t, int32_t>>;

struct Table {
  std::vector<int32_t> ids = std::vector<int32_t>(size_t{kRequests} * kColumns, -1);
  std::vector<int32_t> lens = std::vector<int32_t>(kRequests, 0);
  BlockTableView view() const {
    BlockTableView view;
    view.data = ids.data();
    view.num_requests = kRequests;
    view.num_columns = kColumns;
    view.row_stride = kColumns;
    return view;
  }
};

Table make_table(const Tree& tree) {
  Table table;
  int32_t next_page = 7;
  for (const auto& [nodes, tokens] : tree) {
    const int32_t pages = (tokens + kPageSize - 1) / kPageSize;
    for (int32_t node = 0; node < nodes; ++node) {
      for (int32_t request = kRequests * node / nodes; request < kRequests * (node + 1) / nodes;
           ++request) {
        int32_t& length = table.lens[static_cast<size_t>(request)];
        for (int32_t page = 0; page < pages; ++page)
          table.ids[static_cast<size_t>(request * kColumns + length / kPageSize + page)] =
              next_page + page;
        length += tokens;
      }
      next_page += pages;
    }
  }
  return table;
}

const std::vector<Tree>& trees() {
  static const std::vector<Tree> kTrees = {
      {{1, 512}, {64, 61}},                            // one prefix
      {{4, 256}, {16, 64}, {64, 33}},                  // deeper
      {{64, 300}},                                     // nothing shared
      {},                                              // empty
      {{1, 16}, {2, 16}, {4, 16}, {8, 16}, {64, 16}},  // shorter, many levels
      {{1, 1008}, {64, 1}},                            // a long one
  };
  return kTrees;
}

class Launches : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
    try {
      cuda::require_supported(0);
    } catch (const UnsupportedArch& error) {
      GTEST_SKIP() << error.what();
    }
    std::mt19937 rng(5);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<uint16_t>* values, size_t count) {
      values->resize(count);
      for (uint16_t& value : *values) {
        const float number = normal(rng);
        uint32_t bits;
        std::memcpy(&bits, &number, 4);
        value = static_cast<uint16_t>(bits >> 16);
      }
    };
    fill(&h_q_, kQElems);
    fill(&h_k_, kCacheElems);
    fill(&h_v_, kCacheElems);
    q_ = upload(h_q_);
    k_ = upload(h_k_);
    v_ = upload(h_v_);
  }

  static std::unique_ptr<Bytes> upload(const std::vector<uint16_t>& values) {
    auto bytes = std::make_unique<Bytes>(values.size() * 2);
    require(cudaMemcpy(bytes->get(), values.data(), bytes->size(), cudaMemcpyHostToDevice));
    return bytes;
  }

  // A place for outputs, the table and the workspace, so that runs can be under way side by side.
  struct Lane {
    Bytes out{kQElems * 2}, lse{size_t{kRequests} * kQHeads * 4};
    Bytes table{size_t{kRequests} * kColumns * 4};
    Bytes workspace{64 << 20};
    Lane() { require(cudaMemset(workspace.get(), 0xFF, workspace.size())); }
  };

  DecodeTensors tensors(const Lane& lane) const {
    const auto view = [](void* data, DType dtype, std::initializer_list<int64_t> shape) {
      TensorView tensor;
      tensor.data = data;
      tensor.dtype = dtype;
      tensor.device = DeviceType::kCuda;
      tensor.ndim = static_cast<int32_t>(shape.size());
      std::copy(shape.begin(), shape.end(), tensor.shape.begin());
      int64_t stride = 1;
      for (auto i = static_cast<size_t>(tensor.ndim); i-- > 0; stride *= tensor.shape[i])
        tensor.strides[i] = stride;
      return tensor;
    };
    DecodeTensors tensors;
    tensors.q = view(q_->get(), DType::kBFloat16, {kRequests, kQHeads, kDim});
    tensors.k_cache = view(k_->get(), DType::kBFloat16, {kPages, kPageSize, kKvHeads, kDim});
    tensors.v_cache = view(v_->get(), DType::kBFloat16, {kPages, kPageSize, kKvHeads, kDim});
    tensors.page_ids = view(lane.table.get(), DType::kInt32, {kRequests, kColumns});
    tensors.out = view(lane.out.get(), DType::kBFloat16, {kRequests, kQHeads, kDim});
    tensors.lse = view(lane.lse.get(), DType::kFloat32, {kRequests, kQHeads});
    return tensors;
  }

  static Plan make_plan(const Table& table, int32_t cluster_size, bool fixed_grid) {
    PlanOptions options;
    options.cluster_size = cluster_size;
    options.fixed_grid = fixed_grid;
    const ModelShape shape{kQHeads, kKvHeads, kDim};
    Planner planner(shape, cuda::profile_for_device(0, DType::kBFloat16, kDim), options);
    const PrefixForest forest = PrefixForest::from_block_table(table.view(), table.lens, kPageSize);
    return planner.plan(forest);
  }

  static void set_table(const Lane& lane, const Table& table, cudaStream_t stream) {
    require(cudaMemcpyAsync(lane.table.get(), table.ids.data(), table.ids.size() * 4,
                            cudaMemcpyHostToDevice, stream));
  }
  static std::vector<uint16_t> output(const Lane& lane, cudaStream_t stream) {
    std::vector<uint16_t> out(kQElems);
    require(cudaMemcpyAsync(out.data(), lane.out.get(), lane.out.size(), cudaMemcpyDeviceToHost,
                            stream));
    require(cudaStreamSynchronize(stream));
    return out;
  }
  static void poison(const Lane& lane, cudaStream_t stream) {
    require(cudaMemsetAsync(lane.out.get(), 0xFF, lane.out.size(), stream));
  }

  // One eager launch, in a buffer of its own, checked against the CPU interpreter.
  std::vector<uint16_t> expected(const Table& table, const Plan& plan) {
    Stream stream;
    Lane lane;
    set_table(lane, table, stream.handle);
    poison(lane, stream.handle);
    cuda::PlanBuffer buffer(plan.size_bytes());
    buffer.upload(plan, stream.handle);
    cuda::decode(buffer, tensors(lane), lane.workspace.get(), plan.workspace_bytes(), {},
                 stream.handle);
    std::vector<uint16_t> got = output(lane, stream.handle);

    std::vector<uint16_t> want(kQElems);
    std::vector<float> lse(size_t{kRequests} * kQHeads);
    DecodeTensors host = tensors(lane);
    const auto on_host = [](TensorView* view, void* data) {
      view->data = data;
      view->device = DeviceType::kCpu;
    };
    std::vector<int32_t> ids = table.ids;
    on_host(&host.q, h_q_.data());
    on_host(&host.k_cache, h_k_.data());
    on_host(&host.v_cache, h_v_.data());
    on_host(&host.page_ids, ids.data());
    on_host(&host.out, want.data());
    on_host(&host.lse, lse.data());
    decode_cpu(plan, host);
    const auto number = [](uint16_t bits) {
      const uint32_t wide = uint32_t{bits} << 16;
      float value;
      std::memcpy(&value, &wide, 4);
      return value;
    };
    for (size_t i = 0; i < kQElems; ++i) {
      const float difference = std::abs(number(got[i]) - number(want[i]));
      // NaN fails every comparison, so it is written as "not small".
      if (!(difference <= 0.02f)) {
        ADD_FAILURE() << "element " << i << ": " << number(got[i]) << ", CPU " << number(want[i]);
        break;
      }
    }
    return got;
  }

  std::vector<uint16_t> h_q_, h_k_, h_v_;
  std::unique_ptr<Bytes> q_, k_, v_;
};

TEST_F(Launches, GraphReplaysRewrittenPlans) {
  for (const int32_t cluster_size : {1, 2, 8}) {
    Stream stream;
    Lane lane;
    std::vector<Table> tables;
    std::vector<Plan> plans;
    size_t capacity = 0;
    for (const Tree& tree : trees()) {
      tables.push_back(make_table(tree));
      plans.push_back(make_plan(tables.back(), cluster_size, true));
      capacity = std::max(capacity, plans.back().size_bytes());
    }
    cuda::PlanBuffer buffer(capacity);
    buffer.upload(plans[0], stream.handle);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    require(cudaStreamBeginCapture(stream.handle, cudaStreamCaptureModeThreadLocal));
    cuda::decode(buffer, tensors(lane), lane.workspace.get(),
                 static_cast<int64_t>(lane.workspace.size()), {}, stream.handle);
    require(cudaStreamEndCapture(stream.handle, &graph));
    require(cudaGraphInstantiate(&exec, graph, 0));
    for (int round = 0; round < 3; ++round)
      for (size_t i = 0; i < plans.size(); ++i) {
        set_table(lane, tables[i], stream.handle);
        poison(lane, stream.handle);
        buffer.upload(plans[i], stream.handle);
        require(cudaGraphLaunch(exec, stream.handle));
        EXPECT_EQ(output(lane, stream.handle), expected(tables[i], plans[i]))
            << "tree " << i << ", cluster size " << cluster_size << ", round " << round;
      }
    (void)cudaGraphExecDestroy(exec);
    (void)cudaGraphDestroy(graph);
  }
}

// A batch without requests launches nothing, so there is no captured launch that later plans would have to fit.
TEST_F(Launches, ACapturedBatchOfNobodyHoldsNoPlanToIt) {
  Stream stream;
  Lane lane;
  const Plan plan = make_plan(make_table({{1, 48}, {64, 1}}), 2, false);
  const ModelShape shape{kQHeads, kKvHeads, kDim};
  Planner planner(shape, cuda::profile_for_device(0, DType::kBFloat16, kDim));
  const Plan& nobody = planner.plan(PrefixForest::from_block_table({}, {}, kPageSize));
  cuda::PlanBuffer buffer(std::max(plan.size_bytes(), nobody.size_bytes()));
  buffer.upload(nobody, stream.handle);
  DecodeTensors none = tensors(lane);
  for (TensorView* view : {&none.q, &none.out, &none.lse, &none.page_ids}) view->shape[0] = 0;
  cudaGraph_t graph = nullptr;
  require(cudaStreamBeginCapture(stream.handle, cudaStreamCaptureModeThreadLocal));
  cuda::decode(buffer, none, lane.workspace.get(), static_cast<int64_t>(lane.workspace.size()), {},
               stream.handle);
  require(cudaStreamEndCapture(stream.handle, &graph));
  (void)cudaGraphDestroy(graph);
  EXPECT_NO_THROW(buffer.upload(plan, stream.handle));
  require(cudaStreamSynchronize(stream.handle));
}

// A cluster of 8 with little to do: some ranks have nothing, and must not leave while peers read.
TEST_F(Launches, TenThousandWithIdleRanks) {
  const Table table = make_table({{1, 48}, {64, 1}});
  const Plan plan = make_plan(table, 8, false);
  const std::vector<uint16_t> want = expected(table, plan);
  Stream stream;
  Lane lane;
  set_table(lane, table, stream.handle);
  cuda::PlanBuffer buffer(plan.size_bytes());
  buffer.upload(plan, stream.handle);
  for (int round = 0; round < 20; ++round) {
    poison(lane, stream.handle);
    for (int i = 0; i < 500; ++i)
      cuda::decode(buffer, tensors(lane), lane.workspace.get(), plan.workspace_bytes(), {},
                   stream.handle);
    ASSERT_EQ(output(lane, stream.handle), want) << "after " << 500 * (round + 1);
  }
}

TEST_F(Launches, TwoStreamsAtOnce) {
  const Table tables[2] = {make_table(trees()[1]), make_table(trees()[5])};
  const Plan plans[2] = {make_plan(tables[0], 2, false), make_plan(tables[1], 4, false)};
  const std::vector<uint16_t> want[2] = {expected(tables[0], plans[0]),
                                         expected(tables[1], plans[1])};
  Stream streams[2];
  Lane lanes[2];
  cuda::PlanBuffer buffers[2] = {cuda::PlanBuffer(plans[0].size_bytes()),
                                 cuda::PlanBuffer(plans[1].size_bytes())};
  for (size_t i = 0; i < 2; ++i) {
    set_table(lanes[i], tables[i], streams[i].handle);
    poison(lanes[i], streams[i].handle);
    buffers[i].upload(plans[i], streams[i].handle);
  }
  for (int round = 0; round < 500; ++round)
    for (size_t i = 0; i < 2; ++i)
      cuda::decode(buffers[i], tensors(lanes[i]), lanes[i].workspace.get(),
                   plans[i].workspace_bytes(), {}, streams[i].handle);
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(output(lanes[i], streams[i].handle), want[i]);
}

// Plan A, run A, plan B, run B are all queued behind a stream that is held up; then the plans are destroyed.
TEST_F(Launches, UploadsOutliveTheirPlansOnASlowStream) {
  const Table tables[2] = {make_table(trees()[0]), make_table(trees()[4])};
  std::vector<uint16_t> want[2],
      got[2] = {std::vector<uint16_t>(kQElems), std::vector<uint16_t>(kQElems)};
  Stream stream;
  Lane lanes[2];
  cuda::PlanBuffer buffer(1 << 20);
  for (size_t i = 0; i < 2; ++i) {
    want[i] = expected(tables[i], make_plan(tables[i], 4, false));
    set_table(lanes[i], tables[i], stream.handle);
    poison(lanes[i], stream.handle);
  }
  require(cudaStreamSynchronize(stream.handle));
  require(cudaLaunchHostFunc(
      stream.handle, [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(200)); },
      nullptr));
  for (size_t i = 0; i < 2; ++i) {
    const Plan plan = make_plan(tables[i], 4, false);
    buffer.upload(plan, stream.handle);
    cuda::decode(buffer, tensors(lanes[i]), lanes[i].workspace.get(), plan.workspace_bytes(), {},
                 stream.handle);
  }
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(output(lanes[i], stream.handle), want[i]) << i;
}

// Each launch may start while the one before is still running; its output must wait for it all the same.
TEST_F(Launches, DependentLaunches) {
  const Table table = make_table(trees()[1]);
  const Plan plan = make_plan(table, 2, false);
  const std::vector<uint16_t> want = expected(table, plan);
  Stream stream;
  Lane lane;
  set_table(lane, table, stream.handle);
  poison(lane, stream.handle);
  cuda::PlanBuffer buffer(plan.size_bytes());
  buffer.upload(plan, stream.handle);
  DecodeOptions options;
  options.dependent_launch = true;
  for (int i = 0; i < 200; ++i)
    cuda::decode(buffer, tensors(lane), lane.workspace.get(), plan.workspace_bytes(), options,
                 stream.handle);
  EXPECT_EQ(output(lane, stream.handle), want);
}

// A launch reads its plan before the one before it has ended: it must be its own plan even so.
TEST_F(Launches, DependentLaunchesOfTwoPlansInTurn) {
  const Table tables[2] = {make_table(trees()[1]), make_table(trees()[4])};
  const Plan plans[2] = {make_plan(tables[0], 2, false), make_plan(tables[1], 2, false)};
  std::vector<uint16_t> want[2];
  Stream stream;
  Lane lanes[2];
  cuda::PlanBuffer buffer(1 << 20);
  for (size_t i = 0; i < 2; ++i) {
    want[i] = expected(tables[i], plans[i]);
    set_table(lanes[i], tables[i], stream.handle);
    poison(lanes[i], stream.handle);
  }
  DecodeOptions options;
  options.dependent_launch = true;
  for (int round = 0; round < 100; ++round)
    for (size_t i = 0; i < 2; ++i) {
      buffer.upload(plans[i], stream.handle);
      for (int layer = 0; layer < 3; ++layer)
        cuda::decode(buffer, tensors(lanes[i]), lanes[i].workspace.get(),
                     plans[i].workspace_bytes(), options, stream.handle);
    }
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(output(lanes[i], stream.handle), want[i]) << i;
}

// Rows with fewer partials than are folded together: what is not there must not be another's values with weight 0,
// which make NaN of infinities.
TEST_F(Launches, InfiniteValuesStayInfinite) {
  constexpr uint16_t kInfinity = 0x7F80;
  v_ = upload(std::vector<uint16_t>(kCacheElems, kInfinity));
  for (const size_t tree : {size_t{0}, size_t{1}, size_t{2}})
    for (const int32_t cluster_size : {1, 2, 8}) {
      const Table table = make_table(trees()[tree]);
      const Plan plan = make_plan(table, cluster_size, false);
      Stream stream;
      Lane lane;
      set_table(lane, table, stream.handle);
      cuda::PlanBuffer buffer(plan.size_bytes());
      buffer.upload(plan, stream.handle);
      cuda::decode(buffer, tensors(lane), lane.workspace.get(), plan.workspace_bytes(), {},
                   stream.handle);
      EXPECT_EQ(output(lane, stream.handle), std::vector<uint16_t>(kQElems, kInfinity))
          << "tree " << tree << ", cluster size " << cluster_size;
    }
}

// A green context of a few SMs, current while it lives, and a stream of its own. Driver functions are looked up, so that
// nothing links against libcuda.
class GreenContext {
 public:
  explicit GreenContext(unsigned num_sms) {
    CUdevResource all{}, part{};
    unsigned groups = 1;
    CUdevResourceDesc description = nullptr;
    call<CUresult(CUdevice, CUdevResource*, CUdevResourceType)>("cuDeviceGetDevResource", 0, &all,
                                                                CU_DEV_RESOURCE_TYPE_SM);
    call<CUresult(CUdevResource*, unsigned*, const CUdevResource*, CUdevResource*, unsigned,
                  unsigned)>("cuDevSmResourceSplitByCount", &part, &groups, &all, nullptr, 0,
                             num_sms);
    call<CUresult(CUdevResourceDesc*, CUdevResource*, unsigned)>("cuDevResourceGenerateDesc",
                                                                 &description, &part, 1);
    call<CUresult(CUgreenCtx*, CUdevResourceDesc, CUdevice, unsigned)>(
        "cuGreenCtxCreate", &green_, description, 0, CU_GREEN_CTX_DEFAULT_STREAM);
    CUcontext context = nullptr;
    call<CUresult(CUcontext*, CUgreenCtx)>("cuCtxFromGreenCtx", &context, green_);
    call<CUresult(CUcontext)>("cuCtxPushCurrent", context);
    call<CUresult(CUstream*, CUgreenCtx, unsigned, int)>("cuGreenCtxStreamCreate", &stream_, green_,
                                                         CU_STREAM_NON_BLOCKING, 0);
    num_sms_ = static_cast<int>(part.sm.smCount);
  }
  ~GreenContext() {
    (void)cudaStreamDestroy(stream_);
    CUcontext context = nullptr;
    try {
      call<CUresult(CUcontext*)>("cuCtxPopCurrent", &context);
      call<CUresult(CUgreenCtx)>("cuGreenCtxDestroy", green_);
    } catch (const DeviceError& error) {
      ADD_FAILURE() << error.what();
    }
  }
  GreenContext(const GreenContext&) = delete;
  GreenContext& operator=(const GreenContext&) = delete;
  int num_sms() const { return num_sms_; }
  cudaStream_t stream() const { return stream_; }

 private:
  template <class Function, class... Arguments>
  static void call(const char* name, Arguments... arguments) {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found{};
    require(cudaGetDriverEntryPointByVersion(name, &entry, 12080, cudaEnableDefault, &found));
    if (entry == nullptr || found != cudaDriverEntryPointSuccess)
      throw DeviceError(std::string(name) + ": not offered by this driver");
    const CUresult result = reinterpret_cast<Function*>(entry)(arguments...);
    if (result != CUDA_SUCCESS)
      throw DeviceError(std::string(name) + ": CUresult " + std::to_string(result));
  }

  CUgreenCtx green_ = nullptr;
  CUstream stream_ = nullptr;
  int num_sms_ = 0;
};

// Fewer SMs, and not each cluster size: limits are asked of the context, plans keep to them, results are the same.
TEST_F(Launches, GreenContextsHaveLimitsOfTheirOwn) {
  const auto whole = cuda::max_clusters(0, DType::kBFloat16, kDim);
  for (const unsigned num_sms : {8u, 16u, 40u}) {
    GreenContext green(num_sms);
    const auto part = cuda::max_clusters(0, DType::kBFloat16, kDim);
    EXPECT_EQ(part[0], green.num_sms());
    std::string counts;
    for (size_t i = 0; i < part.size(); ++i) {
      EXPECT_LE(part[i] << i, green.num_sms());
      counts += " " + std::to_string(part[i]);
    }
    RecordProperty("clusters of 1 to 16 on " + std::to_string(green.num_sms()) + " SMs", counts);
    printf("%d SMs: clusters of 1, 2, 4, 8, 16:%s\n", green.num_sms(), counts.c_str());
    for (const Tree& tree : trees()) {
      if (tree.empty()) continue;
      const Table table = make_table(tree);
      for (int32_t index = -1; index < kNumClusterSizes; ++index) {
        const int32_t cluster_size = index < 0 ? 0 : 1 << index;
        if (index >= 0 && part[static_cast<size_t>(index)] == 0) {
          EXPECT_THROW(make_plan(table, cluster_size, false), Error) << cluster_size;
          continue;
        }
        const Plan plan = make_plan(table, cluster_size, false);
        const PlanHeader& header = PlanView(plan.data()).header();
        EXPECT_LE(header.num_clusters * header.cluster_size, green.num_sms());
        Lane lane;
        set_table(lane, table, green.stream());
        poison(lane, green.stream());
        cuda::PlanBuffer buffer(plan.size_bytes());
        buffer.upload(plan, green.stream());
        cuda::decode(buffer, tensors(lane), lane.workspace.get(), plan.workspace_bytes(), {},
                     green.stream());
        EXPECT_EQ(output(lane, green.stream()), expected(table, plan)) << cluster_size;
      }
    }
  }
  EXPECT_EQ(cuda::max_clusters(0, DType::kBFloat16, kDim), whole);
}

}  // namespace
}  // namespace capillary
