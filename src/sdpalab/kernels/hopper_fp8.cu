// hopper_fp8: both products on the e4m3 tensor cores of sm_90a, which multiply twice as fast as those for 16 bits.
//
// Idea: what hopper.cu does in 16 bits, TMA into a ring, wgmma from shared memory, softmax and products behind each
// other. A kernel before this one quantises Q, K and V, with a float32 scale for each 128 rows (tile/quantise.cuh); its
// time counts. For 8 bits wgmma transposes nothing: both operands run along k. So that kernel writes V^T, with its keys
// in the order in which the accumulators of S, packed as they are, make the next left operand: no weight moves.
//
// Each tile's P V starts from 0 and joins O in float32, with the scale of its V and the rescale of the softmax as
// factors (accumulate_tile). It costs a second accumulator, and D / 2 multiply-adds a thread and tile. It buys a scale
// for each block of V, and sums of at most 128 terms in the tensor cores: Hopper's e4m3 units keep fewer bits of a sum
// than float32 has (ptx/wgmma_fp8.cuh).
//
// How a tile gets from TMA to the consumers is told in mainloop/tile_ring.cuh.
//
// Static bars: 0 spills, 0 stack; at most 168 registers a thread at launch, which the warpgroups then share out.
// Knobs: BLOCK_M (rows of Q; 64 a consumer; 0: by problem), BLOCK_N (keys a tile), NUM_STAGES (tiles of K, V in memory).

#include "schedule/head.cuh"
#include "mainloop/tile_ring.cuh"
#include "tile/warpgroup_fp8.cuh"
#include "epilogue/warpgroup_store.cuh"

constexpr int CONSUMERS = BLOCK_M / WARPGROUP_M;
constexpr int SCALE_ROWS = 128;
constexpr int Q_BYTES = WARPGROUP_M * HEAD_DIM;  // of one consumer
constexpr int O_BYTES = 2 * Q_BYTES;             // which take the place of its Q in the end
constexpr int WARP_O_BYTES = WARP_M * HEAD_DIM * 2;
constexpr int TILE_BYTES = BLOCK_N * HEAD_DIM;
constexpr int RING_OFFSET = CONSUMERS * O_BYTES;
constexpr int BARRIERS_OFFSET = RING_OFFSET + NUM_STAGES * 2 * TILE_BYTES;
using Budget = Registers<CONSUMERS>;

static_assert(HEAD_DIM == 64 || HEAD_DIM == 128, "HEAD_DIM is 64 or 128");
static_assert(BLOCK_M == 64 || BLOCK_M == 128, "BLOCK_M is 64 or 128");
static_assert(BLOCK_N == 64 || BLOCK_N == 128, "BLOCK_N is 64 or 128");
static_assert(NUM_STAGES >= 2 && NUM_STAGES <= 4, "NUM_STAGES is 2, 3 or 4");
static_assert(SCALE_ROWS % BLOCK_M == 0 && SCALE_ROWS % BLOCK_N == 0, "a tile has one scale of Q, of K and of V");
static_assert(HEAD_DIM + BLOCK_N / 2 + BLOCK_N / 8 <= Budget::CONSUMER - 32,
              "accumulators of O, of a product and of S and the weights leave a consumer registers for the rest");

using Ring = TileRing<CONSUMERS, NUM_STAGES, TILE_BYTES>;
using Position = Ring::Position;

// What a block works on: its rows, counted in one head, and its tiles of keys.
struct Work {
    int q_head;  // of all batches
    int kv_head;
    int first_row;
    int tiles;
    int v_block;  // first block of the head's V
};

__device__ __forceinline__ Work work_of_block(int seq_q, int seq_kv, int group) {
    const int q_head = blockIdx.z * gridDim.y + blockIdx.y;
    const int kv_head = q_head / group;
    const int first_row = q_tile_of_block() * BLOCK_M;
    const int tiles = tiles_visible(min(first_row + BLOCK_M, seq_q) - 1, seq_kv, BLOCK_N);
    return Work{q_head, kv_head, first_row, tiles, kv_head * ceil_div(seq_kv, SCALE_ROWS)};
}

