// SPDX-License-Identifier: MIT
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "capillary/error.h"
#include "cuda/trace_layout.h"
#include "device/chrome_trace.h"
#include "device/device_step.h"
#include "shared/plan_layout.h"

namespace capillary::device {

namespace {

#define DEVICE_REQUIRE(call)                                                          \
  do {                                                                                \
    const cudaError_t error_ = (call);                                                \
    if (error_ != cudaSuccess)                                                        \
      throw DeviceError(std::string(#call) + ": " + cudaGetErrorName(error_) + ": " + \
                        cudaGetErrorString(error_));                                  \
  } while (false)

constexpr int64_t kColdBytes = 400ll << 20;  // several times the L2
constexpr int kMaxCopies = 96;

__device__ uint32_t mix(uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdull;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ull;
  x ^= x >> 33;
  return static_cast<uint32_t>(x);
}

template <class T>
__device__ T from_float(float x);
template <>
__device__ __half from_float<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

// Sum of four uniforms, variance 1.
template <class T>
__global__ void fill_random(T* data, int64_t count, uint64_t seed) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    const uint32_t bits = mix(static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15ull + seed);
    float sum = 0.0f;
    for (int k = 0; k < 4; ++k) sum += static_cast<float>((bits >> (8 * k)) & 255u) - 127.5f;
    data[i] = from_float<T>(sum * (1.7320508f / 255.0f));
  }
}

struct ReferenceArgs {
  const void *q, *k, *v;
  const int32_t* table;
  const int32_t* seq_lens;
  const int32_t* queries;  // the ones to compute
  int64_t row_stride, page_stride, token_stride, head_stride;
  int num_q_heads, group_size, head_dim, page_size;
  float scale;
  float* out;  // [queries, num_q_heads, head_dim]
  float* lse;
};

// A warp an eighth of the keys, a lane up to eight dims; fp32 throughout, weights not rounded.
template <class T>
__global__ void reference(ReferenceArgs args) {
  constexpr int kWarps = 8;
  __shared__ float s_max[kWarps], s_sum[kWarps];
  __shared__ float s_out[kWarps][256];
  const int query = args.queries[blockIdx.x], head = blockIdx.y;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int length = args.seq_lens[query];
  const T* q = static_cast<const T*>(args.q) +
               (static_cast<int64_t>(query) * args.num_q_heads + head) * args.head_dim;
  float qv[8], acc[8], top = -INFINITY, sum = 0.0f;
  for (int i = 0; i < 8; ++i) {
    qv[i] = lane + 32 * i < args.head_dim ? static_cast<float>(q[lane + 32 * i]) : 0.0f;
    acc[i] = 0.0f;
  }
  for (int token = warp; token < length; token += kWarps) {
    const int64_t page = args.table[query * args.row_stride + token / args.page_size];
    const int64_t offset = page * args.page_stride + (token % args.page_size) * args.token_stride +
                           (head / args.group_size) * args.head_stride;
    const T* k = static_cast<const T*>(args.k) + offset;
    const T* v = static_cast<const T*>(args.v) + offset;
    float dot = 0.0f;
    for (int i = 0; i < 8; ++i)
      if (lane + 32 * i < args.head_dim) dot += qv[i] * static_cast<float>(k[lane + 32 * i]);
    for (int step = 16; step > 0; step /= 2) dot += __shfl_xor_sync(0xffffffffu, dot, step);
    dot *= args.scale;
    const float fresh = fmaxf(top, dot);
    const float kept = expf(top - fresh), weight = expf(dot - fresh);
    sum = sum * kept + weight;
    top = fresh;
    for (int i = 0; i < 8; ++i)
      if (lane + 32 * i < args.head_dim)
        acc[i] = acc[i] * kept + weight * static_cast<float>(v[lane + 32 * i]);
  }
  if (lane == 0) s_max[warp] = top, s_sum[warp] = sum;
  for (int i = 0; i < 8; ++i) s_out[warp][lane + 32 * i] = acc[i];
  __syncthreads();
  float all = -INFINITY, total = 0.0f;
  for (int w = 0; w < kWarps; ++w) all = fmaxf(all, s_max[w]);
  for (int w = 0; w < kWarps; ++w)
    if (s_sum[w] > 0) total += s_sum[w] * expf(s_max[w] - all);
  const int64_t row = static_cast<int64_t>(blockIdx.x) * args.num_q_heads + head;
  for (int dim = threadIdx.x; dim < args.head_dim; dim += blockDim.x) {
    float value = 0.0f;
    for (int w = 0; w < kWarps; ++w)
      if (s_sum[w] > 0) value += s_out[w][dim] * expf(s_max[w] - all);
    args.out[row * args.head_dim + dim] = total > 0 ? value / total : 0.0f;
  }
  if (threadIdx.x == 0) args.lse[row] = total > 0 ? all + logf(total) : -INFINITY;
}

__global__ void stream_read(const uint4* data, int64_t count, uint32_t* sink) {
  uint32_t sum = 0;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i + 7 * stride < count; i += 8 * stride) {
    uint4 value[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) value[k] = __ldcs(data + i + k * stride);
#pragma unroll
    for (int k = 0; k < 8; ++k) sum ^= value[k].x ^ value[k].y ^ value[k].z ^ value[k].w;
  }
  if (sum == 0x12345678u) *sink = sum;
}

