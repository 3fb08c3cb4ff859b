// SPDX-License-Identifier: MIT
// The body of an attend kernel, for kLanes floats a vector. Included once by each attend_<isa>.cpp inside its
// own namespace, which defines kLanes, load_half() and the block sizes that suit its register file. Only
// compiler vectors are used, so the same text serves every instruction set.
//
// This file must not call inline functions of the standard library: the linker keeps one copy of those, and
// it might keep the one compiled for instructions that the processor does not have.
//
// Two ways to multiply Q and K, by the number of rows:
//   narrow  (few rows, kMaxNarrow): lanes run over head_dim, one dot product a (row, token), summed across lanes
//   wide                        : lanes run over rows (Q is packed transposed), K elements are broadcast
// P times V is the same for both: lanes run over head_dim_v, P is broadcast.

typedef float Vec __attribute__((vector_size(kLanes * 4)));
typedef int32_t IntVec __attribute__((vector_size(kLanes * 4)));
typedef uint32_t UIntVec __attribute__((vector_size(kLanes * 4)));
typedef uint16_t HalfVec __attribute__((vector_size(kLanes * 2)));

#define CAPILLARY_INLINE inline __attribute__((always_inline))
#if defined(__clang__)
#define CAPILLARY_UNROLL _Pragma("unroll")
#else
#define CAPILLARY_UNROLL _Pragma("GCC unroll 16")
#endif

constexpr int kPanelVecs = 3;  // vectors of rows that a Q panel holds
constexpr int kPanelRows = kPanelVecs * kLanes;

template <class T>
CAPILLARY_INLINE T load(const void* from) {
  T value;
  __builtin_memcpy(&value, from, sizeof(T));
  return value;
}
template <class T>
CAPILLARY_INLINE void store(void* to, T value) {
  __builtin_memcpy(to, &value, sizeof(T));
}
CAPILLARY_INLINE Vec broadcast(float value) {
  return value - Vec{};
}
// May lose a NaN; the weight of a NaN score is NaN all the same, and with it the sum.
CAPILLARY_INLINE Vec max_of(Vec a, Vec b) {
  return a > b ? a : b;
}

// 2^x for x <= 0, relative error below 2e-7; exactly 0 for x < -126, NaN for NaN.
CAPILLARY_INLINE Vec exp2_of(Vec x) {
  const Vec floor_at = broadcast(-126.0f);
  const Vec clamped = x < floor_at ? floor_at : x;
  // Adding 1.5 * 2^23 rounds to the nearest integer, which is then in the low bits.
  const Vec magic = broadcast(12582912.0f);
  const Vec shifted = clamped + magic;
  const Vec fraction = clamped - (shifted - magic);  // in [-0.5, 0.5]
  Vec power = broadcast(1.5403530393381608e-4f);
  power = power * fraction + broadcast(1.3333558146428443e-3f);
  power = power * fraction + broadcast(9.6181291076284772e-3f);
  power = power * fraction + broadcast(5.5504108664821580e-2f);
  power = power * fraction + broadcast(2.4022650695910072e-1f);
  power = power * fraction + broadcast(6.9314718055994531e-1f);
  power = power * fraction + broadcast(1.0f);
  const IntVec exponent = (IntVec)shifted << 23;
  const Vec result = (Vec)((IntVec)power + exponent);
  const Vec finite = x < floor_at ? Vec{} : result;
  return x != x ? x : finite;
}

CAPILLARY_INLINE Vec load_bf16(const std::byte* from) {
  const UIntVec wide = __builtin_convertvector(load<HalfVec>(from), UIntVec);
  return (Vec)(wide << 16);
}

// One token's K or V row as fp32.
template <CacheType kType>
CAPILLARY_INLINE void convert_row(const std::byte* from, int count, float* to) {
  if constexpr (kType == CacheType::kFloat32) {
    __builtin_memcpy(to, from, static_cast<size_t>(count) * 4);
    return;
  }
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const std::byte* at = from + i * 2;
    store(to + i, kType == CacheType::kBFloat16 ? load_bf16(at) : load_fp16(at));
  }
  if (i == count) return;
  // The row's end, without reading past it.
  alignas(64) std::byte tail[kLanes * 2] = {};
  __builtin_memcpy(tail, from + i * 2, static_cast<size_t>(count - i) * 2);
  const Vec last = kType == CacheType::kBFloat16 ? load_bf16(tail) : load_fp16(tail);
  __builtin_memcpy(to + i, &last, static_cast<size_t>(count - i) * 4);
}

template <CacheType kType>
void convert_block(const std::byte* const* tokens, int num_tokens, int dim, float* to) {
  const int stride = static_cast<int>(padded_floats(dim));
  for (int t = 0; t < num_tokens; ++t) convert_row<kType>(tokens[t], dim, to + t * stride);
}

