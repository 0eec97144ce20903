// What llama.cpp's common header names of cuBLAS: handles and their calls, which no kernel of the gallery makes.
#pragma once
#include <library_types.h>

typedef struct cublasContext *cublasHandle_t;
typedef enum { CUBLAS_STATUS_SUCCESS = 0, CUBLAS_STATUS_NOT_SUPPORTED = 15 } cublasStatus_t;
typedef enum { CUBLAS_TF32_TENSOR_OP_MATH = 3 } cublasMath_t;
typedef enum { CUBLAS_COMPUTE_16F = 64, CUBLAS_COMPUTE_32F = 68 } cublasComputeType_t;

inline char const *cublasGetStatusString(cublasStatus_t) { return "there is no cuBLAS"; }
inline cublasStatus_t cublasCreate(cublasHandle_t *) { return CUBLAS_STATUS_NOT_SUPPORTED; }
inline cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t) { return CUBLAS_STATUS_NOT_SUPPORTED; }
inline cublasStatus_t cublasSetStream(cublasHandle_t, cudaStream_t) { return CUBLAS_STATUS_NOT_SUPPORTED; }
inline cublasStatus_t cublasSetWorkspace(cublasHandle_t, void *, size_t) { return CUBLAS_STATUS_NOT_SUPPORTED; }