class Bytes {
 public:
  Bytes() = default;
  explicit Bytes(int64_t size) {
    DEVICE_REQUIRE(cudaMalloc(&data_, static_cast<size_t>(std::max<int64_t>(size, 16))));
  }
  ~Bytes() { (void)cudaFree(data_); }
  Bytes(Bytes&& other) noexcept : data_(other.data_) { other.data_ = nullptr; }
  Bytes& operator=(Bytes&& other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }
  template <class T = void>
  T* get() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
};

}  // namespace

struct DeviceStep::Impl {
  explicit Impl(const StepSpec& spec_in);
  ~Impl() {
    if (stream != nullptr) (void)cudaStreamDestroy(stream);
  }
  DecodeTensors tensors(int copy) const;
  void run(int copy, bool dependent = false) const {
    DecodeOptions options;
    options.dependent_launch = dependent;
    cuda::decode(*plan_buffer, tensors(copy), workspace.get(), workspace_bytes, options, stream);
  }
  template <class T>
  void fill(T* data, int64_t count, uint64_t seed) const {
    fill_random<<<132 * 8, 256, 0, stream>>>(data, count, seed);
  }

  StepSpec spec;
  std::vector<int32_t> seq_lens;
  int64_t table_rows = 0, table_columns = 0;
  int64_t cache_elems = 0;  // of K of one copy
  int64_t unique_bytes = 0;
  int copies = 1;
  bool settled = false;  // whether anything has been timed yet
  cudaStream_t stream = nullptr;
  Bytes q, k, v, table, lens, out, lse, workspace;
  int64_t workspace_bytes = 0;
  std::unique_ptr<cuda::PlanBuffer> plan_buffer;
  int num_ctas = 0;  // of the plan's launch
};