// Fetches the next block's rows a few at a time, between pieces of arithmetic. All at once they would fill
// the queue of outstanding misses, and everything behind them would wait.
class Prefetcher {
 public:
  Prefetcher(const AttendRows& rows, const TokenBlock& next, int num_steps) : next_(next) {
    const int width = rows.type == CacheType::kFloat32 ? 4 : 2;
    k_bytes_ = rows.head_dim * width;
    v_bytes_ = rows.head_dim_v * width;
    rows_a_step_ = (2 * next.num_tokens + num_steps - 1) / num_steps;
  }
  CAPILLARY_INLINE void step() {
    for (int i = 0; i < rows_a_step_ && at_ < 2 * next_.num_tokens; ++i, ++at_) {
      const int token = at_ >> 1;
      const bool is_v = (at_ & 1) != 0;
      const std::byte* row = is_v ? next_.v[token] : next_.k[token];
      const int bytes = is_v ? v_bytes_ : k_bytes_;
      for (int line = 0; line < bytes; line += 64) __builtin_prefetch(row + line, 0, 3);
    }
  }

 private:
  const TokenBlock& next_;
  int k_bytes_, v_bytes_;
  int rows_a_step_;
  int at_ = 0;
};

// ---- Q K^T: lanes run over rows, elements of K are broadcast ----

// scores [kBlockTokens][row_stride] of the kVecs * kLanes rows of a panel.
template <int kVecs>
void scores_fp32(const float* panel, const float* keys, int dim, int num_tokens, float* scores,
                 int row_stride, Prefetcher& prefetcher) {
  constexpr int kTokens = kScoreTokens;
  const int stride = static_cast<int>(padded_floats(dim));
  for (int t = 0; t < num_tokens; t += kTokens) {
    prefetcher.step();
    Vec acc[kTokens][kVecs] = {};
    const float* key = keys + t * stride;
    for (int i = 0; i < dim; ++i) {
      Vec q[kVecs];
      CAPILLARY_UNROLL
      for (int v = 0; v < kVecs; ++v) q[v] = load<Vec>(panel + (i * kVecs + v) * kLanes);
      CAPILLARY_UNROLL
      for (int j = 0; j < kTokens; ++j) {
        const Vec k = broadcast(key[j * stride + i]);
        CAPILLARY_UNROLL
        for (int v = 0; v < kVecs; ++v) acc[j][v] += q[v] * k;
      }
    }
    CAPILLARY_UNROLL
    for (int j = 0; j < kTokens; ++j) {
      CAPILLARY_UNROLL
      for (int v = 0; v < kVecs; ++v) store(scores + (t + j) * row_stride + v * kLanes, acc[j][v]);
    }
  }
}

#if defined(__AVX512BF16__)
// The same from bfloat16 pairs as they lie in the cache; products are exact and sums are fp32, as above.
template <int kVecs>
void scores_pairs(const float* panel, const std::byte* const* keys, int dim, int num_tokens,
                  float* scores, int row_stride, Prefetcher& prefetcher) {
  constexpr int kTokens = kScoreTokens;
  for (int t = 0; t < num_tokens; t += kTokens) {
    prefetcher.step();
    const std::byte* key[kTokens];
    for (int j = 0; j < kTokens; ++j) key[j] = keys[t + j < num_tokens ? t + j : t];
    Vec acc[kTokens][kVecs] = {};
    for (int i = 0; i < dim / 2; ++i) {
      IntVec q[kVecs];
      CAPILLARY_UNROLL
      for (int v = 0; v < kVecs; ++v) q[v] = load<IntVec>(panel + (i * kVecs + v) * kLanes);
      CAPILLARY_UNROLL
      for (int j = 0; j < kTokens; ++j) {
        const IntVec k = load<int32_t>(key[j] + i * 4) - IntVec{};
        CAPILLARY_UNROLL
        for (int v = 0; v < kVecs; ++v) acc[j][v] = dot_pairs(acc[j][v], (__m512i)q[v], (__m512i)k);
      }
    }
    CAPILLARY_UNROLL
    for (int j = 0; j < kTokens; ++j) {
      CAPILLARY_UNROLL
      for (int v = 0; v < kVecs; ++v) store(scores + (t + j) * row_stride + v * kLanes, acc[j][v]);
    }
  }
}
#endif

// ---- softmax: scores become weights, the state's max and sum move on, rescale is what its output needs ----