// Block of SCALE_ROWS keys that a tile lies in.
__device__ __forceinline__ int scale_block(int tile) {
    return tile / (SCALE_ROWS / BLOCK_N);
}

// One thread has TMA load the block's tile of Q, then its tiles of K and V as their places become free.
__device__ __forceinline__ void produce(const TensorMap& q, const TensorMap& k, const TensorMap& v, const Work& work,
                                        unsigned q_smem, const Ring& ring) {
    const unsigned q_full = ptx::smem_address(&ring.barriers.q_full);
    ptx::mbarrier_arrive_expect_tx(q_full, CONSUMERS * Q_BYTES);
#pragma unroll
    for (int i = 0; i < CONSUMERS; ++i) {
        ptx::cp_async_bulk_tensor_3d_load(q_smem + i * O_BYTES, q, 0, work.first_row + i * WARPGROUP_M, work.q_head,
                                          q_full);
    }
    Position at;
#pragma unroll 1
    for (int tile = 0; tile < work.tiles; ++tile) {
        ring.wait_empty(at, K);
        const unsigned k_full = ring.expect(at, K);
        ptx::cp_async_bulk_tensor_3d_load(ring.tile(at, K), k, 0, tile * BLOCK_N, work.kv_head, k_full);

        ring.wait_empty(at, V);
        const unsigned v_full = ring.expect(at, V);
        ptx::cp_async_bulk_tensor_3d_load(ring.tile(at, V), v, tile * BLOCK_N % SCALE_ROWS, 0,
                                          work.v_block + scale_block(tile), v_full);
        at.advance();
    }
}

// One warpgroup's 64 rows, from row first_row on: the output, not yet divided by the sums, and the softmax.
// scales: of K and V, for each block of the head.
__device__ __forceinline__ void attend(float (&o_frag)[HEAD_DIM / 2], SoftmaxRow (&softmax)[2],
                                       const ScoreScale& score_scale, float q_scale, const float2* __restrict__ scales,
                                       const Work& work, unsigned q_smem, const Ring& ring, int consumer,
                                       int first_row, int seq_kv) {
    const int unmasked = tiles_unmasked(first_row, seq_kv, BLOCK_N);
    KeysLeft<BLOCK_N> keys_left(first_row, 0, seq_kv);
    const unsigned long long q = byte_tile_descriptor<HEAD_DIM>(q_smem + consumer * O_BYTES);
    const auto k = [&](const Position& at) { return byte_tile_descriptor<HEAD_DIM>(ring.tile(at, K)); };
    const auto v = [&](const Position& at) { return byte_tile_descriptor<BLOCK_N>(ring.tile(at, V)); };

    float s_frag[BLOCK_N / 2];
    float product[HEAD_DIM / 2];
    unsigned p_frag[BLOCK_N / 8];
    Position at;
    float2 scale = scales[0];

    mbarrier_wait(ring.barriers.q_full, 0);
    ring.wait_full(at, K);
    ptx::wgmma_fence();
    issue_raw_scores(s_frag, q, k(at));
    ptx::wgmma_wait_group<0>();
    hold(s_frag);
    ring.release(at, K);
    weigh_raw(s_frag, softmax, score_scale, TileScale(q_scale, scale.x, score_scale.log2), 0 >= unmasked, keys_left.of_row);
    pack_raw_weights(p_frag, s_frag);
    ring.wait_full(at, V);

#pragma unroll 1
    for (int tile = 1; tile < work.tiles; ++tile) {
        const Position before = at;
        const float v_scale = scale.y;
        scale = scales[scale_block(tile)];
        at.advance();
        keys_left.advance();
        ring.wait_full(at, K);
        wait_for_turn<CONSUMERS>(consumer, tile);
        ptx::wgmma_fence();
        issue_raw_scores(s_frag, q, k(at));
        issue_tile_product(product, p_frag, v(before));
        pass_turn<CONSUMERS>(consumer, tile, work.tiles);

        ptx::wgmma_wait_group<1>();
        hold(s_frag);
        ring.release(at, K);
        const TileScale tile_scale(q_scale, scale.x, score_scale.log2);
        const float2 rescale = weigh_raw(s_frag, softmax, score_scale, tile_scale, tile >= unmasked, keys_left.of_row);
        hold(s_frag);
        // V is not needed yet. But without a branch here ptxas moves the next wait up to the last one, and the weights
        // are computed after the product instead of beside it.
        ring.wait_full(at, V);

        ptx::wgmma_wait_group<0>();
        hold(product);
        hold(p_frag);
        ring.release(before, V);
        pack_raw_weights(p_frag, s_frag);
        accumulate_tile(o_frag, product, v_scale, rescale);
    }
    ptx::wgmma_fence();
    issue_tile_product(product, p_frag, v(at));
    ptx::wgmma_wait_group<0>();
    hold(product);
    accumulate_tile(o_frag, product, scale.y, make_float2(1.0f, 1.0f));
}

