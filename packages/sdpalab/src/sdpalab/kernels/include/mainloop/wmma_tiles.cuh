// The main loop of attention through nvcuda::wmma: a block's rows of Q against one tile of K and V after the other, for
// any kind of copies.
//
// A copy policy defines the type of its Source in global memory, and
//   chunk(tile_smem, offset, src, exists)  copies eight elements; zeros if the row does not exist: the memory there
//                                          might hold NaN, and a weight of 0 times NaN is NaN
//   commit(), wait<PENDING>()              closes a group of copies; waits for all but the PENDING newest groups
// With STAGES tiles in shared memory, STAGES - 1 are in flight during the products of one.
#pragma once

#include "tile/wmma.cuh"

// Copies through registers: a thread waits for its loads before it can store them.
struct RegisterCopy {
    using Source = Element;

    static __device__ __forceinline__ void chunk(WmmaElement* tile_smem, int offset, const Element* src,
                                                 bool exists) {
        uint4 x = make_uint4(0, 0, 0, 0);
        if (exists) {
            x = *reinterpret_cast<const uint4*>(src);
        }
        *reinterpret_cast<uint4*>(tile_smem + offset) = x;
    }

    static __device__ __forceinline__ void commit() {}

    template <int PENDING>
    static __device__ __forceinline__ void wait() {
        static_assert(PENDING == 0, "nothing is under way behind a copy through registers");
    }
};

// cp.async: a thread issues its copies and continues.
struct AsyncCopy {
    using Source = Element;

    static __device__ __forceinline__ void chunk(WmmaElement* tile_smem, int offset, const Element* src,
                                                 bool exists) {
        ptx::cp_async_cg_16(ptx::smem_address(tile_smem) + offset * 2, src, exists ? 16 : 0);
    }

    static __device__ __forceinline__ void commit() { ptx::cp_async_commit_group(); }

    template <int PENDING>
    static __device__ __forceinline__ void wait() {
        ptx::cp_async_wait_group<PENDING>();
    }
};

// Copies a tile, or starts the copies. src: [rows_left, HEAD_DIM], global.
template <class Copy, int NUM_THREADS, int ROWS>
__device__ __forceinline__ void copy_tile(WmmaElement (&dst_smem)[ROWS][QKV_PITCH], const typename Copy::Source* src,
                                          int rows_left) {
#pragma unroll 2
    for (int e = threadIdx.x * 8; e < ROWS * HEAD_DIM; e += NUM_THREADS * 8) {
        const int row = e / HEAD_DIM;
        Copy::chunk(dst_smem[0], row * QKV_PITCH + e % HEAD_DIM, src + e, row < rows_left);
    }
}

// Accumulates all key tiles visible to the block's rows in half_row. q: the block's first row; k, v: of the head.
template <class Copy, int ROWS, int KEYS, int STAGES>
__device__ __forceinline__ void attend_tiles(HalfRow<KEYS>& half_row, WmmaShared<ROWS, KEYS, STAGES>& smem,
                                             const typename Copy::Source* q, const typename Copy::Source* k,
                                             const typename Copy::Source* v, int rows_left, int tiles, int seq_kv,
                                             const ScoreScale& score_scale) {
    constexpr int NUM_THREADS = WmmaShared<ROWS, KEYS, STAGES>::NUM_THREADS;
    const auto start = [&](int tile) {
        if (tile < tiles) {
            const int key0 = tile * KEYS;
            auto& stage = smem.stages[tile % STAGES];
            copy_tile<Copy, NUM_THREADS>(stage.k, k + key0 * HEAD_DIM, seq_kv - key0);
            copy_tile<Copy, NUM_THREADS>(stage.v, v + key0 * HEAD_DIM, seq_kv - key0);
        }
        // Commits empty groups too: all but the newest STAGES - 1 groups then always belong to tiles that are due.
        Copy::commit();
    };
    copy_tile<Copy, NUM_THREADS>(smem.q, q, rows_left);  // in the group of the first tile
#pragma unroll
    for (int tile = 0; tile < STAGES - 1; ++tile) {
        start(tile);
    }
    for (int tile = 0; tile < tiles; ++tile) {
        start(tile + STAGES - 1);
        Copy::template wait<STAGES - 1>();
        __syncthreads();  // this tile has come, for all

        half_row.attend(smem, tile % STAGES, score_scale);
        __syncthreads();  // everyone has read this tile: the next copy may overwrite it
    }
}

// A block of one of the kernels on 16-bit tensors; schedule/head.cuh states the parameters.
template <class Copy, int ROWS, int KEYS, int STAGES>
__device__ __forceinline__ void wmma_block(const Element* q, const Element* k, const Element* v, Element* o, int seq_q,
                                           int seq_kv, int group, float scale, float* lse) {
    extern __shared__ __align__(32) unsigned char smem_bytes[];
    auto& smem = *reinterpret_cast<WmmaShared<ROWS, KEYS, STAGES>*>(smem_bytes);

    const Head head = head_of_block(q, k, v, o, seq_q, seq_kv, group);
    const ScoreScale score_scale(scale);
    const int block_row = q_tile_of_block() * ROWS;
    const int tiles = tiles_visible(block_row + ROWS - 1, seq_kv, KEYS);
    HalfRow<KEYS> half_row(block_row, seq_kv);
    attend_tiles<Copy>(half_row, smem, head.q + block_row * HEAD_DIM, head.k, head.v, seq_q - block_row, tiles, seq_kv,
                       score_scale);
    half_row.store(head.o, lse, seq_q, score_scale);
}