// kLanes rows at once; scores of token t at t * row_stride.
CAPILLARY_INLINE void softmax(float* scores, int row_stride, int num_tokens, float scale,
                              float* max, float* sum, float* rescale) {
  const Vec old_max = load<Vec>(max);
  Vec new_max = old_max;
  for (int t = 0; t < num_tokens; ++t) {
    const Vec scaled = load<Vec>(scores + t * row_stride) * scale;
    store(scores + t * row_stride, scaled);
    new_max = max_of(new_max, scaled);
  }
  // Scores of -inf have no weight, also where there are no others.
  const Vec lowest = broadcast(-__builtin_inff());
  const Vec from = new_max == lowest ? Vec{} : new_max;
  Vec total = {};
  for (int t = 0; t < num_tokens; ++t) {
    const Vec weight = exp2_of(load<Vec>(scores + t * row_stride) - from);
    store(scores + t * row_stride, weight);
    total += weight;
  }
  const Vec factor = exp2_of(old_max - from);
  store(rescale, factor);
  total += load<Vec>(sum) * factor;
  store(sum, total);
  // A score of NaN or +inf makes the sum NaN and then the maximum, so that no later rescaling to 0 hides it.
  store(max, new_max + (total - total));
}

// ---- P V ----

// out [kRows][kVecs * kLanes] = out * rescale + weights * values.
template <int kRows, int kVecs>
void accumulate(const float* weights, int row_stride, const float* rescale, const float* values,
                int value_stride, int num_tokens, float* out, int64_t out_stride) {
  Vec acc[kRows][kVecs];
  CAPILLARY_UNROLL
  for (int r = 0; r < kRows; ++r) {
    CAPILLARY_UNROLL
    for (int v = 0; v < kVecs; ++v)
      acc[r][v] = load<Vec>(out + r * out_stride + v * kLanes) * rescale[r];
  }
  for (int t = 0; t < num_tokens; ++t) {
    Vec value[kVecs];
    CAPILLARY_UNROLL
    for (int v = 0; v < kVecs; ++v) value[v] = load<Vec>(values + t * value_stride + v * kLanes);
    CAPILLARY_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const Vec weight = broadcast(weights[t * row_stride + r]);
      CAPILLARY_UNROLL
      for (int v = 0; v < kVecs; ++v) acc[r][v] += value[v] * weight;
    }
  }
  CAPILLARY_UNROLL
  for (int r = 0; r < kRows; ++r) {
    CAPILLARY_UNROLL
    for (int v = 0; v < kVecs; ++v) store(out + r * out_stride + v * kLanes, acc[r][v]);
  }
}

// All rows of kVecs columns of vectors: these columns of V stay in the first-level cache meanwhile.
template <int kVecs>
void accumulate_columns(const AttendRows& rows, const float* weights, int row_stride,
                        const float* rescale, const float* values, int num_tokens, int column,
                        Prefetcher& prefetcher) {
  const int stride = static_cast<int>(padded_floats(rows.head_dim_v));
  float* out = rows.out + column;
  int r = 0;
  for (; r + kOutRows <= rows.num_rows; r += kOutRows) {
    prefetcher.step();
    accumulate<kOutRows, kVecs>(weights + r, row_stride, rescale + r, values + column, stride,
                                num_tokens, out + r * stride, stride);
  }
  for (; r < rows.num_rows; ++r) {
    accumulate<1, kVecs>(weights + r, row_stride, rescale + r, values + column, stride, num_tokens,
                         out + r * stride, stride);
  }
}

void accumulate_all(const AttendRows& rows, const float* weights, int row_stride,
                    const float* rescale, const float* values, int num_tokens,
                    Prefetcher& prefetcher) {
  int column = 0;
  for (; column + kOutVecs * kLanes <= rows.head_dim_v; column += kOutVecs * kLanes) {
    accumulate_columns<kOutVecs>(rows, weights, row_stride, rescale, values, num_tokens, column,
                                 prefetcher);
  }
  for (; column < rows.head_dim_v; column += kLanes) {
    accumulate_columns<1>(rows, weights, row_stride, rescale, values, num_tokens, column,
                          prefetcher);
  }
}

// ---- the kernel's functions ----

int padded_rows(int num_rows) {
  return (num_rows + kLanes - 1) / kLanes * kLanes;
}

int64_t packed_floats(int max_rows, int head_dim) {
  return padded_rows(max_rows) * padded_floats(head_dim);
}

// keys, values, scores, then max, sum and rescale of padded rows.
int64_t scratch_floats(int max_rows, int head_dim, int head_dim_v) {
  return kBlockTokens * (padded_floats(head_dim) + padded_floats(head_dim_v)) +
         (kBlockTokens + 3) * static_cast<int64_t>(padded_rows(max_rows));
}

// Whether Q is packed as pairs of bfloat16 (exact: q has the cache's dtype) and K is read where it lies.
CAPILLARY_INLINE bool uses_pairs(CacheType type, int head_dim) {
#if defined(__AVX512BF16__)
  return type == CacheType::kBFloat16 && head_dim % 2 == 0;
#else
  return static_cast<void>(type), static_cast<void>(head_dim), false;
#endif
}