DeviceStep::Impl::Impl(const StepSpec& spec_in) : spec(spec_in) {
  DEVICE_REQUIRE(cudaSetDevice(spec.device));
  DEVICE_REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const ModelShape& shape = spec.shape;
  seq_lens.assign(spec.seq_lens.begin(), spec.seq_lens.end());
  table_rows = spec.table.num_requests;
  table_columns = spec.table.num_columns;
  cache_elems =
      static_cast<int64_t>(spec.num_pages) * spec.page_size * shape.num_kv_heads * shape.head_dim;
  unique_bytes = cache_elems * 4;
  copies = static_cast<int>(
      std::clamp<int64_t>((kColdBytes + unique_bytes - 1) / unique_bytes, 1, kMaxCopies));
  const int64_t q_elems = table_rows * shape.num_q_heads * shape.head_dim;
  q = Bytes(q_elems * 2);
  out = Bytes(q_elems * 2);
  lse = Bytes(table_rows * shape.num_q_heads * 4);
  k = Bytes(cache_elems * 2 * copies);
  v = Bytes(cache_elems * 2 * copies);
  table = Bytes(table_rows * table_columns * 4);
  lens = Bytes(table_rows * 4);
  for (int64_t row = 0; row < table_rows; ++row)
    DEVICE_REQUIRE(cudaMemcpyAsync(
        table.get<int32_t>() + row * table_columns, spec.table.data + row * spec.table.row_stride,
        static_cast<size_t>(table_columns) * 4, cudaMemcpyHostToDevice, stream));
  DEVICE_REQUIRE(cudaMemcpyAsync(lens.get(), seq_lens.data(), seq_lens.size() * 4,
                                 cudaMemcpyHostToDevice, stream));
  // 16-bit words from the same hash: bf16 and fp16 differ in the conversion alone.
  if (shape.dtype == DType::kFloat16) {
    fill(q.get<__half>(), q_elems, spec.seed);
    fill(k.get<__half>(), cache_elems * copies, spec.seed + 1);
    fill(v.get<__half>(), cache_elems * copies, spec.seed + 2);
  } else {
    fill(q.get<__nv_bfloat16>(), q_elems, spec.seed);
    fill(k.get<__nv_bfloat16>(), cache_elems * copies, spec.seed + 1);
    fill(v.get<__nv_bfloat16>(), cache_elems * copies, spec.seed + 2);
  }
  DEVICE_REQUIRE(cudaGetLastError());
  DEVICE_REQUIRE(cudaStreamSynchronize(stream));
}

DecodeTensors DeviceStep::Impl::tensors(int copy) const {
  const ModelShape& shape = spec.shape;
  const auto view = [&](void* data, DType dtype, std::initializer_list<int64_t> dims,
                        std::initializer_list<int64_t> strides) {
    TensorView tensor;
    tensor.data = data;
    tensor.dtype = dtype;
    tensor.device = DeviceType::kCuda;
    tensor.device_index = spec.device;
    tensor.ndim = static_cast<int32_t>(dims.size());
    std::copy(dims.begin(), dims.end(), tensor.shape.begin());
    std::copy(strides.begin(), strides.end(), tensor.strides.begin());
    return tensor;
  };
  const int64_t dim = shape.head_dim, heads = shape.num_kv_heads, page = spec.page_size;
  const auto cache = [&](const Bytes& bytes) {
    auto* base = bytes.get<char>() + cache_elems * 2 * copy;
    return spec.layout == Layout::kHnd ? view(base, shape.dtype, {spec.num_pages, page, heads, dim},
                                              {heads * page * dim, dim, page * dim, 1})
                                       : view(base, shape.dtype, {spec.num_pages, page, heads, dim},
                                              {heads * page * dim, heads * dim, dim, 1});
  };
  const int64_t q_heads = shape.num_q_heads;
  DecodeTensors tensors;
  tensors.q = view(q.get(), shape.dtype, {table_rows, q_heads, dim}, {q_heads * dim, dim, 1});
  tensors.k_cache = cache(k);
  tensors.v_cache = cache(v);
  tensors.page_ids =
      view(table.get(), DType::kInt32, {table_rows, table_columns}, {table_columns, 1});
  tensors.out = view(out.get(), shape.dtype, {table_rows, q_heads, dim}, {q_heads * dim, dim, 1});
  tensors.lse = view(lse.get(), DType::kFloat32, {table_rows, q_heads}, {q_heads, 1});
  return tensors;
}

DeviceStep::DeviceStep(const StepSpec& spec) : impl_(std::make_unique<Impl>(spec)) {}
DeviceStep::~DeviceStep() = default;

void DeviceStep::load(const Plan& plan) {
  Impl& self = *impl_;
  self.plan_buffer = std::make_unique<cuda::PlanBuffer>(plan.size_bytes(), self.spec.device);
  self.plan_buffer->upload(plan, self.stream);
  self.workspace_bytes = plan.workspace_bytes();
  const PlanHeader& header = PlanView(plan.data()).header();
  self.num_ctas = header.cluster_size * header.num_clusters;
  self.workspace = Bytes(self.workspace_bytes);
  DEVICE_REQUIRE(cudaMemsetAsync(self.workspace.get(), 0xFF,
                                 static_cast<size_t>(self.workspace_bytes), self.stream));
  DEVICE_REQUIRE(cudaStreamSynchronize(self.stream));
}