// Maps of bytes: q [heads, seq_q, HEAD_DIM] with boxes [1, 64, HEAD_DIM], k [K/V heads, seq_kv, HEAD_DIM] with boxes
// [1, BLOCK_N, HEAD_DIM], v [blocks of the K/V heads, HEAD_DIM, SCALE_ROWS] with boxes [1, HEAD_DIM, BLOCK_N]; and of o
// [heads, panels, seq_q, 64] with boxes [1, panels, 16, 64], panels of 64 columns. Heads are those of all batches, and
// scales those of quantise_blocks<SCALE_ROWS>. grid = (tiles of query rows, query heads, batch); lse as in
// schedule/head.cuh.
__global__ void __maxnreg__(Budget::AT_LAUNCH)
    hopper_fp8_attention(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                         const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap o,
                         const float* __restrict__ q_scales, const float2* __restrict__ kv_scales, int seq_q,
                         int seq_kv, int group, float scale, float* __restrict__ lse) {
    extern __shared__ __align__(1024) unsigned char smem_bytes[];  // Q or O, [NUM_STAGES][K, V^T], barriers
    Ring::Barriers& barriers = *reinterpret_cast<Ring::Barriers*>(smem_bytes + BARRIERS_OFFSET);
    const unsigned smem = ptx::smem_address(smem_bytes);
    const Ring ring{smem + RING_OFFSET, barriers};
    const Work work = work_of_block(seq_q, seq_kv, group);

    if (threadIdx.x == 0) {
        barriers.init();
        ptx::fence_mbarrier_init_release_cluster();
    }
    __syncthreads();

    if (threadIdx.x < WARPGROUP) {
        ptx::setmaxnreg_dec<Budget::PRODUCER>();
        if (threadIdx.x == 0) {
            produce(q, k, v, work, smem, ring);
        }
        return;
    }
    ptx::setmaxnreg_inc<Budget::CONSUMER>();
    const int consumer = threadIdx.x / WARPGROUP - 1;
    const int warp = threadIdx.x / 32 % (WARPGROUP / 32);
    const int lane = threadIdx.x % 32;
    const int first_row = work.first_row + consumer * WARPGROUP_M;
    const ScoreScale score_scale(scale);
    const float q_scale = q_scales[static_cast<long long>(work.q_head) * ceil_div(seq_q, SCALE_ROWS) +
                                   work.first_row / SCALE_ROWS];
    float o_frag[HEAD_DIM / 2] = {};
    SoftmaxRow softmax[2];
    attend(o_frag, softmax, score_scale, q_scale, kv_scales + work.v_block, work, smem, ring, consumer, first_row,
           seq_kv);
    store_warp_rows(o, o_frag, softmax, lse, score_scale.log2, WEIGHT_UNIT,
                    smem + consumer * O_BYTES + warp * WARP_O_BYTES, work.q_head, first_row + warp * WARP_M, seq_q,
                    lane);
    wait_stored_rows_read(lane);  // the block's shared memory lasts until then
}
