// FlashAttention-2 on sequences, FP16, four heads over two, compared with double precision.
// -DPAGED=0: packed sequences with cu_seqlens; 1: pages of 256 rows in shuffled order, split-KV and combine, with a
// block table. -DCAUSAL=0 or 1; -DHEAD_DIM=64 or 128. Rows that belong to no sequence are NaN.
#include "attention.h"
#include "flash.h"
#include "flash_fwd_launch_template.h"

#define JOINED(a, b) a##b
#define NAME(a, b) JOINED(a, b)

using T = cutlass::half_t;

constexpr int HEADS = 4, KV_HEADS = 2, PAGE = 256, SPLITS = 3;
#if PAGED
constexpr int SEQUENCES = 4, QUERIES[SEQUENCES] = {4, 4, 4, 4}, KEYS[SEQUENCES] = {512, 0, 173, 700};
#else
constexpr int SEQUENCES = 5, QUERIES[SEQUENCES] = {100, 1, 64, 0, 33}, KEYS[SEQUENCES] = {173, 50, 0, 30, 300};
#endif

struct Sequence {
    Attention attention;
    std::vector<T> q, k, v;
};

int main() {
    Normal normal;
    std::vector<Sequence> sequences;
    std::vector<int> ends_q{0}, ends_k{0}, lengths, table;
    int longest_q = 0, longest_k = 0;
    for (int n = 0; n < SEQUENCES; n++) {
        Attention a{QUERIES[n], KEYS[n], HEADS, KV_HEADS, HEAD_DIM, CAUSAL};
        sequences.push_back({a, normal.draw<T>(a.queries()), normal.draw<T>(a.keys()), normal.draw<T>(a.keys())});
        ends_q.push_back(ends_q.back() + a.seq_q), ends_k.push_back(ends_k.back() + a.seq_kv);
        lengths.push_back(a.seq_kv);
        longest_q = std::max(longest_q, a.seq_q), longest_k = std::max(longest_k, a.seq_kv);
    }
    int const row = KV_HEADS * HEAD_DIM, table_width = (longest_k + PAGE - 1) / PAGE + 1;
    int const pages = SEQUENCES * table_width, rows_k = PAGED ? pages * PAGE : ends_k.back() + 7;
    std::vector<T> q, k(size_t(rows_k) * row, T(NAN)), v(k);
    for (int n = 0; n < SEQUENCES; n++) {
        Sequence const &s = sequences[n];
        q.insert(q.end(), s.q.begin(), s.q.end());
        for (int number = 0; PAGED && number < table_width; number++)
            table.push_back((7 * (n * table_width + number) + 3) % pages);
        for (int j = 0; j < s.attention.seq_kv; j++) {
            size_t at = PAGED ? size_t(table[n * table_width + j / PAGE]) * PAGE + j % PAGE : ends_k[n] + j;
            std::copy_n(s.k.begin() + size_t(j) * row, row, k.begin() + at * row);
            std::copy_n(s.v.begin() + size_t(j) * row, row, v.begin() + at * row);
        }
    }
    int const total = ends_q.back();
    DeviceArray<T> device_q(q), device_k(k), device_v(v), device_o(q.size());
    DeviceArray<float> device_lse(size_t(HEADS) * total);
    DeviceArray<int> device_ends_q(ends_q), device_ends_k(PAGED ? lengths : ends_k);

    FLASH_NAMESPACE::Flash_fwd_params p = {};
    p.q_ptr = device_q.data, p.k_ptr = device_k.data, p.v_ptr = device_v.data, p.o_ptr = device_o.data;
    p.softmax_lse_ptr = device_lse.data, p.cu_seqlens_k = device_ends_k.data;
    p.q_row_stride = p.o_row_stride = HEADS * HEAD_DIM, p.k_row_stride = p.v_row_stride = row;
    p.q_head_stride = p.k_head_stride = p.v_head_stride = p.o_head_stride = HEAD_DIM;
    p.b = SEQUENCES, p.h = HEADS, p.h_k = KV_HEADS, p.h_h_k_ratio = HEADS / KV_HEADS;
    p.seqlen_q = longest_q, p.seqlen_k = longest_k, p.total_q = total, p.d = p.d_rounded = HEAD_DIM;
    p.seqlen_q_rounded = (longest_q + 127) / 128 * 128, p.seqlen_k_rounded = (longest_k + 127) / 128 * 128;
    p.scale_softmax = sequences[0].attention.scale(), p.scale_softmax_log2 = p.scale_softmax * 1.44269504088896;
    p.p_dropout = p.rp_dropout = 1, p.p_dropout_in_uint8_t = 255, p.scale_softmax_rp_dropout = p.scale_softmax;
    p.window_size_left = -1, p.window_size_right = CAUSAL ? 0 : -1, p.is_causal = CAUSAL;
#if PAGED
    DeviceArray<int> device_table(table);
    DeviceArray<float> partial_o(SPLITS * q.size()), partial_lse(SPLITS * device_lse.count);
    p.q_batch_stride = p.o_batch_stride = longest_q * HEADS * HEAD_DIM;
    p.k_batch_stride = p.v_batch_stride = PAGE * row;
    p.block_table = device_table.data, p.block_table_batch_stride = table_width, p.page_block_size = PAGE;
    p.num_splits = SPLITS, p.oaccum_ptr = partial_o.data, p.softmax_lseaccum_ptr = partial_lse.data;
    FLASH_NAMESPACE::run_mha_fwd_splitkv_dispatch<T, HEAD_DIM, CAUSAL>(p, 0);
#else
    p.cu_seqlens_q = device_ends_q.data, p.is_seqlens_k_cumulative = p.unpadded_lse = true;
    FLASH_NAMESPACE::NAME(run_mha_fwd_hdim, HEAD_DIM)<T, CAUSAL>(p, 0);
#endif
    auto const o = device_o.get();
    auto const lse = device_lse.get();
    int wrong = 0;
    for (int n = 0; n < SEQUENCES; n++) {
        Sequence const &s = sequences[n];
        Attention const &a = s.attention;
        Doubles expected_lse, expected = a.forward(to_double(s.q), to_double(s.k), to_double(s.v), expected_lse);
        auto const first = o.begin() + size_t(ends_q[n]) * HEADS * HEAD_DIM;
        wrong |= compare("o", std::vector<T>(first, first + a.queries()), expected, 4e-3);
        std::vector<float> own;  // of an empty row the library writes +inf
        for (int head = 0; head < HEADS; head++)
            for (int i = 0; i < a.seq_q; i++)
                own.push_back(lse[PAGED ? (size_t(n) * HEADS + head) * a.seq_q + i
                                        : size_t(head) * total + ends_q[n] + i]);
        if (a.seq_kv >= a.seq_q) wrong |= compare("lse", own, expected_lse, 1e-4);
    }
    return wrong;
}
