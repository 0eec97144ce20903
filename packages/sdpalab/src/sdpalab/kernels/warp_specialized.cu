// warp_specialized: producer warps that only copy, and consumer warps that only compute, for sm_80 and later.
//
// Idea: each warp has one job. NUM_PRODUCER_WARPS warps read global memory and keep a ring of tiles of K and V filled
// with cp.async; the loop of the consumer warps contains no copies and no addresses of copies, only ldmatrix, mma.sync
// and the softmax of 16 rows (tile/warp_products.cuh). Kernels for Hopper have the same structure: there one thread
// keeps TMA busy and the producer gives its registers away; here a producer's registers are idle, as every warp of a
// block has the same number.
//
// Each stage has two named barriers (mainloop/producer_warps.cuh). NOTES: mbarriers are not used. cp.async could arrive
// at one by itself, and consumers could then be a ring apart, where `full` keeps them within a tile. But before sm_90
// the wait for an mbarrier is a loop around mbarrier.test_wait, whose instructions compete with those of the other
// warps; at a named barrier the hardware suspends the warp. A missing arrival is then a deadlock that the simulator
// explains, not an endless loop.
//
// Static limits (sm_89, D=64, defaults): 0 spills, 0 stack, <= 128 registers, 32 KiB shared memory, 3 blocks an SM.
// Knobs: BLOCK_M (rows of Q; 16 a consumer warp), BLOCK_N (keys a tile; 0: by HEAD_DIM), NUM_STAGES (tiles of K, V in
// memory), NUM_PRODUCER_WARPS.

#include "epilogue/own_rows.cuh"
#include "mainloop/dense_rows.cuh"
#include "mainloop/producer_warps.cuh"
#include "schedule/stream_k.cuh"
#include "softmax/mask.cuh"
#include "tile/warp_products.cuh"

// Above D = 64 the accumulator of O takes the registers that 64 keys of scores would need.
constexpr int TILE_N = BLOCK_N ? BLOCK_N : HEAD_DIM > 64 ? 32 : 64;

// Registers of a thread, such that three blocks of five warps share an SM, or two above D = 64; the hardware allocates
// them as if the warps of all blocks came in fours. ptxas spills nothing on any architecture with these caps.
constexpr int MAX_REGISTERS = HEAD_DIM > 64 ? 168 : 128;

static_assert(HEAD_DIM == 32 || HEAD_DIM == 64 || HEAD_DIM == 128, "HEAD_DIM is 32, 64 or 128");
static_assert(BLOCK_M == 64 || BLOCK_M == 128, "BLOCK_M is 64 or 128");
static_assert(TILE_N == 32 || TILE_N == 64, "BLOCK_N is 0, 32 or 64");
static_assert(NUM_PRODUCER_WARPS == 1 || NUM_PRODUCER_WARPS == 2, "NUM_PRODUCER_WARPS is 1 or 2");

using Scheduler = OneTile<BLOCK_M, TILE_N, CausalMask>;
using Products = WarpProducts16<16, BLOCK_M, TILE_N, HEAD_DIM, HEAD_DIM, true>;
using Source = DenseRows<BLOCK_M, TILE_N, HEAD_DIM, HEAD_DIM, RAGGED_Q, RAGGED_KV>;
using Attention = WarpAttention<Products, OwnRows, Scheduler, CausalMask, Source, BLOCK_M, NUM_STAGES>;

static_assert(Source::Q_BYTES <= Attention::STAGE_BYTES, "Q passes through one stage");
static_assert(Attention::SMEM_BYTES <= 48 * 1024, "two blocks of 48 KiB share an SM of any architecture");

__global__ void __maxnreg__(MAX_REGISTERS)
    warp_specialized_attention(const Element* __restrict__ q, const Element* __restrict__ k,
                               const Element* __restrict__ v, Element* __restrict__ o, int seq_q, int seq_kv, int group,
                               float scale, float* __restrict__ lse, unsigned long long by_kv_head) {
    extern __shared__ __align__(1024) unsigned char smem[];  // [NUM_STAGES][K, V][TILE_N, HEAD_DIM]
    const Source source{{seq_q}, q, k, v, seq_kv, seq_kv, 0, {by_kv_head}};
    ProducerWarps<Attention, NUM_STAGES, NUM_PRODUCER_WARPS>::run(ptx::smem_address(smem), source,
                                                                  Scheduler(seq_q, seq_kv), o, lse, scale);
}
