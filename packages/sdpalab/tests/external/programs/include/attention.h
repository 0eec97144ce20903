// What the programs of the gallery share: arrays on the device, random numbers, and attention in double precision.
#pragma once
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cuda_runtime.h>

#define CHECK(call)                                                                        \
    do {                                                                                   \
        cudaError_t error = (call);                                                        \
        if (error != cudaSuccess) {                                                        \
            std::printf("%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(error));     \
            std::exit(1);                                                                  \
        }                                                                                  \
    } while (0)

using Doubles = std::vector<double>;

// An array on the device.
template <typename T>
struct DeviceArray {
    T *data;
    size_t count;

    explicit DeviceArray(size_t count) : count(count) { CHECK(cudaMalloc(&data, count * sizeof(T))); }
    explicit DeviceArray(std::vector<T> const &values) : DeviceArray(values.size()) { set(values); }

    void set(std::vector<T> const &values) {
        CHECK(cudaMemcpy(data, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    }
    std::vector<T> get() const {
        std::vector<T> values(count);
        CHECK(cudaMemcpy(values.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost));
        return values;
    }
};

// Nearly normal numbers: the sum of twelve uniform ones (a linear congruential generator), less six.
class Normal {
  public:
    double operator()() {
        double sum = 0;
        for (int i = 0; i < 12; i++) sum += (seed_ = seed_ * 1664525u + 1013904223u) / 4294967296.0;
        return sum - 6;
    }
    template <typename T>
    std::vector<T> draw(size_t count) {
        std::vector<T> values(count);
        for (auto &value : values) value = T(float((*this)()));
        return values;
    }

  private:
    unsigned seed_ = 1;
};

template <typename T>
Doubles to_double(std::vector<T> const &values) {
    Doubles wide(values.size());
    for (size_t i = 0; i < wide.size(); i++) wide[i] = double(float(values[i]));
    return wide;
}

template <typename T>
std::vector<T> from_double(Doubles const &values) {
    std::vector<T> narrow(values.size());
    for (size_t i = 0; i < narrow.size(); i++) narrow[i] = T(float(values[i]));
    return narrow;
}

// Attention of one batch in double precision. Q is [seq_q, heads, head_dim], K and V are [seq_kv, kv_heads, head_dim];
// with causal, the last query sees all keys.
struct Attention {
    int seq_q, seq_kv, heads, kv_heads, head_dim;
    bool causal;

    double scale() const { return 1 / std::sqrt(double(head_dim)); }
    size_t query(int row, int head) const { return (size_t(row) * heads + head) * head_dim; }
    size_t key(int row, int head) const {
        return (size_t(row) * kv_heads + head / (heads / kv_heads)) * head_dim;
    }
    size_t queries() const { return query(seq_q, 0); }
    size_t keys() const { return size_t(seq_kv) * kv_heads * head_dim; }

    // The probabilities of one row, and the logarithm of the sum of its exponentials.
    double row(Doubles const &q, Doubles const &k, int head, int i, Doubles &p) const {
        int seen = causal ? i + 1 + seq_kv - seq_q : seq_kv;
        p.assign(seen > 0 ? seen : 0, 0);
        double top = -INFINITY, sum = 0;
        for (size_t j = 0; j < p.size(); j++) {
            for (int d = 0; d < head_dim; d++) p[j] += q[query(i, head) + d] * k[key(j, head) + d];
            top = std::fmax(top, p[j] *= scale());
        }
        for (double &x : p) sum += x = std::exp(x - top);
        for (double &x : p) x /= sum;
        return top + std::log(sum);
    }

    // The output, [seq_q, heads, head_dim], and the logarithms of the sums, [heads, seq_q].
    Doubles forward(Doubles const &q, Doubles const &k, Doubles const &v, Doubles &lse) const {
        Doubles o(queries(), 0.0), p;
        lse.assign(size_t(heads) * seq_q, 0);
        for (int head = 0; head < heads; head++)
            for (int i = 0; i < seq_q; i++) {
                lse[size_t(head) * seq_q + i] = row(q, k, head, i, p);
                for (size_t j = 0; j < p.size(); j++)
                    for (int d = 0; d < head_dim; d++) o[query(i, head) + d] += p[j] * v[key(j, head) + d];
            }
        return o;
    }

    // The gradients of Q, K and V for that of the output; as many heads of K and V as of Q.
    void backward(Doubles const &q, Doubles const &k, Doubles const &v, Doubles const &grad_o, Doubles &grad_q,
                  Doubles &grad_k, Doubles &grad_v) const {
        grad_q.assign(q.size(), 0), grad_k.assign(k.size(), 0), grad_v.assign(v.size(), 0);
        Doubles p, grad_p;
        for (int head = 0; head < heads; head++)
            for (int i = 0; i < seq_q; i++) {
                row(q, k, head, i, p);
                grad_p.assign(p.size(), 0);
                double mean = 0;
                size_t at_q = query(i, head);
                for (size_t j = 0; j < p.size(); j++) {
                    for (int d = 0; d < head_dim; d++) grad_p[j] += grad_o[at_q + d] * v[key(j, head) + d];
                    mean += p[j] * grad_p[j];
                }
                for (size_t j = 0; j < p.size(); j++) {
                    double grad_s = p[j] * (grad_p[j] - mean) * scale();
                    size_t at_k = key(j, head);
                    for (int d = 0; d < head_dim; d++) {
                        grad_q[at_q + d] += grad_s * k[at_k + d];
                        grad_k[at_k + d] += grad_s * q[at_q + d];
                        grad_v[at_k + d] += p[j] * grad_o[at_q + d];
                    }
                }
            }
    }
};

// Prints the largest absolute error of a result, and returns 1 if it is beyond the limit or not a number.
template <typename T>
int compare(char const *name, std::vector<T> const &result, Doubles const &expected, double limit) {
    double largest = 0;
    for (size_t i = 0; i < expected.size(); i++) {
        double error = std::fabs(double(float(result[i])) - expected[i]);
        if (!(error <= largest)) largest = std::isnan(error) ? INFINITY : error;
    }
    std::printf("%s: largest error %.2e, limit %.0e, %s\n", name, largest, limit, largest < limit ? "right" : "WRONG");
    return largest < limit ? 0 : 1;
}
