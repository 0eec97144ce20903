// What FlashAttention's parameters name of PyTorch's header of this name: the state of a random generator, for dropout
// alone, which no program of the gallery has.
#pragma once

namespace at {
struct PhiloxCudaState {};
} // namespace at
