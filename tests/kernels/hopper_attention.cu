// hopper_attention: FlashAttention-3 (Shah et al. 2024) for sm_90a, on TMA and wgmma.
//
// Idea: nobody waits for what somebody else can do meanwhile. A producer warpgroup does nothing but have TMA fill a
// ring of tiles of K and V, and gives its registers to the consumers, each a warpgroup with 64 query rows. A consumer
// issues the scores of the next tile before the product of this tile's weights with V, so that the tensor cores work
// on the one or the other while it computes a softmax. Q, K and V stay in shared memory, where wgmma reads them; the
// weights never leave the registers, whose accumulator layout is the operand layout of the product with V.
//
// Full and empty mbarriers, one pair each for K and V of a stage, take the place of the block's barrier: a tile is
// read when its bytes have come, and overwritten when every consumer's product has read it. TMA fills what is past
// the end of a head with zeros and stores nothing there: heads are an axis of the maps, so no tile reaches into the
// next. The zeros matter for V, whose rows meet weights of 0.
//
// Static bars (sm_90a): 0 spills, 0 stack, 168 registers a thread at launch (128 with one consumer).
// Knobs: BLOCK_M (rows of Q; 64 a consumer), BLOCK_N (keys a tile), NUM_STAGES (tiles of K, V in memory).

#include "schedule/head.cuh"
#include "softmax/mask.cuh"
#include "mainloop/ring.cuh"
#include "tile/swizzle.cuh"
#include "tile/warpgroup.cuh"

constexpr int WARPGROUP = 128;
constexpr int CONSUMERS = BLOCK_M / WARPGROUP_M;
constexpr int Q_BYTES = WARPGROUP_M * HEAD_DIM * 2;  // of one consumer
constexpr int TILE_BYTES = BLOCK_N * HEAD_DIM * 2;
constexpr int STAGE_BYTES = 2 * TILE_BYTES;  // K, then V
constexpr int RING_OFFSET = CONSUMERS * Q_BYTES;
constexpr int BARRIERS_OFFSET = RING_OFFSET + NUM_STAGES * STAGE_BYTES;

// What a block has at launch is what its warpgroups keep and take later, all together; with one consumer, two blocks
// share an SM.
constexpr int REGISTERS = CONSUMERS == 1 ? 128 : 168;
constexpr int PRODUCER_REGISTERS = 24;
constexpr int CONSUMER_REGISTERS = CONSUMERS == 1 ? 232 : 240;

static_assert(HEAD_DIM == 64 || HEAD_DIM == 128, "HEAD_DIM is 64 or 128");
static_assert(BLOCK_M == 64 || BLOCK_M == 128, "BLOCK_M is 64 or 128");
static_assert(BLOCK_N == 64 || BLOCK_N == 128, "BLOCK_N is 64 or 128");
static_assert(NUM_STAGES >= 2 && NUM_STAGES <= 4, "NUM_STAGES is 2, 3 or 4");
static_assert(PRODUCER_REGISTERS + CONSUMERS * CONSUMER_REGISTERS <= (1 + CONSUMERS) * REGISTERS,
              "setmaxnreg.inc waits for ever for registers that the block does not have");

// Behind the tiles in shared memory. Of each pair, [0] is K's and [1] V's.
struct Barriers {
    unsigned long long q_full;
    unsigned long long full[NUM_STAGES][2];
    unsigned long long empty[NUM_STAGES][2];
};
enum Operand { K, V };

using Position = RingPosition<NUM_STAGES>;

__device__ __forceinline__ unsigned tile_offset(const Position& at, Operand operand) {
    return RING_OFFSET + at.stage * STAGE_BYTES + operand * TILE_BYTES;
}

