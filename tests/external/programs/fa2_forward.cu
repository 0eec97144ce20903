// FlashAttention-2, forward, FP16, head dimension 64: fa2_forward S; -DCAUSAL=1 for the causal one.
#include "fa2_parameters.h"
#include "flash_fwd_launch_template.h"

int main(int count, char **words) {
    const int S = count > 1 ? atoi(words[1]) : 200;
    const size_t size = (size_t)S * HEADS * HEAD_DIM;
    const Halves q = normal(size, 1), k = normal(size, 2), v = normal(size, 3);
    auto p = forward_parameters<FLASH_NAMESPACE::Flash_fwd_params>(q, k, v, S, CAUSAL);
    FLASH_NAMESPACE::run_mha_fwd_hdim64<cutlass::half_t, CAUSAL>(p, 0);
    return close("O", download(p.o_ptr, size), attention(q, k, v, nullptr, S, HEADS, HEAD_DIM, CAUSAL).o, 1e-3) ? 0 : 1;
}