CheckOutcome DeviceStep::check(int max_queries) {
  Impl& self = *impl_;
  const ModelShape& shape = self.spec.shape;
  const auto rows = static_cast<int>(self.table_rows);
  const int count = std::min(rows, max_queries);
  std::vector<int32_t> queries;
  for (int i = 0; i < count; ++i)
    queries.push_back(
        static_cast<int32_t>(static_cast<int64_t>(i) * (rows - 1) / std::max(count - 1, 1)));
  const int64_t row_elems = static_cast<int64_t>(shape.num_q_heads) * shape.head_dim;
  DEVICE_REQUIRE(cudaMemsetAsync(self.out.get(), 0xFF, static_cast<size_t>(rows * row_elems * 2),
                                 self.stream));
  DEVICE_REQUIRE(cudaMemsetAsync(self.lse.get(), 0xFF,
                                 static_cast<size_t>(rows) * shape.num_q_heads * 4, self.stream));
  self.run(0);
  const Bytes g_queries(count * 4), g_out(count * row_elems * 4),
      g_lse(static_cast<int64_t>(count) * shape.num_q_heads * 4);
  DEVICE_REQUIRE(cudaMemcpyAsync(g_queries.get(), queries.data(), queries.size() * 4,
                                 cudaMemcpyHostToDevice, self.stream));
  const DecodeTensors tensors = self.tensors(0);
  const ReferenceArgs args{self.q.get(),
                           self.k.get(),
                           self.v.get(),
                           self.table.get<int32_t>(),
                           self.lens.get<int32_t>(),
                           g_queries.get<int32_t>(),
                           self.table_columns,
                           tensors.k_cache.strides[0],
                           tensors.k_cache.strides[1],
                           tensors.k_cache.strides[2],
                           shape.num_q_heads,
                           shape.group_size(),
                           shape.head_dim,
                           self.spec.page_size,
                           1.0f / std::sqrt(static_cast<float>(shape.head_dim)),
                           g_out.get<float>(),
                           g_lse.get<float>()};
  const dim3 grid(static_cast<unsigned>(count), static_cast<unsigned>(shape.num_q_heads));
  if (shape.dtype == DType::kFloat16)
    reference<__half><<<grid, 256, 0, self.stream>>>(args);
  else
    reference<__nv_bfloat16><<<grid, 256, 0, self.stream>>>(args);
  DEVICE_REQUIRE(cudaGetLastError());
  std::vector<float> want(static_cast<size_t>(count * row_elems)),
      want_lse(static_cast<size_t>(count) * static_cast<size_t>(shape.num_q_heads));
  std::vector<uint16_t> got(static_cast<size_t>(rows * row_elems));
  std::vector<float> got_lse(static_cast<size_t>(rows) * static_cast<size_t>(shape.num_q_heads));
  DEVICE_REQUIRE(cudaMemcpyAsync(want.data(), g_out.get(), want.size() * 4, cudaMemcpyDeviceToHost,
                                 self.stream));
  DEVICE_REQUIRE(cudaMemcpyAsync(want_lse.data(), g_lse.get(), want_lse.size() * 4,
                                 cudaMemcpyDeviceToHost, self.stream));
  DEVICE_REQUIRE(cudaMemcpyAsync(got.data(), self.out.get(), got.size() * 2, cudaMemcpyDeviceToHost,
                                 self.stream));
  DEVICE_REQUIRE(cudaMemcpyAsync(got_lse.data(), self.lse.get(), got_lse.size() * 4,
                                 cudaMemcpyDeviceToHost, self.stream));
  DEVICE_REQUIRE(cudaStreamSynchronize(self.stream));

  const auto to_float = [&](uint16_t bits) {
    if (shape.dtype == DType::kFloat16) {
      __half_raw raw;
      raw.x = bits;
      return __half2float(__half(raw));
    }
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
  };
  CheckOutcome outcome;
  outcome.passed = true;
  for (int i = 0; i < count; ++i)
    for (int head = 0; head < shape.num_q_heads; ++head) {
      double error = 0, norm = 0;
      for (int dim = 0; dim < shape.head_dim; ++dim) {
        const double w = want[static_cast<size_t>(
            (static_cast<int64_t>(i) * shape.num_q_heads + head) * shape.head_dim + dim)];
        const double g = to_float(got[static_cast<size_t>(
            (static_cast<int64_t>(queries[static_cast<size_t>(i)]) * shape.num_q_heads + head) *
                shape.head_dim +
            dim)]);
        error += (g - w) * (g - w);
        norm += w * w;
      }
      const double relative = norm > 0 ? std::sqrt(error / norm) : std::sqrt(error);
      const double lse_error = std::abs(
          static_cast<double>(got_lse[static_cast<size_t>(queries[static_cast<size_t>(i)]) *
                                          static_cast<size_t>(shape.num_q_heads) +
                                      static_cast<size_t>(head)]) -
          want_lse[static_cast<size_t>(i) * static_cast<size_t>(shape.num_q_heads) +
                   static_cast<size_t>(head)]);
      outcome.rows += 1;
      // NaN fails every comparison, so it is written as "not small".
      if (!(relative < 1.5e-2) || !(lse_error < 1e-3)) outcome.passed = false;
      outcome.worst_rel_err =
          std::isnan(relative) ? relative : std::max(outcome.worst_rel_err, relative);
      outcome.worst_lse_err = std::max(outcome.worst_lse_err, lse_error);
    }
  return outcome;
}