// One thread has TMA load the block's tile of Q, then its tiles of K and V as their places become free. Coordinates are
// column, row, panel, head.
__device__ __forceinline__ void produce(const TensorMap& q, const TensorMap& k, const TensorMap& v, unsigned smem,
                                        Barriers& barriers, int first_row, int tiles, int q_head, int kv_head) {
    const unsigned q_full = ptx::smem_address(&barriers.q_full);
    ptx::mbarrier_arrive_expect_tx(q_full, CONSUMERS * Q_BYTES);
#pragma unroll
    for (int i = 0; i < CONSUMERS; ++i) {
        ptx::cp_async_bulk_tensor_4d_load(smem + i * Q_BYTES, q, 0, first_row + i * WARPGROUP_M, 0, q_head, q_full);
    }
    Position at;
    const auto load = [&](const TensorMap& map, Operand operand, int tile) {
        const unsigned full = ptx::smem_address(&barriers.full[at.stage][operand]);
        mbarrier_wait(barriers.empty[at.stage][operand], at.parity ^ 1);  // over at once in the first pass
        ptx::mbarrier_arrive_expect_tx(full, TILE_BYTES);
        ptx::cp_async_bulk_tensor_4d_load(smem + tile_offset(at, operand), map, 0, tile * BLOCK_N, 0, kv_head, full);
    };
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
        load(k, K, tile);
        load(v, V, tile);
        at.advance();
    }
}

// One warpgroup's 64 rows of the output, from row first_row of head q_head on.
__device__ __forceinline__ void consume(const TensorMap& o, unsigned smem, Barriers& barriers, int consumer,
                                        int first_row, int tiles, int seq_kv, int q_head, float scale) {
    const int warp = threadIdx.x % WARPGROUP / 32;
    const int lane = threadIdx.x % 32;
    const bool leader = threadIdx.x % WARPGROUP == 0;
    const ScoreScale score_scale(scale);
    const int unmasked = tiles_unmasked(first_row, seq_kv, BLOCK_N);
    const int row = first_row + warp * 16 + lane / 4;
    const int column = 2 * (lane % 4);
    int keys_left[2] = {visible_keys(row, seq_kv) - column, visible_keys(row + 8, seq_kv) - column};
    const unsigned q_smem = smem + consumer * Q_BYTES;
    const unsigned long long q = tile_descriptor<WARPGROUP_M>(q_smem);
    const auto descriptor = [&](const Position& at, Operand operand) {
        return tile_descriptor<BLOCK_N>(smem + tile_offset(at, operand));
    };
    // Once a product has been waited for, its warpgroup has read the tile: one thread says so for all.
    const auto release = [&](const Position& at, Operand operand) {
        if (leader) {
            ptx::mbarrier_arrive(ptx::smem_address(&barriers.empty[at.stage][operand]));
        }
    };

    float o_frag[HEAD_DIM / 2] = {};
    float s_frag[BLOCK_N / 2];
    unsigned p_frag[BLOCK_N / 4];
    SoftmaxRow softmax[2];
    Position k_at;
    Position v_at;

    mbarrier_wait(barriers.q_full, 0);
    mbarrier_wait(barriers.full[k_at.stage][K], k_at.parity);
    ptx::wgmma_fence();
    issue_scores(s_frag, q, descriptor(k_at, K));
    ptx::wgmma_wait_group<0>();
    hold(s_frag);
    release(k_at, K);
    weigh(s_frag, softmax, score_scale, 0 >= unmasked, keys_left);
    pack_weights(p_frag, s_frag);

#pragma unroll 1
    for (int tile = 1; tile < tiles; ++tile) {
        k_at.advance();
        keys_left[0] -= BLOCK_N;
        keys_left[1] -= BLOCK_N;
        mbarrier_wait(barriers.full[v_at.stage][V], v_at.parity);  // loaded before that K
        mbarrier_wait(barriers.full[k_at.stage][K], k_at.parity);
        ptx::wgmma_fence();
        issue_scores(s_frag, q, descriptor(k_at, K));
        issue_output(o_frag, p_frag, descriptor(v_at, V));

        ptx::wgmma_wait_group<1>();
        hold(s_frag);
        release(k_at, K);
        const float2 rescale = weigh(s_frag, softmax, score_scale, tile >= unmasked, keys_left);

        ptx::wgmma_wait_group<0>();
        hold(o_frag);
        hold(p_frag);
        release(v_at, V);
        v_at.advance();
        pack_weights(p_frag, s_frag);
        rescale_output(o_frag, rescale);
    }
    mbarrier_wait(barriers.full[v_at.stage][V], v_at.parity);
    ptx::wgmma_fence();
    issue_output(o_frag, p_frag, descriptor(v_at, V));
    ptx::wgmma_wait_group<0>();
    hold(o_frag);

    // The output takes the place of this consumer's Q, in the same layout: all its products have read that.
    const float factors[2] = {softmax_normaliser(quad_sum(softmax[0].sum)),
                              softmax_normaliser(quad_sum(softmax[1].sum))};
    const unsigned lane_smem = q_smem + row_block_offset<PANEL_COLUMNS>(lane);
#pragma unroll
    for (int d = 0; d < HEAD_DIM / 16; ++d) {
        unsigned pairs[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int at = 8 * d + 2 * i;
            pairs[i] = pack_pair(o_frag[at] * factors[i % 2], o_frag[at + 1] * factors[i % 2]);
        }
        constexpr int BLOCKS = PANEL_COLUMNS / 16;
        const unsigned panel_smem = lane_smem + d / BLOCKS * WARPGROUP_M * PANEL_ROW_BYTES;
        ptx::stmatrix_x4(block_address<PANEL_COLUMNS>(panel_smem, warp, d % BLOCKS), pairs);
    }
    ptx::fence_proxy_async_shared_cta();
    ptx::bar_sync(1 + consumer, WARPGROUP);
    if (leader) {
        ptx::cp_async_bulk_tensor_4d_store(o, 0, first_row, 0, q_head, q_smem);
        ptx::cp_async_bulk_commit_group();
        ptx::cp_async_bulk_wait_group_read<0>();  // the block's shared memory lasts until then
    }
}

