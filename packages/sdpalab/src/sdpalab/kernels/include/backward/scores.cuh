// Weights and score gradients of the backward pass, from the scores S = Q K^T and dP = dO V^T of a (query, key) pair:
//
//    x  = scale * S, capped, minus ALiBi, plus the additive mask     (the order of the forward pass)
//    P  = exp(x - LSE)        dS = P (dP - delta) c        c = 1 - tanh(scale * S / softcap)^2, or 1
//
// dS lacks the factor `scale`, which dQ and dK get at the end. A sink is part of LSE and of nothing else here.
//
// NOTES
// - LSE is at least every x that its row sees, so P is at most 1 up to rounding, but a hidden pair may have any x: P is
//   set to 0 after the exponential, never by a sentinel in S, from which c would be NaN.
// - A row without keys has LSE = -inf; it and rows past the length get LSE = +inf here: all their weights are 0.
// - x - LSE is one rounded multiply-add of small result. exp2 of (scale log2(e) S - LSE log2(e)) would save one
//   multiplication a score and round two large numbers.
#pragma once

#include "softmax/window.cuh"
#include "tile/dtype.cuh"

#if !defined(Q_LENGTHS) || !defined(BOTTOM_RIGHT) || !defined(ALIBI_SLOPES) || !defined(ATTN_MASK)
#error "define Q_LENGTHS, BOTTOM_RIGHT, ALIBI_SLOPES (0 or 1) and ATTN_MASK (0, 1: boolean, 2: additive)"
#endif

// Half-open range of rows.
struct Span {
    int first;
    int end;
};

// Valid queries and keys of a batch entry, and its masks.
struct Entry {
    int queries;
    int keys;
    int ahead;  // added to a query's row: its position among the keys

    __device__ __forceinline__ Entry(unsigned batch, const int* kv_lengths, const int* q_lengths, int seq_q, int seq_kv)
        : queries(Q_LENGTHS ? q_lengths[batch] : seq_q),
          keys(KV_LENGTHS ? kv_lengths[batch] : seq_kv),
          ahead(BOTTOM_RIGHT ? keys - queries : 0) {}

    // The keys that some query from `first` to `last` sees.
    __device__ __forceinline__ Span keys_of(int first, int last) const {
        return Span{first_key(first + ahead), end_key(last + ahead, keys)};
    }

    // The queries that see some key from `first` to `last`.
    __device__ __forceinline__ Span queries_of(int first, int last) const {
        return Span{KEYS_AFTER < 0 ? 0 : max(first - KEYS_AFTER - ahead, 0),
                    WINDOW_LEFT < 0 ? queries : min(last + WINDOW_LEFT - ahead + 1, queries)};
    }

    __device__ __forceinline__ bool sees(int query, int key) const {
        return key >= first_key(query + ahead) && key < end_key(query + ahead, keys);
    }

    // Whether every query of a span sees every key of the other.
    __device__ __forceinline__ bool all_seen(const Span& of_queries, const Span& of_keys) const {
        return of_keys.end <= end_key(of_queries.first + ahead, keys) &&
               of_keys.first >= first_key(of_queries.end - 1 + ahead);
    }
};

// -LSE of a row as it is added to a score: -inf for a row without keys, and for one past the end (`valid` false).
__device__ __forceinline__ float minus_lse_of(float lse, bool valid) {
    return valid && lse != NEGATIVE_INFINITY ? -lse : NEGATIVE_INFINITY;
}

// A score on its way to P: x, and the derivative c of its soft cap.
struct Score {
    float x;
    float slope;
};

// 1 - tanh^2 = 4 e / (1 + e)^2 with e = exp(-2 |y|) keeps its relative accuracy where tanh is near 1.
__device__ __forceinline__ Score capped(float scaled) {
    const float power = ptx::ex2_approx_ftz_f32(fabsf(scaled) * (-2.0f * LOG2_E / float(SOFTCAP)));
    const float part = ptx::rcp_approx_ftz_f32(1.0f + power);
    return Score{copysignf(float(SOFTCAP) * (1.0f - power) * part, scaled), 4.0f * power * part * part};
}

// Scores of one query head.
struct HeadScores {
    Entry entry;
    float scale;
    float slope;                     // of ALiBi
    const unsigned char* mask;       // [seq_q, seq_kv]: bytes, or elements of the problem's dtype
    int seq_kv;

    // P and dS of a pair. minus_lse, delta: of the query. EDGE: the pair may be hidden.
    template <bool EDGE>
    __device__ __forceinline__ void weigh(float& p, float& ds, float s, float dp, int query, int key, float minus_lse,
                                          float delta) const {
        float slope_of_cap = 1.0f;
        p = weight<EDGE>(slope_of_cap, s, query, key, minus_lse, !EDGE || entry.sees(query, key));
        ds = p * (dp - delta);
        if constexpr (SOFTCAP > 0) {
            ds *= slope_of_cap;
        }
    }

    // P of a pair, and the derivative of a soft cap. seen: whether the window and the lengths show the query the key.
    template <bool EDGE>
    __device__ __forceinline__ float weight(float& slope_of_cap, float s, int query, int key, float minus_lse,
                                            bool seen) const {
        float exponent;
        if constexpr (SOFTCAP > 0 || ALIBI_SLOPES || ATTN_MASK == 2) {
            Score score{s * scale, 1.0f};
            if constexpr (SOFTCAP > 0) {
                score = capped(score.x);
            }
            if constexpr (ALIBI_SLOPES) {
                score.x -= slope * static_cast<float>(abs(query + entry.ahead - key));
            }
            if constexpr (ATTN_MASK == 2) {
                if (query < entry.queries && key < entry.keys) {
                    score.x += to_float(reinterpret_cast<const Element*>(mask)[place(query, key)]);
                }
            }
            slope_of_cap = score.slope;
            exponent = score.x + minus_lse;
        } else {
            exponent = fmaf(s, scale, minus_lse);
        }
        const float p = ptx::ex2_approx_ftz_f32(exponent * LOG2_E);
        if constexpr (EDGE) {
            if constexpr (ATTN_MASK == 1) {
                seen = seen && query < entry.queries && mask[place(query, key)] != 0;
            }
            return seen ? p : 0.0f;
        }
        return p;
    }

    __device__ __forceinline__ long long place(int query, int key) const {
        return static_cast<long long>(query) * seq_kv + key;
    }
};