std::string DeviceStep::trace_json() {
  Impl& self = *impl_;
  const int ctas = self.num_ctas;
  const size_t count = static_cast<size_t>(ctas) * kTraceTracks * kTraceRecords;
  const Bytes g_records(static_cast<int64_t>(count * sizeof(TraceRecord)));
  for (int i = 1; i < self.copies; ++i)
    self.run(i);  // warm clocks; and the L2 has another copy of the caches
  DEVICE_REQUIRE(cudaMemsetAsync(g_records.get(), 0, count * sizeof(TraceRecord), self.stream));
  if (!set_trace_buffer(g_records.get<TraceRecord>()))
    throw UnsupportedConfig(five_parts("capillary run", "--trace", "is given",
                                       "be left out of a build without CAPILLARY_TRACE",
                                       "configure with -DCAPILLARY_TRACE=ON"));
  self.run(0);
  set_trace_buffer(nullptr);
  std::vector<TraceRecord> records(count);
  DEVICE_REQUIRE(cudaMemcpyAsync(records.data(), g_records.get(), count * sizeof(TraceRecord),
                                 cudaMemcpyDeviceToHost, self.stream));
  DEVICE_REQUIRE(cudaStreamSynchronize(self.stream));
  return chrome_trace(records, ctas);
}

uint64_t DeviceStep::output_hash() {
  Impl& self = *impl_;
  const auto bytes = static_cast<size_t>(self.table_rows * self.spec.shape.num_q_heads *
                                         self.spec.shape.head_dim * 2);
  DEVICE_REQUIRE(cudaMemsetAsync(self.out.get(), 0xFF, bytes, self.stream));
  self.run(0);
  std::vector<unsigned char> host(bytes);
  DEVICE_REQUIRE(
      cudaMemcpyAsync(host.data(), self.out.get(), bytes, cudaMemcpyDeviceToHost, self.stream));
  DEVICE_REQUIRE(cudaStreamSynchronize(self.stream));
  uint64_t hash = 1469598103934665603ull;
  for (const unsigned char byte : host) hash = (hash ^ byte) * 1099511628211ull;
  return hash;
}

