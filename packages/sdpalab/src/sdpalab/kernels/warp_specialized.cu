// warp_specialized: producer warps that only copy, and consumer warps that only compute, for sm_80 and later.
//
// Idea: each warp has one job. NUM_PRODUCER_WARPS warps read global memory and keep a ring of tiles of K and V filled
// with cp.async; the loop of the consumer warps contains no copies and no addresses of copies, only ldmatrix, mma.sync
// and the softmax of 16 rows (tile/warp.cuh). Kernels for Hopper have the same structure: there one thread keeps TMA
// busy and the producer gives its registers away; here a producer's registers are idle, as every warp of a block has
// the same number.
//
// Each stage has two named barriers for all threads. One side arrives without waiting (bar.arrive), the other waits
// (bar.sync), as in the PTX manual's producer-consumer pattern. `full`: the copies of a tile have landed; each producer
// waits for its own. `empty`: every consumer has read the tile. NOTES: mbarriers are not used. cp.async could arrive at
// one by itself, and consumers could then be a ring apart, where `full` keeps them within a tile. But before sm_90 the
// wait for an mbarrier is a loop around mbarrier.test_wait, whose instructions compete with those of the other warps;
// at a named barrier the hardware suspends the warp. A missing arrival is then a deadlock that the simulator explains,
// not an endless loop.
//
// Static limits (sm_89, D=64, defaults): 0 spills, 0 stack, <= 128 registers, 32 KiB shared memory, 3 blocks an SM.
// Knobs: BLOCK_M (rows of Q; 16 a consumer warp), BLOCK_N (keys a tile; 0: by HEAD_DIM), NUM_STAGES (tiles of K, V in
// memory), NUM_PRODUCER_WARPS.

#include "epilogue/store.cuh"
#include "mainloop/ring.cuh"
#include "schedule/head.cuh"
#include "softmax/mask.cuh"
#include "tile/copy.cuh"
#include "tile/warp.cuh"

// Above D = 64 the accumulator of O takes the registers that 64 keys of scores would need.
constexpr int TILE_N = BLOCK_N ? BLOCK_N : HEAD_DIM > 64 ? 32 : 64;
constexpr int CONSUMERS = BLOCK_M / WARP_M * 32;  // threads, the block's first
constexpr int PRODUCERS = NUM_PRODUCER_WARPS * 32;
constexpr int NUM_THREADS = CONSUMERS + PRODUCERS;
constexpr int TILE_BYTES = TILE_N * HEAD_DIM * 2;
constexpr int STAGE_BYTES = 2 * TILE_BYTES;  // K, then V
constexpr int SMEM_BYTES = NUM_STAGES * STAGE_BYTES;

// Registers of a thread, such that three blocks of five warps share an SM, or two above D = 64; the hardware allocates
// them as if the warps of all blocks came in fours. ptxas spills nothing on any architecture with these caps.
constexpr int MAX_REGISTERS = HEAD_DIM > 64 ? 168 : 128;

static_assert(HEAD_DIM == 32 || HEAD_DIM == 64 || HEAD_DIM == 128, "HEAD_DIM is 32, 64 or 128");
static_assert(BLOCK_M == 64 || BLOCK_M == 128, "BLOCK_M is 64 or 128");
static_assert(TILE_N == 32 || TILE_N == 64, "BLOCK_N is 0, 32 or 64");
static_assert(NUM_STAGES >= 2 && NUM_STAGES <= 4, "NUM_STAGES is 2, 3 or 4");
static_assert(NUM_PRODUCER_WARPS == 1 || NUM_PRODUCER_WARPS == 2, "NUM_PRODUCER_WARPS is 1 or 2");
static_assert(BLOCK_M * HEAD_DIM * 2 <= STAGE_BYTES, "Q passes through one stage");
static_assert(SMEM_BYTES <= 48 * 1024, "two blocks of 48 KiB share an SM of any architecture");

using Position = RingPosition<NUM_STAGES>;

// Named barriers; 0 is that of __syncthreads.
__device__ __forceinline__ unsigned full(const Position& at) {
    return 1 + at.stage;
}
__device__ __forceinline__ unsigned empty(const Position& at) {
    return 1 + NUM_STAGES + at.stage;
}
constexpr unsigned ALL_READ = 1 + 2 * NUM_STAGES;
static_assert(ALL_READ < 16, "a block has 16 barriers");

// Q passes through the last stage, which the ring uses last.
constexpr int Q_OFFSET = (NUM_STAGES - 1) * STAGE_BYTES;