CAPILLARY_INLINE int smaller(int a, int b) {
  return a < b ? a : b;
}
CAPILLARY_INLINE uint32_t bits_of(float value) {
  return load<uint32_t>(&value);
}

// Panels of kPanelRows rows, the last of as many vectors as are left: element i (or pair i) of all rows of a
// panel, then element i + 1; rows that are not there are 0.
void pack_queries(int num_rows, int head_dim, CacheType type, const float* q, float* packed) {
  const bool pairs = uses_pairs(type, head_dim);
  const int depth = pairs ? head_dim / 2 : head_dim;
  for (int first = 0; first < num_rows; first += kPanelRows) {
    float* panel = packed + static_cast<int64_t>(first) * depth;
    const int width = smaller(kPanelRows, padded_rows(num_rows) - first);
    const int used = smaller(kPanelRows, num_rows - first);
    if (used < width) __builtin_memset(panel, 0, static_cast<size_t>(width) * depth * 4);
    for (int r = 0; r < used; ++r) {
      const float* row = q + static_cast<int64_t>(first + r) * head_dim;
      for (int i = 0; i < depth; ++i) {
        float* to = panel + i * width + r;
        if (pairs)
          store(to, bits_of(row[2 * i]) >> 16 | (bits_of(row[2 * i + 1]) & 0xffff0000u));
        else
          *to = row[i];
      }
    }
  }
}

template <int kVecs>
CAPILLARY_INLINE void panel_scores(const AttendRows& rows, const TokenBlock& block,
                                   const float* panel, const float* keys, float* scores,
                                   int row_stride, Prefetcher& prefetcher) {
#if defined(__AVX512BF16__)
  if (uses_pairs(rows.type, rows.head_dim)) {
    return scores_pairs<kVecs>(panel, block.k, rows.head_dim, block.num_tokens, scores, row_stride,
                               prefetcher);
  }
#endif
  scores_fp32<kVecs>(panel, keys, rows.head_dim, block.num_tokens, scores, row_stride, prefetcher);
}

template <CacheType kType>
void attend_typed(const AttendRows& rows, const TokenBlock& block, const TokenBlock& next) {
  const int num_rows = rows.num_rows;
  const int row_stride = padded_rows(num_rows);
  const int num_tokens = block.num_tokens;
  float* keys = rows.scratch;
  float* values = keys + kBlockTokens * padded_floats(rows.head_dim);
  float* scores = values + kBlockTokens * padded_floats(rows.head_dim_v);
  float* max = scores + kBlockTokens * row_stride;
  float* sum = max + row_stride;
  float* rescale = sum + row_stride;
  const bool pairs = uses_pairs(kType, rows.head_dim);
  if (!pairs) convert_block<kType>(block.k, num_tokens, rows.head_dim, keys);
  convert_block<kType>(block.v, num_tokens, rows.head_dim_v, values);

  const int score_steps = (num_rows + kPanelRows - 1) / kPanelRows * kBlockTokens / kScoreTokens;
  const int out_steps = num_rows / kOutRows * (rows.head_dim_v / (kOutVecs * kLanes));
  Prefetcher prefetcher(rows, next, score_steps + out_steps);
  for (int first = 0; first < num_rows; first += kPanelRows) {
    const float* panel =
        rows.packed_q + static_cast<int64_t>(first) * (pairs ? rows.head_dim / 2 : rows.head_dim);
    const int vecs = (num_rows - first + kLanes - 1) / kLanes;
    if (vecs >= 3)
      panel_scores<3>(rows, block, panel, keys, scores + first, row_stride, prefetcher);
    else if (vecs == 2)
      panel_scores<2>(rows, block, panel, keys, scores + first, row_stride, prefetcher);
    else
      panel_scores<1>(rows, block, panel, keys, scores + first, row_stride, prefetcher);
  }
  const auto state_bytes = static_cast<size_t>(num_rows) * 4;
  __builtin_memcpy(max, rows.max, state_bytes);
  __builtin_memcpy(sum, rows.sum, state_bytes);
  for (int first = 0; first < num_rows; first += kLanes) {
    softmax(scores + first, row_stride, num_tokens, rows.score_scale, max + first, sum + first,
            rescale + first);
  }
  __builtin_memcpy(rows.max, max, state_bytes);
  __builtin_memcpy(rows.sum, sum, state_bytes);
  accumulate_all(rows, scores, row_stride, rescale, values, num_tokens, prefetcher);
}

void attend(const AttendRows& rows, const TokenBlock& block, const TokenBlock& next) {
  switch (rows.type) {
    case CacheType::kFloat16:
      return attend_typed<CacheType::kFloat16>(rows, block, next);
    case CacheType::kBFloat16:
      return attend_typed<CacheType::kBFloat16>(rows, block, next);
    case CacheType::kFloat32:
      return attend_typed<CacheType::kFloat32>(rows, block, next);
  }
}