std::vector<double> DeviceStep::time_us(Timing kind, int repeats) {
  Impl& self = *impl_;
  cudaEvent_t begin = nullptr, end = nullptr;
  DEVICE_REQUIRE(cudaEventCreate(&begin));
  DEVICE_REQUIRE(cudaEventCreate(&end));
  std::vector<double> times;
  const auto elapsed_us = [&] {
    float milliseconds = 0;
    DEVICE_REQUIRE(cudaEventSynchronize(end));
    DEVICE_REQUIRE(cudaEventElapsedTime(&milliseconds, begin, end));
    return static_cast<double>(milliseconds) * 1e3;
  };
  if (kind == Timing::kEager) {
    for (int i = 0; i < repeats + 3; ++i) {
      DEVICE_REQUIRE(cudaEventRecord(begin, self.stream));
      self.run(i % self.copies);
      DEVICE_REQUIRE(cudaEventRecord(end, self.stream));
      const double us = elapsed_us();
      if (i >= 3) times.push_back(us);
    }
  } else {
    const bool warm = kind == Timing::kGraphWarm;
    const int launches = warm ? 8 : std::max(self.copies, self.unique_bytes > (1ll << 30) ? 2 : 4);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    DEVICE_REQUIRE(cudaStreamBeginCapture(self.stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < launches; ++i)
      self.run(warm ? 0 : i % self.copies, kind == Timing::kGraphDependent);
    DEVICE_REQUIRE(cudaStreamEndCapture(self.stream, &graph));
    DEVICE_REQUIRE(cudaGraphInstantiate(&exec, graph, 0));
    // Where gigabytes have just been freed and taken, the first figure was 14 % long; it is not for those after it. Short
    // steps are not kept busy first: the longer that matrix products run, the lower the clocks.
    const double settle_us = self.settled || self.unique_bytes < (1ll << 30) ? 0 : 50e3;
    for (double busy_us = 0; busy_us < settle_us;) {
      DEVICE_REQUIRE(cudaEventRecord(begin, self.stream));
      DEVICE_REQUIRE(cudaGraphLaunch(exec, self.stream));
      DEVICE_REQUIRE(cudaEventRecord(end, self.stream));
      busy_us += elapsed_us();
    }
    self.settled = true;
    for (int i = 0; i < repeats + 2; ++i) {
      DEVICE_REQUIRE(cudaEventRecord(begin, self.stream));
      DEVICE_REQUIRE(cudaGraphLaunch(exec, self.stream));
      DEVICE_REQUIRE(cudaEventRecord(end, self.stream));
      const double us = elapsed_us() / launches;
      if (i >= 2) times.push_back(us);
    }
    (void)cudaGraphExecDestroy(exec);
    (void)cudaGraphDestroy(graph);
  }
  (void)cudaEventDestroy(begin);
  (void)cudaEventDestroy(end);
  return times;
}

double measure_read_gbps(int device) {
  DEVICE_REQUIRE(cudaSetDevice(device));
  constexpr int64_t kBytes = 8ll << 30;
  const Bytes data(kBytes), sink(16);
  fill_random<<<132 * 8, 256>>>(data.get<__half>(), kBytes / 2, 7);
  cudaEvent_t begin = nullptr, end = nullptr;
  DEVICE_REQUIRE(cudaEventCreate(&begin));
  DEVICE_REQUIRE(cudaEventCreate(&end));
  double best = 0;
  for (int i = 0; i < 4; ++i) {
    DEVICE_REQUIRE(cudaEventRecord(begin));
    stream_read<<<132 * 4, 512>>>(data.get<uint4>(), kBytes / 16, sink.get<uint32_t>());
    DEVICE_REQUIRE(cudaEventRecord(end));
    DEVICE_REQUIRE(cudaEventSynchronize(end));
    float milliseconds = 0;
    DEVICE_REQUIRE(cudaEventElapsedTime(&milliseconds, begin, end));
    best = std::max(best, static_cast<double>(kBytes) / (static_cast<double>(milliseconds) * 1e6));
  }
  (void)cudaEventDestroy(begin);
  (void)cudaEventDestroy(end);
  return best;
}

}  // namespace capillary::device
