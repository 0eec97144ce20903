// cluster: the keys split over the two CTAs of a cluster (sm_90a), for problems whose tiles of queries leave SMs idle.
//
// Idea: both CTAs take the same 64 rows of Q, each attends to half of the keys, and the partial results are merged
// through distributed shared memory: twice the CTAs without a second kernel, a workspace, or reading Q twice. Each
// loads half of Q for both (multicast). In the end each gives away its partial result of the rows that the other
// stores, lane to lane in the accumulator's own layout, so that the merge needs no rearrangement.
//
// One warpgroup a CTA. The product P V of a tile runs while the weights of the next are computed. NUM_STAGES tiles of K
// and V are under way before anything else is done, also before the other CTA is known to run: with 4, at 512 keys,
// those are all.
//
// Static bars (sm_90a): 0 spills, 0 stack, <= 128 registers, 81 KiB shared memory, 2 blocks an SM.
// Knob: NUM_STAGES (tiles of K, V in memory).

#include "ptx/cluster.cuh"
#include "softmax/mask.cuh"
#include "mainloop/ring.cuh"
#include "epilogue/store.cuh"
#include "tile/warpgroup.cuh"

constexpr int CLUSTER = 2;
constexpr int BLOCK_M = WARPGROUP_M;
constexpr int BLOCK_N = 64;
constexpr int WARP_M = 16;
constexpr int NUM_WARPS = BLOCK_M / WARP_M;
constexpr int NUM_THREADS = NUM_WARPS * 32;
constexpr int KEPT_WARPS = NUM_WARPS / CLUSTER;  // those whose rows a CTA stores
constexpr int SHARE_M = BLOCK_M / CLUSTER;       // rows of Q that a CTA loads
constexpr unsigned short ALL_CTAS = (1 << CLUSTER) - 1;
constexpr int Q_BYTES = BLOCK_M * HEAD_DIM * 2;
constexpr int TILE_BYTES = BLOCK_N * HEAD_DIM * 2;

static_assert(HEAD_DIM == PANEL_COLUMNS, "HEAD_DIM is 64: a tile is one panel of the swizzle");
static_assert(NUM_STAGES >= 2 && NUM_STAGES <= 4, "NUM_STAGES is 2, 3 or 4");

// What a warp of the other CTA knows of 16 rows, for each lane.
struct Partial {
    float4 o[HEAD_DIM / 8][32];  // accumulators, four a piece
    float4 softmax[32];          // maximum and sum of row lane / 4, then of row lane / 4 + 8
};
static_assert(sizeof(Partial) >= WARP_M * HEAD_DIM * sizeof(Element), "the output passes through it");

struct SharedMemory {
    alignas(SWIZZLE_BYTES) Element q[BLOCK_M][HEAD_DIM];
    alignas(SWIZZLE_BYTES) Element k[NUM_STAGES][BLOCK_N][HEAD_DIM];
    alignas(SWIZZLE_BYTES) Element v[NUM_STAGES][BLOCK_N][HEAD_DIM];
    Partial partial[KEPT_WARPS];
    unsigned long long q_full, k_full[NUM_STAGES], v_full[NUM_STAGES];  // mbarriers
};

