// SPDX-License-Identifier: MIT
// cuda::decode: checks in constant time, fills the kernel's arguments, launches once.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>

#include "capillary/cuda.h"
#include "core/check_tensors.h"
#include "cuda/cuda_check.h"
#include "cuda/dispatch.h"
#include "cuda/plan_buffer.h"
#include "cuda/tree_decode/args.h"
#include "shared/tile_table.h"

namespace capillary {

#ifdef CAPILLARY_TRACE
namespace {
TraceRecord* trace_buffer = nullptr;
}
bool set_trace_buffer(TraceRecord* g_records) {
  trace_buffer = g_records;
  return true;
}
#else
bool set_trace_buffer(TraceRecord*) {
  return false;
}
#endif

namespace cuda {

namespace {

using tree_decode::KernelArgs;
using tree_decode::TileCopy;

[[noreturn]] void fail(const char* argument, const std::string& came, const char* expected,
                       const char* remedy) {
  throw InvalidArgument(five_parts("cuda::decode", argument, came, expected, remedy));
}

using EncodeTiled = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*,
                                 const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                                 const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                                 CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// The driver's encoder, found at run time so that nothing links against libcuda.
EncodeTiled encoder() {
  static const EncodeTiled function = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found{};
    CAPILLARY_CUDA(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                                    cudaEnableDefault, &found));
    if (entry == nullptr || found != cudaDriverEntryPointSuccess)
      throw DeviceError(
          "cuTensorMapEncodeTiled: not offered by this driver; must be R525 or newer");
    return reinterpret_cast<EncodeTiled>(entry);
  }();
  return function;
}

// One tensor map: extents and box innermost first, strides in bytes of all axes but the innermost.
struct MapShape {
  cuuint32_t rank;
  cuuint64_t extents[5];
  cuuint64_t strides[4];
  cuuint32_t box[5];
  bool swizzled;
};

cuuint64_t stride_bytes(const TensorView& cache, size_t axis) {
  // A stride along an axis of one element is never followed, but the encoder wants it plausible.
  const int64_t stride =
      cache.shape[axis] == 1 ? std::max<int64_t>(cache.strides[axis], 8) : cache.strides[axis];
  return static_cast<cuuint64_t>(stride * 2);
}

void encode_map(CUtensorMap* map, const char* argument, const TensorView& cache,
                const MapShape& shape) {
  const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
  const CUresult result =
      encoder()(map,
                cache.dtype == DType::kFloat16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                               : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                shape.rank, cache.data, shape.extents, shape.strides, shape.box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE,
                shape.swizzled ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
                CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return;
  std::string text = "[";
  for (size_t i = 0; i < 4; ++i) text += (i ? ", " : "") + std::to_string(cache.shape[i]);
  text += "], strides [";
  for (size_t i = 0; i < 4; ++i) text += (i ? ", " : "") + std::to_string(cache.strides[i]);
  throw UnsupportedConfig(five_parts("cuda::decode", argument,
                                     "has shape " + text +
                                         "], which the tensor map encoder refuses (" +
                                         std::to_string(static_cast<int>(result)) + ")",
                                     "have strides that are multiples of 8 elements and below 2^39",
                                     "lay the cache out with padded strides"));
}

// [page][kv head][token][dim], innermost last; the cache's own strides, so any layout is read in place.
MapShape rows_map(const TensorView& cache, uint32_t box_dims, uint32_t box_tokens, bool swizzled) {
  return {
      .rank = 4,
      .extents = {static_cast<cuuint64_t>(cache.shape[3]), static_cast<cuuint64_t>(cache.shape[1]),
                  static_cast<cuuint64_t>(cache.shape[2]), static_cast<cuuint64_t>(cache.shape[0])},
      .strides = {stride_bytes(cache, 1), stride_bytes(cache, 2), stride_bytes(cache, 0)},
      .box = {box_dims, box_tokens, 1, 1},
      .swizzled = swizzled};
}

// Heads' rows from one page to the next, if a page and a head make one axis and tiles are whole boxes; else 0.
uint32_t page_rows(const TensorView& cache, uint32_t page_size) {
  if (page_size % kTileTokens != 0 || cache.shape[3] % 64 != 0) return 0;
  if (cache.shape[2] == 1) return cache.shape[0] <= INT32_MAX ? 1 : 0;
  const int64_t head = cache.strides[2];
  const int64_t page = cache.shape[0] == 1 ? head : cache.strides[0];
  if (head <= 0 || page % head != 0) return 0;
  const int64_t rows = page / head;
  const bool fits = rows > 0 && (cache.shape[0] - 1) * rows + cache.shape[2] <= INT32_MAX;
  return fits ? static_cast<uint32_t>(rows) : 0;
}

// A whole tile a box: [page and head][eight tokens][half][token][dim].
MapShape tiles_map(const TensorView& cache, uint32_t page_rows) {
  const cuuint64_t token = stride_bytes(cache, 1);
  const auto halves = static_cast<cuuint32_t>(cache.shape[3] / 64);
  return {.rank = 5,
          .extents = {64, 8, halves, static_cast<cuuint64_t>(cache.shape[1] / 8),
                      static_cast<cuuint64_t>((cache.shape[0] - 1) * page_rows + cache.shape[2])},
          .strides = {token, 128, 8 * token, stride_bytes(cache, cache.shape[2] == 1 ? 0 : 2)},
          .box = {64, 8, halves, 2, 1},
          .swizzled = true};
}

void check_alignment(const char* argument, const TensorView& tensor) {
  if (reinterpret_cast<uintptr_t>(tensor.data) % 16 != 0)
    fail(argument, "begins at an address that is not a multiple of 16", "be 16-byte aligned",
         "pass a view that begins at an aligned element");
  for (int axis = 0; axis + 1 < tensor.ndim; ++axis)
    if (tensor.strides[static_cast<size_t>(axis)] % 8 != 0 &&
        tensor.shape[static_cast<size_t>(axis)] > 1)
      fail(argument,
           "has stride " + std::to_string(tensor.strides[static_cast<size_t>(axis)]) + " on axis " +
               std::to_string(axis),
           "have strides that are multiples of 8 elements (16 bytes)", "pad the tensor's rows");
}

KernelArgs make_args(const PlanHeader& header, const void* g_plan, const DecodeTensors& tensors,
                     void* workspace, const DecodeOptions& options) {
  KernelArgs args{};
  const TensorView& k = tensors.k_cache;
  const TensorView& v = tensors.v_cache;
  args.plan = static_cast<const unsigned char*>(g_plan);
  args.q = tensors.q.data;
  for (const TensorView* cache : {&k, &v})
    args.cache[cache == &v ? 1 : 0] = {static_cast<const unsigned char*>(cache->data),
                                       cache->strides[0] * 2, cache->strides[1] * 2,
                                       cache->strides[2] * 2};
  args.page_ids = static_cast<const int32_t*>(tensors.page_ids.data);
  args.out = tensors.out.data;
  args.lse = static_cast<float*>(tensors.lse.data);
  args.workspace = workspace;
  args.q_token_stride = tensors.q.strides[0];
  args.q_head_stride = tensors.q.strides[1];
  args.out_token_stride = tensors.out.strides[0];
  args.out_head_stride = tensors.out.strides[1];
  args.lse_token_stride = tensors.lse.strides[0];
  args.lse_head_stride = tensors.lse.strides[1];
  const float scale = options.softmax_scale != 0.0f
                          ? options.softmax_scale
                          : 1.0f / std::sqrt(static_cast<float>(header.head_dim));
  args.scale_log2 = scale * 1.44269504088896340736f;
  args.group_size = FastDiv(static_cast<uint32_t>(header.num_q_heads / header.num_kv_heads));
  const auto page_size = static_cast<uint32_t>(header.page_size);
  args.page_size = FastDiv(page_size);
  const uint32_t piece = std::min<uint32_t>(page_size & (~page_size + 1), kTileTokens);
  args.wide_piece = FastDiv(std::min(piece, 8u));
  const bool contiguous =
      header.page_size == 1 || (k.strides[1] == header.head_dim && v.strides[1] == header.head_dim);
  args.narrow_piece_tokens = contiguous ? piece : 1;
  args.tile_copy = !contiguous && piece == kTileTokens ? TileCopy::kTensor : TileCopy::kBulk;
  const auto gathers = [](const tree_decode::CacheArgs& cache) {
    return cache.page_stride >= 0 && cache.page_stride <= UINT32_MAX;
  };
  if (page_size == 1 && gathers(args.cache[0]) && gathers(args.cache[1]))
    args.tile_copy = TileCopy::kRows;
#ifdef CAPILLARY_TRACE
  args.trace = trace_buffer;
#endif
  for (const int i : {0, 1}) {
    const TensorView& cache = i == 0 ? k : v;
    const char* argument = i == 0 ? "k_cache" : "v_cache";
    args.wide_page_rows[i] = page_rows(cache, page_size);
    encode_map(&args.wide_map[i], argument, cache,
               args.wide_page_rows[i] != 0 ? tiles_map(cache, args.wide_page_rows[i])
                                           : rows_map(cache, 64, args.wide_piece.divisor, true));
    if (args.tile_copy == TileCopy::kTensor)
      encode_map(&args.narrow_map[i], argument, cache,
                 rows_map(cache, static_cast<uint32_t>(header.head_dim), kTileTokens, false));
  }
  return args;
}

void launch(const tree_decode::KernelInstance& instance, const PlanHeader& header, KernelArgs* args,
            bool dependent, cudaStream_t stream) {
  cudaLaunchAttribute attributes[2]{};
  cudaLaunchConfig_t config{};
  // A cluster of one is what a launch without the attribute makes, too, and sooner.
  if (header.cluster_size > 1) {
    cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = static_cast<unsigned>(header.cluster_size);
    cluster.val.clusterDim.y = 1;
    cluster.val.clusterDim.z = 1;
  }
  if (dependent) {
    cudaLaunchAttribute& serialization = attributes[config.numAttrs++];
    serialization.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    serialization.val.programmaticStreamSerializationAllowed = 1;
  }
  config.gridDim = dim3(static_cast<unsigned>(header.cluster_size * header.num_clusters));
  config.blockDim = dim3(instance.threads);
  config.dynamicSmemBytes = instance.smem_bytes;
  config.stream = stream;
  config.attrs = attributes;
  void* parameters[] = {args};
  CAPILLARY_CUDA(cudaLaunchKernelExC(&config, instance.function, parameters));
}

}  // namespace

void decode(PlanBuffer& plan, const DecodeTensors& tensors, void* workspace,
            int64_t workspace_bytes, const DecodeOptions& options, void* stream) {
  PlanBuffer::Impl& self = *plan.impl_;
  if (!self.uploaded)
    fail("plan", "was never uploaded", "hold a plan", "call PlanBuffer::upload before decode");
  const PlanHeader& header = self.header;
  check_tensors(header, tensors, DeviceType::kCuda);
  check_options(options);
  if (tensors.q.device_index != self.device)
    fail("q", "is on cuda:" + std::to_string(tensors.q.device_index),
         "be on the plan buffer's device", "keep one PlanBuffer a device");
  if (header.head_dim != header.head_dim_v)
    throw UnsupportedConfig(
        five_parts("cuda::decode", "v_cache", "has head_dim " + std::to_string(header.head_dim_v),
                   "have the head_dim of k_cache (" + std::to_string(header.head_dim) + ")",
                   "use the CPU backend"));
  check_alignment("q", tensors.q);
  check_alignment("k_cache", tensors.k_cache);
  check_alignment("v_cache", tensors.v_cache);
  check_alignment("out", tensors.out);
  const int64_t needed = plan.workspace_bytes();
  if (needed > workspace_bytes || (needed > 0 && workspace == nullptr))
    throw WorkspaceTooSmall(
        five_parts("cuda::decode", "workspace", "has " + std::to_string(workspace_bytes) + " bytes",
                   "have at least " + std::to_string(needed) + " bytes for this plan",
                   "allocate Plan::workspace_bytes()"),
        needed, workspace_bytes);
  if (needed > 0 && reinterpret_cast<uintptr_t>(workspace) % 16 != 0)
    fail("workspace", "begins at an address that is not a multiple of 16", "be 16-byte aligned",
         "allocate it with cudaMalloc");
  const tree_decode::KernelInstance instance =
      find_instance("cuda::decode", tensors.q.dtype, header.head_dim);
  const DeviceGuard guard(self.device);
  prepare_instance(self.device, instance);
  auto cuda_stream = static_cast<cudaStream_t>(stream);
  // An empty batch: nothing to write, and a capture records no launch that later plans would have to fit.
  if (header.num_clusters == 0) return;
  KernelArgs args = make_args(header, self.g_plan, tensors, workspace, options);
  launch(instance, header, &args, options.dependent_launch, cuda_stream);
  // Only now: a launch that failed is part of no graph, and nothing is held to it.
  cudaStreamCaptureStatus capture{};
  CAPILLARY_CUDA(cudaStreamIsCapturing(cuda_stream, &capture));
  if (capture != cudaStreamCaptureStatusActive) return;
  const int64_t reach = page_id_reach(tensors.page_ids);
  if (!self.captured) self.captured = CapturedLaunch{header, reach, workspace_bytes};
  // Later plans have to fit all captured launches.
  int32_t& most_queries = self.captured->header.num_queries;
  most_queries = std::min(most_queries, header.num_queries);
  self.captured->num_page_ids = std::min(self.captured->num_page_ids, reach);
  self.captured->workspace_bytes = std::min(self.captured->workspace_bytes, workspace_bytes);
}

}  // namespace cuda
}  // namespace capillary
