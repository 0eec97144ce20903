// What SageAttention's launchers use of PyTorch's header of this name: tensors that view memory on the device.
#pragma once
#include <algorithm>
#include <cassert>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ostream>
#include <sstream>
#include <vector>

#include <cuda_runtime.h>

#define TORCH_CHECK(right, ...)                                                              \
    do {                                                                                     \
        if (!(right)) {                                                                      \
            std::printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #right);                  \
            std::exit(1);                                                                    \
        }                                                                                    \
    } while (0)

namespace at {
enum class ScalarType { Char, Half, BFloat16, Float, Float8_e4m3fn };
inline std::ostream &operator<<(std::ostream &out, ScalarType type) { return out << int(type); }
} // namespace at

namespace torch {
constexpr auto kInt8 = at::ScalarType::Char, kHalf = at::ScalarType::Half;
constexpr auto kFloat = at::ScalarType::Float, kFloat32 = kFloat;
using IntArrayRef = std::vector<int64_t>;

struct TensorOptions {
    TensorOptions dtype(at::ScalarType) const { return {}; }
};

// A contiguous tensor.
class Tensor {
  public:
    Tensor(void *data, at::ScalarType type, IntArrayRef sizes) : data_(data), type_(type), sizes_(sizes) {}

    bool is_cuda() const { return true; }
    bool is_contiguous() const { return true; }
    at::ScalarType dtype() const { return type_; }
    at::ScalarType scalar_type() const { return type_; }
    TensorOptions options() const { return {}; }
    int64_t dim() const { return sizes_.size(); }
    IntArrayRef const &sizes() const { return sizes_; }
    int64_t size(int axis) const { return sizes_[axis]; }
    int64_t stride(int axis) const {
        int64_t count = 1;
        for (int64_t after = axis < 0 ? axis + dim() : axis; ++after < dim();) count *= sizes_[after];
        return count;
    }
    void *data_ptr() const { return data_; }
    template <typename T>
    T *data_ptr() const {
        return static_cast<T *>(data_);
    }

  private:
    void *data_;
    at::ScalarType type_;
    IntArrayRef sizes_;
};

// The log-sum-exp, which programs of the gallery do not take.
inline Tensor empty(IntArrayRef sizes, TensorOptions = {}) {
    TORCH_CHECK(sizes == IntArrayRef{0});
    return {nullptr, kFloat, sizes};
}
} // namespace torch
