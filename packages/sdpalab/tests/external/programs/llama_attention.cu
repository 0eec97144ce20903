// llama.cpp's attention, FP16 keys and values, compared with double precision: llama_attention SEQ_Q SEQ_KV [KV_HEADS]
// -DVECTOR=0 the tensor-core kernel (stream-K and its fixup), 1 that for one query; -DCAUSAL=0 or 1
#include <cstring>

#include "attention.h"
#if VECTOR
#include "fattn-vec.cuh"
#else
#include "fattn-mma-f16.cuh"
#endif

constexpr int HEAD_DIM = 64;
#if VECTOR
DECL_FATTN_VEC_CASE(HEAD_DIM, GGML_TYPE_F16, GGML_TYPE_F16);
#else
constexpr int COLUMNS = 16;
DECL_FATTN_MMA_F16_CASE(HEAD_DIM, HEAD_DIM, COLUMNS, 1);
#endif

// What the launch calls of the rest of llama.cpp: one device, memory from cudaMalloc, and the arithmetic of shapes.
int ggml_cuda_get_device() { return 0; }
void ggml_cuda_set_device(int) {}

ggml_cuda_device_info const &ggml_cuda_info() {
    static ggml_cuda_device_info info = [] {
        ggml_cuda_device_info of = {};
        cudaDeviceProp found;
        CHECK(cudaGetDeviceProperties(&found, 0));
        of.device_count = of.physical_device_count = 1;
        of.devices[0].cc = 100 * found.major + 10 * found.minor, of.devices[0].nsm = SMS;
        of.devices[0].smpb = found.sharedMemPerBlock, of.devices[0].smpbo = found.sharedMemPerBlockOptin;
        of.devices[0].warp_size = found.warpSize;
        return of;
    }();
    return info;
}

struct PlainPool : ggml_cuda_pool {
    void *alloc(size_t size, size_t *actual) override {
        void *memory;
        CHECK(cudaMalloc(&memory, *actual = size));
        return memory;
    }
    void free(void *memory, size_t) override { CHECK(cudaFree(memory)); }
};

std::unique_ptr<ggml_cuda_pool> ggml_backend_cuda_context::new_pool_for_device(int, int) {
    return std::make_unique<PlainPool>();
}
ggml_backend_cuda_context::~ggml_backend_cuda_context() {}

[[noreturn]] static void fail(char const *what, char const *file, int line) {
    std::printf("%s:%d: %s\n", file, line, what);
    std::exit(1);
}
void ggml_cuda_error(char const *call, char const *, char const *file, int line, char const *) { fail(call, file, line); }
extern "C" {
CUresult CUDAAPI cuGetErrorString(CUresult, char const **text) { return *text = "an error of the driver", CUDA_SUCCESS; }
void ggml_abort(char const *file, int line, char const *format, ...) { fail(format, file, line); }
size_t ggml_type_size(ggml_type type) { return type == GGML_TYPE_F32 ? 4 : 2; }
int64_t ggml_blck_size(ggml_type) { return 1; }
size_t ggml_element_size(ggml_tensor const *tensor) { return ggml_type_size(tensor->type); }
int64_t ggml_nrows(ggml_tensor const *tensor) { return tensor->ne[1] * tensor->ne[2] * tensor->ne[3]; }
int64_t ggml_nelements(ggml_tensor const *tensor) { return tensor->ne[0] * ggml_nrows(tensor); }
size_t ggml_nbytes(ggml_tensor const *tensor) { return ggml_nelements(tensor) * ggml_element_size(tensor); }
bool ggml_is_contiguously_allocated(ggml_tensor const *) { return true; }
}
// Keys and values are FP16 already, and no mask is sparse.
to_fp16_cuda_t ggml_get_to_fp16_cuda(ggml_type) { fail("to_fp16", __FILE__, __LINE__); }
to_fp16_nc_cuda_t ggml_get_to_fp16_nc_cuda(ggml_type) { fail("to_fp16_nc", __FILE__, __LINE__); }
void ggml_cuda_flash_attn_ext_compact_mask(ggml_tensor const *, int32_t *, int32_t *, int, int, int, cudaStream_t) {
    fail("compact_mask", __FILE__, __LINE__);
}