// Copies Q and then the tiles, each as soon as its stage is free, and signals the landed ones.
__device__ __forceinline__ void produce(const Head& head, unsigned smem, int first_row, int seq_q, int seq_kv,
                                        int tiles) {
    const int thread = threadIdx.x - CONSUMERS;
    const TileCopy<BLOCK_M, HEAD_DIM, PRODUCERS> q_copy(thread);
    q_copy.start(smem + Q_OFFSET + q_copy.smem_offset, head.q + first_row * HEAD_DIM + q_copy.global_offset,
                 seq_q - first_row - q_copy.row);  // in the group of the first tile

    // While a tile is computed, the next one has landed or is waited for, and IN_FLIGHT more are in flight.
    constexpr int IN_FLIGHT = NUM_STAGES - 2;
    const TileCopy<TILE_N, HEAD_DIM, PRODUCERS> copy(thread);
    Position loading;
    Position landing;
#pragma unroll 1
    for (int tile = 0; tile < tiles + IN_FLIGHT; ++tile) {
        if (tile < tiles) {
            if (tile >= NUM_STAGES - 1) {  // before, its stage was unused: Q has the last one
                ptx::bar_sync(empty(loading), NUM_THREADS);
            }
            const int key = tile * TILE_N;
            const unsigned stage_smem = smem + loading.stage * STAGE_BYTES + copy.smem_offset;
            const int offset = key * HEAD_DIM + copy.global_offset;
            copy.start(stage_smem, head.k + offset, seq_kv - key - copy.row);
            copy.start(stage_smem + TILE_BYTES, head.v + offset, seq_kv - key - copy.row);
            loading.advance();
        }
        // Commits empty groups too: the newest IN_FLIGHT groups then always belong to tiles after the landing one.
        ptx::cp_async_commit_group();
        if (tile >= IN_FLIGHT) {
            ptx::cp_async_wait_group<IN_FLIGHT>();
            ptx::bar_arrive(full(landing), NUM_THREADS);
            landing.advance();
        }
    }
}

// Computes one warp's 16 rows of the block.
__device__ __forceinline__ void consume(const Head& head, float* lse, unsigned smem, int first_row, int seq_q,
                                        int seq_kv, int tiles, float scale) {
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const ScoreScale score_scale(scale);
    const int unmasked = tiles_unmasked(first_row, seq_kv, TILE_N);
    const int warp_row = first_row + warp * WARP_M;
    const unsigned k_smem = smem + col_block_offset<HEAD_DIM>(lane);
    const unsigned v_smem = smem + TILE_BYTES + row_block_offset<HEAD_DIM>(lane);
    // Signals that the stage of this tile has been read; no producer waits for it without a later tile in the stage.
    const auto release = [&](const Position& at, int tile) {
        if (tile + NUM_STAGES < tiles) {
            ptx::bar_arrive(empty(at), NUM_THREADS);
        }
    };

    Position at;
    ptx::bar_sync(full(at), NUM_THREADS);
    unsigned q_frag[HEAD_DIM / 16][4];
    load_q(q_frag, smem + Q_OFFSET + warp * WARP_M * HEAD_DIM * 2 + row_block_offset<HEAD_DIM>(lane));
    apply_sign(q_frag, score_scale);
    release(Position{NUM_STAGES - 1}, -1);

    float o_frag[HEAD_DIM / 8][4] = {};
    SoftmaxRow softmax[2];
#pragma unroll 1
    for (int tile = 0;;) {  // every row sees key 0: there is a tile
        float s_frag[TILE_N / 8][4];
        multiply_scores<TILE_N>(s_frag, q_frag, k_smem + at.stage * STAGE_BYTES);
        if (tile >= unmasked) {
            const int row = warp_row + lane / 4;
            const int column = tile * TILE_N + 2 * (lane % 4);
            const int keys_left[2] = {visible_keys(row, seq_kv) - column, visible_keys(row + 8, seq_kv) - column};
            mask_scores<TILE_N>(s_frag, keys_left);
        }
        advance_softmax<TILE_N>(softmax, o_frag, s_frag, score_scale.log2);
        add_output<TILE_N>(o_frag, softmax, s_frag, v_smem + at.stage * STAGE_BYTES,
                           ExactExponents{softmax, score_scale.log2});
        release(at, tile);
        if (++tile == tiles) {
            break;
        }
        at.advance();
        ptx::bar_sync(full(at), NUM_THREADS);
    }

    unsigned o_pairs[HEAD_DIM / 8][2];
    finish_rows(o_pairs, o_frag, softmax, lse, row_of_block(warp_row, seq_q), seq_q - warp_row, score_scale.log2, lane);
    ptx::bar_sync(ALL_READ, CONSUMERS);  // the output overwrites shared memory that other warps may still read
    store_warp_tile<HEAD_DIM>(head.o + warp_row * HEAD_DIM, seq_q - warp_row, o_pairs,
                              smem + warp * WARP_M * HEAD_DIM * 2, lane);
}

__global__ void __maxnreg__(MAX_REGISTERS)
    warp_specialized_attention(const Element* __restrict__ q, const Element* __restrict__ k,
                               const Element* __restrict__ v, Element* __restrict__ o, int seq_q, int seq_kv, int group,
                               float scale, float* __restrict__ lse) {
    extern __shared__ __align__(1024) unsigned char smem[];  // [NUM_STAGES][K, V][TILE_N, HEAD_DIM]
    const Head head = head_of_block(q, k, v, o, seq_q, seq_kv, group);
    const int first_row = q_tile_of_block() * BLOCK_M;
    const int tiles = tiles_visible(min(first_row + BLOCK_M, seq_q) - 1, seq_kv, TILE_N);

    if (threadIdx.x >= CONSUMERS) {
        produce(head, ptx::smem_address(smem), first_row, seq_q, seq_kv, tiles);
    } else {
        consume(head, lse, ptx::smem_address(smem), first_row, seq_q, seq_kv, tiles, scale);
    }
}
