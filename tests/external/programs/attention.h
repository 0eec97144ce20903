// Attention in double precision, forward and backward, for the programs that call a library's kernels; [S, H, D] halves.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cuda_fp16.h>
#include <vector>

using Halves = std::vector<__half>;

// Nearly normal values from a small generator, the same in every run.
inline Halves normal(size_t count, uint32_t seed) {
    Halves values(count);
    for (auto &value : values) {
        float sum = -6;
        for (int k = 0; k < 12; k++) sum += (seed = seed * 1664525u + 1013904223u) / 4294967296.0f;
        value = __float2half(sum);
    }
    return values;
}

struct Gradients {
    std::vector<double> o, dq, dk, dv;
};

// O, and with dO the gradients; without it they are empty.
inline Gradients attention(const Halves &q, const Halves &k, const Halves &v, const Halves *grad, int S, int H, int D, bool causal) {
    Gradients out;
    out.o.resize(q.size());
    if (grad) out.dq.resize(q.size()), out.dk.resize(q.size()), out.dv.resize(q.size());
    const double scale = 1 / std::sqrt((double)D);
    auto index = [&](int s, int h, int d) { return ((size_t)s * H + h) * D + d; };
    auto at = [&](const Halves &x, int s, int h, int d) { return (double)__half2float(x[index(s, h, d)]); };
    std::vector<double> p(S), dp(S);
    for (int h = 0; h < H; h++)
        for (int i = 0; i < S; i++) {
            const int keys = causal ? i + 1 : S;
            double top = -1e300, sum = 0, delta = 0;
            for (int j = 0; j < keys; j++) {
                p[j] = 0;
                for (int d = 0; d < D; d++) p[j] += scale * at(q, i, h, d) * at(k, j, h, d);
                top = std::fmax(top, p[j]);
            }
            for (int j = 0; j < keys; j++) sum += p[j] = std::exp(p[j] - top);
            for (int j = 0; j < keys; j++) {
                p[j] /= sum;
                for (int d = 0; d < D; d++) out.o[index(i, h, d)] += p[j] * at(v, j, h, d);
            }
            if (!grad) continue;
            for (int j = 0; j < keys; j++) {
                dp[j] = 0;
                for (int d = 0; d < D; d++) dp[j] += at(*grad, i, h, d) * at(v, j, h, d);
                delta += p[j] * dp[j];
            }
            for (int j = 0; j < keys; j++)
                for (int d = 0; d < D; d++) {
                    const double ds = scale * p[j] * (dp[j] - delta);
                    out.dq[index(i, h, d)] += ds * at(k, j, h, d);
                    out.dk[index(j, h, d)] += ds * at(q, i, h, d);
                    out.dv[index(j, h, d)] += p[j] * at(*grad, i, h, d);
                }
        }
    return out;
}

// The L2 norm of the error over that of what is right, printed; whether it is below a limit.
inline bool close(const char *name, const Halves &got, const std::vector<double> &want, double limit) {
    double error = 0, norm = 0;
    for (size_t k = 0; k < got.size(); k++) {
        const double difference = (double)__half2float(got[k]) - want[k];
        error += difference * difference, norm += want[k] * want[k];
    }
    const double relative = std::sqrt(error / norm);
    std::printf("%s: relative error %.2e, %s\n", name, relative, relative < limit ? "right" : "WRONG");
    return relative < limit;
}