// A tensor of rows of head_dim elements, of one batch: [rows, heads, head_dim] in memory.
static ggml_tensor tensor_of(ggml_type type, void *data, int rows, int heads) {
    ggml_tensor tensor = {};
    size_t size = ggml_type_size(type);
    tensor.type = type, tensor.data = data;
    tensor.ne[0] = HEAD_DIM, tensor.ne[1] = rows, tensor.ne[2] = heads, tensor.ne[3] = 1;
    tensor.nb[0] = size, tensor.nb[1] = heads * HEAD_DIM * size, tensor.nb[2] = HEAD_DIM * size;
    tensor.nb[3] = rows * tensor.nb[1];
    return tensor;
}

int main(int argc, char **argv) {
    int seq_q = argc > 1 ? std::atoi(argv[1]) : 173, seq_kv = argc > 2 ? std::atoi(argv[2]) : 200;
    Attention a{seq_q, seq_kv, 2, argc > 3 ? std::atoi(argv[3]) : 2, HEAD_DIM, CAUSAL};
    Normal normal;
    auto q = normal.draw<float>(a.queries());
    auto k = normal.draw<__half>(a.keys()), v = normal.draw<__half>(a.keys());
    DeviceArray<float> device_q(q), device_o(a.queries());
    DeviceArray<__half> device_k(k), device_v(v);
    ggml_tensor of_q = tensor_of(GGML_TYPE_F32, device_q.data, seq_q, a.heads);
    ggml_tensor of_k = tensor_of(GGML_TYPE_F16, device_k.data, seq_kv, a.kv_heads);
    ggml_tensor of_v = tensor_of(GGML_TYPE_F16, device_v.data, seq_kv, a.kv_heads);
    ggml_tensor of_o = tensor_of(GGML_TYPE_F32, device_o.data, a.heads, seq_q);  // [queries, heads, head_dim]
    of_o.nb[1] = HEAD_DIM * sizeof(float), of_o.nb[2] = a.heads * of_o.nb[1];
    of_o.op = GGML_OP_FLASH_ATTN_EXT, of_o.src[0] = &of_q, of_o.src[1] = &of_k, of_o.src[2] = &of_v;
    float scale = float(a.scale());
    std::memcpy(of_o.op_params, &scale, sizeof(scale));
#if CAUSAL
    std::vector<__half> mask(size_t(seq_q) * seq_kv, __float2half(0));
    for (int i = 0; i < seq_q; i++)
        for (int j = i + 1 + seq_kv - seq_q; j < seq_kv; j++) mask[size_t(i) * seq_kv + j] = __float2half(-INFINITY);
    DeviceArray<__half> device_mask(mask);
    ggml_tensor of_mask = {};
    of_mask.type = GGML_TYPE_F16, of_mask.data = device_mask.data;
    of_mask.ne[0] = seq_kv, of_mask.ne[1] = seq_q, of_mask.ne[2] = of_mask.ne[3] = 1;
    of_mask.nb[0] = 2, of_mask.nb[1] = seq_kv * 2, of_mask.nb[2] = of_mask.nb[3] = mask.size() * 2;
    of_o.src[3] = &of_mask;
#endif
    ggml_backend_cuda_context context(0);
#if VECTOR
    ggml_cuda_flash_attn_ext_vec_case<HEAD_DIM, GGML_TYPE_F16, GGML_TYPE_F16>(context, &of_o);
#else
    ggml_cuda_flash_attn_ext_mma_f16_case<HEAD_DIM, HEAD_DIM, COLUMNS, 1>(context, &of_o);
#endif
    CHECK(cudaStreamSynchronize(context.stream()));
    Doubles lse, o = a.forward(to_double(q), to_double(k), to_double(v), lse);
    return compare("o", device_o.get(), o, 4e-3);
}