// Maps of q, o [heads, panels, seq_q, 64] with boxes [1, panels, 64, 64], and of k, v [K/V heads, panels, seq_kv, 64]
// with boxes [1, panels, BLOCK_N, 64]; panels of 64 columns. grid = (tiles of query rows, query heads, batch); group =
// query heads that share one K/V head.
__global__ void __maxnreg__(REGISTERS)
    hopper_attention(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                     const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap o, int seq_q, int seq_kv,
                     int group, float scale) {
    extern __shared__ __align__(SWIZZLE_BYTES) unsigned char smem_bytes[];  // Q, [NUM_STAGES][K, V], barriers
    Barriers& barriers = *reinterpret_cast<Barriers*>(smem_bytes + BARRIERS_OFFSET);
    const unsigned smem = ptx::smem_address(smem_bytes);
    const int q_head = blockIdx.z * gridDim.y + blockIdx.y;
    const int first_row = q_tile_of_block() * BLOCK_M;
    const int tiles = tiles_visible(min(first_row + BLOCK_M, seq_q) - 1, seq_kv, BLOCK_N);

    if (threadIdx.x == 0) {
        ptx::prefetch_tensormap(q);
        ptx::prefetch_tensormap(k);
        ptx::prefetch_tensormap(v);
        ptx::prefetch_tensormap(o);
        ptx::mbarrier_init(ptx::smem_address(&barriers.q_full), 1);
#pragma unroll
        for (int i = 0; i < 2 * NUM_STAGES; ++i) {
            ptx::mbarrier_init(ptx::smem_address(&barriers.full[i / 2][i % 2]), 1);
            ptx::mbarrier_init(ptx::smem_address(&barriers.empty[i / 2][i % 2]), CONSUMERS);
        }
        ptx::fence_mbarrier_init_release_cluster();
    }
    __syncthreads();

    if (threadIdx.x < WARPGROUP) {
        ptx::setmaxnreg_dec<PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) {
            produce(q, k, v, smem, barriers, first_row, tiles, q_head, q_head / group);
        }
    } else {
        ptx::setmaxnreg_inc<CONSUMER_REGISTERS>();
        const int consumer = threadIdx.x / WARPGROUP - 1;
        consume(o, smem, barriers, consumer, first_row + consumer * WARPGROUP_M, tiles, seq_kv, q_head, scale);
    }
}