__global__ void __launch_bounds__(NUM_THREADS)
    cluster_attention(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
                      const __grid_constant__ TensorMap v_map, Element* __restrict__ o, int seq_q, int seq_kv,
                      int group, float scale) {
    extern __shared__ __align__(SWIZZLE_BYTES) unsigned char smem_bytes[];
    SharedMemory& smem = *reinterpret_cast<SharedMemory*>(smem_bytes);

    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const bool leader = threadIdx.x == 0;
    const unsigned rank = ptx::cluster_ctarank();
    const int head = blockIdx.y;
    const int batch = blockIdx.z;
    const int q_tiles = gridDim.x / CLUSTER;
    const int q_tile = blockIdx.x / CLUSTER;
    const int first_row = (CAUSAL ? q_tiles - 1 - q_tile : q_tile) * BLOCK_M;  // the tiles with most keys go first

    // Of the tiles of keys, the first half is for rank 0. Rank 1 has none if there is only one.
    const int all_tiles = tiles_visible(min(first_row + BLOCK_M, seq_q) - 1, seq_kv, BLOCK_N);
    const int first_half = ceil_div(all_tiles, CLUSTER);
    const int first_tile = rank == 0 ? 0 : first_half;
    const int tiles = rank == 0 ? first_half : all_tiles - first_half;
    const int unmasked = tiles_unmasked(first_row, seq_kv, BLOCK_N) - first_tile;

    const auto load = [&](int tile, int stage) {
        const int key = (first_tile + tile) * BLOCK_N;
        const unsigned k_full = ptx::smem_address(&smem.k_full[stage]);
        const unsigned v_full = ptx::smem_address(&smem.v_full[stage]);
        ptx::mbarrier_arrive_expect_tx(k_full, TILE_BYTES);
        ptx::cp_async_bulk_tensor_4d_load(ptx::smem_address(smem.k[stage]), k_map, 0, key, head / group, batch, k_full);
        ptx::mbarrier_arrive_expect_tx(v_full, TILE_BYTES);
        ptx::cp_async_bulk_tensor_4d_load(ptx::smem_address(smem.v[stage]), v_map, 0, key, head / group, batch, v_full);
    };

    const unsigned q_full = ptx::smem_address(&smem.q_full);
    if (leader) {
        ptx::mbarrier_init(q_full, 1);
        for (int stage = 0; stage < NUM_STAGES; ++stage) {
            ptx::mbarrier_init(ptx::smem_address(&smem.k_full[stage]), 1);
            ptx::mbarrier_init(ptx::smem_address(&smem.v_full[stage]), 1);
        }
        ptx::fence_mbarrier_init_release_cluster();
        ptx::mbarrier_arrive_expect_tx(q_full, Q_BYTES);  // from both CTAs together
        for (int tile = 0; tile < NUM_STAGES && tile < tiles; ++tile) {
            load(tile, tile);
        }
    }
    // From here on each CTA runs, and its mbarriers count, for the other too.
    ptx::barrier_cluster_arrive_relaxed();
    ptx::barrier_cluster_wait_acquire();
    if (leader) {
        const int share = rank * SHARE_M;
        ptx::cp_async_bulk_tensor_4d_load_multicast(ptx::smem_address(smem.q[share]), q_map, 0, first_row + share, head,
                                                    batch, q_full, ALL_CTAS);
    }

    const ScoreScale score_scale(scale);
    float s_frag[BLOCK_N / 2];
    unsigned p_frag[BLOCK_N / 4];
    float o_frag[HEAD_DIM / 2] = {};
    SoftmaxRow softmax[2];
    const int row = first_row + warp * WARP_M + lane / 4;
    const int column = first_tile * BLOCK_N + 2 * (lane % 4);
    int keys_left[2] = {visible_keys(row, seq_kv) - column, visible_keys(row + 8, seq_kv) - column};

    mbarrier_wait(smem.q_full, 0);  // without keys too: before it exits, all that the other CTA sends must have come
    const unsigned long long q = tile_descriptor<BLOCK_M>(ptx::smem_address(smem.q));
    const auto k = [&](int stage) { return tile_descriptor<BLOCK_N>(ptx::smem_address(smem.k[stage])); };
    const auto v = [&](int stage) { return tile_descriptor<BLOCK_N>(ptx::smem_address(smem.v[stage])); };
    if (tiles > 0) {
        RingPosition<NUM_STAGES> at;
        mbarrier_wait(smem.k_full[at.stage], at.parity);
        ptx::wgmma_fence();
        issue_scores(s_frag, q, k(at.stage));
        ptx::wgmma_wait_group<0>();
        hold(s_frag);
        weigh(s_frag, softmax, score_scale, 0 >= unmasked, keys_left);
        pack_weights(p_frag, s_frag);
        mbarrier_wait(smem.v_full[at.stage], at.parity);

#pragma unroll 1
        for (int tile = 1; tile < tiles; ++tile) {
            const int before = at.stage;
            at.advance();
            keys_left[0] -= BLOCK_N;
            keys_left[1] -= BLOCK_N;
            mbarrier_wait(smem.k_full[at.stage], at.parity);
            ptx::wgmma_fence();
            issue_scores(s_frag, q, k(at.stage));
            issue_output(o_frag, p_frag, v(before));
            ptx::wgmma_wait_group<1>();
            hold(s_frag);
            const float2 rescale = weigh(s_frag, softmax, score_scale, tile >= unmasked, keys_left);
            hold(s_frag);
            // V is not needed yet. But without a branch here ptxas moves the next wait up to the last one, and the
            // weights are computed after the product instead of beside it.
            mbarrier_wait(smem.v_full[at.stage], at.parity);
            ptx::wgmma_wait_group<0>();
            hold(o_frag);
            hold(p_frag);
            // The products are the warpgroup's: complete for this warp, they have left the stage for all four.
            const int next = tile - 1 + NUM_STAGES;
            if (leader && next < tiles) {
                load(next, before);
            }
            rescale_output(o_frag, rescale);
            pack_weights(p_frag, s_frag);
        }

        ptx::wgmma_fence();
        issue_output(o_frag, p_frag, v(at.stage));
        ptx::wgmma_wait_group<0>();
        hold(o_frag);
    }

    // What belongs to rows of the other CTA goes there, to where that CTA has its place for this warp.
    const bool kept = warp / KEPT_WARPS == rank;
    Partial& partial = smem.partial[warp % KEPT_WARPS];
    if (!kept) {
        const unsigned o_there = ptx::mapa_shared_cluster(ptx::smem_address(&partial.o[0][lane]), rank ^ 1);
        const unsigned softmax_there = ptx::mapa_shared_cluster(ptx::smem_address(&partial.softmax[lane]), rank ^ 1);
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 8; ++i) {
            ptx::st_shared_cluster_v4(o_there + i * sizeof(partial.o[0]), o_frag[4 * i], o_frag[4 * i + 1],
                                      o_frag[4 * i + 2], o_frag[4 * i + 3]);
        }
        ptx::st_shared_cluster_v4(softmax_there, softmax[0].max, softmax[0].sum, softmax[1].max, softmax[1].sum);
    }
    // After this nobody uses memory of the other CTA: each may exit when it likes.
    ptx::barrier_cluster_arrive_release();
    ptx::barrier_cluster_wait_acquire();
    if (!kept) {
        return;
    }

    // A CTA without keys has a sum of 0 and the lowest maximum: its factor is 0.
    const float4 other = partial.softmax[lane];
    const float other_max[2] = {other.x, other.z};
    const float other_sum[2] = {other.y, other.w};
    float own_factor[2];
    float other_factor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        own_factor[half] = softmax[half].advance(other_max[half], score_scale.log2);
        other_factor[half] = softmax_weight(other_max[half], softmax[half].max, score_scale.log2);
        softmax[half].sum += other_sum[half] * other_factor[half];
        const float normaliser = softmax_normaliser(quad_sum(softmax[half].sum));
        own_factor[half] *= normaliser;
        other_factor[half] *= normaliser;
    }
    unsigned o_pairs[HEAD_DIM / 8][2];
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 8; ++i) {
        const float4 more = partial.o[i][lane];
        o_pairs[i][0] = pack_pair(o_frag[4 * i] * own_factor[0] + more.x * other_factor[0],
                                  o_frag[4 * i + 1] * own_factor[0] + more.y * other_factor[0]);
        o_pairs[i][1] = pack_pair(o_frag[4 * i + 2] * own_factor[1] + more.z * other_factor[1],
                                  o_frag[4 * i + 3] * own_factor[1] + more.w * other_factor[1]);
    }
    __syncwarp();  // the output goes to where other lanes may still read
    const int warp_row = first_row + warp * WARP_M;
    const long long o_row = (static_cast<long long>(batch) * gridDim.y + head) * seq_q + warp_row;
    store_warp_tile<HEAD_DIM>(o + o_row * HEAD_DIM, seq_q - warp_row, o_pairs,
                              reinterpret_cast<unsigned char*>(&partial), lane);
}
