/* A libcuda.so.1 for machines without a GPU: hands every call of the CUDA Driver API to Python, in the same process.
 *
 * It exports what cuda-bindings resolves by dlsym, cuGetProcAddress_v2, and gives by that the calls of CALLS. Arguments
 * go to Python as 64-bit words, whatever their type: standin_driver.py reads and writes through them. That file is
 * found through STANDIN_PYTHON, a folder which the compiler is given; the library's own folder holds its settings.
 *
 * Source: CUDA Driver API, "Driver Entry Point Access"; Python/C API, "Non-Python created threads".
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#ifndef STANDIN_PYTHON
#error "compile with -DSTANDIN_PYTHON=\"the folder of standin_driver.py\""
#endif

enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, DEINITIALIZED = 4, NOT_FOUND = 500, INTERRUPTED = 0xFFFFFFFE, HANG = 0xFFFFFFFF };

typedef uint64_t word;
typedef uint32_t (*dispatcher)(const char *name, int count, const word *args);

static dispatcher dispatch;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void start(void) {
    int (*ensure)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "PyGILState_Ensure");
    void (*release)(int) = (void (*)(int))dlsym(RTLD_DEFAULT, "PyGILState_Release");
    int (*run)(const char *) = (int (*)(const char *))dlsym(RTLD_DEFAULT, "PyRun_SimpleString");
    Dl_info here;
    char code[8192];
    if (!ensure || !release || !run || !dladdr((void *)start, &here)) return;
    int size = snprintf(code, sizeof code,
                        "import sys; sys.path.insert(0, r'%s'); import standin_driver; sys.path.remove(r'%s')\n"
                        "standin_driver.attach(%llu, r'%s')\n",
                        STANDIN_PYTHON, STANDIN_PYTHON, (unsigned long long)(uintptr_t)&dispatch, here.dli_fname);
    if (size < 0 || size >= (int)sizeof code) return;
    int state = ensure();
    run(code);
    release(state);
}

static int ending(void) {
    int (*asked)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "Py_IsFinalizing");
    if (!asked) asked = (int (*)(void))dlsym(RTLD_DEFAULT, "_Py_IsFinalizing");
    return asked && asked();
}

static uint32_t call(const char *name, int count, const word *args) {
    if (ending()) return DEINITIALIZED;
    pthread_once(&once, start);
    if (!dispatch) return NOT_INITIALIZED;
    uint32_t result = dispatch(name, count, args);
    if (result == INTERRUPTED) { /* a signal came during the call: Python's handler runs when the call has returned */
        void (*interrupt)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, "PyErr_SetInterrupt");
        if (interrupt) interrupt();
        return SUCCESS;
    }
    while (result == HANG) pause(); /* as a driver that waits for a kernel without end: no signal of Python's ends it */
    return result;
}

#define P1 word a
#define P2 P1, word b
#define P3 P2, word c
#define P4 P3, word d
#define P5 P4, word e
#define P6 P5, word f
#define P7 P6, word g
#define P8 P7, word h
#define P9 P8, word i
#define P10 P9, word j
#define P11 P10, word k
#define P12 P11, word l
#define A1 a
#define A2 A1, b
#define A3 A2, c
#define A4 A3, d
#define A5 A4, e
#define A6 A5, f
#define A7 A6, g
#define A8 A7, h
#define A9 A8, i
#define A10 A9, j
#define A11 A10, k
#define A12 A11, l

/* Name and number of parameters. */
#define CALLS(X)                                                                                                       \
    X(cuInit, 1)                                                                                                       \
    X(cuDriverGetVersion, 1)                                                                                           \
    X(cuGetErrorString, 2)                                                                                             \
    X(cuGetErrorName, 2)                                                                                               \
    X(cuDeviceGetCount, 1)                                                                                             \
    X(cuDeviceGet, 2)                                                                                                  \
    X(cuDeviceGetName, 3)                                                                                              \
    X(cuDeviceGetUuid, 2)                                                                                              \
    X(cuDeviceTotalMem, 2)                                                                                             \
    X(cuDeviceGetAttribute, 3)                                                                                         \
    X(cuDevicePrimaryCtxRetain, 2)                                                                                     \
    X(cuDevicePrimaryCtxRelease, 1)                                                                                    \
    X(cuCtxGetCurrent, 1)                                                                                              \
    X(cuCtxSetCurrent, 1)                                                                                              \
    X(cuCtxPushCurrent, 1)                                                                                             \
    X(cuCtxPopCurrent, 1)                                                                                              \
    X(cuCtxGetDevice, 1)                                                                                               \
    X(cuCtxSynchronize, 0)                                                                                             \
    X(cuStreamGetCaptureInfo, 7)                                                                                       \
    X(cuStreamSynchronize, 1)                                                                                          \
    X(cuMemGetInfo, 2)                                                                                                 \
    X(cuMemAlloc, 2)                                                                                                   \
    X(cuMemFree, 1)                                                                                                    \
    X(cuMemcpyHtoD, 3)                                                                                                 \
    X(cuMemcpyDtoH, 3)                                                                                                 \
    X(cuMemcpyDtoD, 3)                                                                                                 \
    X(cuMemsetD8, 3)                                                                                                   \
    X(cuMemsetD32, 3)                                                                                                  \
    X(cuMemsetD8Async, 4)                                                                                              \
    X(cuMemsetD16Async, 4)                                                                                             \
    X(cuMemsetD32Async, 4)                                                                                             \
    X(cuMemsetD2D32Async, 6)                                                                                           \
    X(cuModuleLoadData, 2)                                                                                             \
    X(cuModuleLoadDataEx, 5)                                                                                           \
    X(cuModuleUnload, 1)                                                                                               \
    X(cuModuleGetFunction, 3)                                                                                          \
    X(cuFuncGetAttribute, 3)                                                                                           \
    X(cuFuncSetAttribute, 3)                                                                                           \
    X(cuLaunchKernel, 11)                                                                                              \
    X(cuLaunchKernelEx, 4)                                                                                             \
    X(cuTensorMapEncodeTiled, 12)                                                                                      \
    X(cuTensorMapReplaceAddress, 2)                                                                                    \
    X(cuProfilerStart, 0)                                                                                              \
    X(cuProfilerStop, 0)

#define STUB(name, n) STUB_(name, n)
#define STUB_(name, n)                                                                                                 \
    static uint32_t name(P##n) {                                                                                       \
        word args[] = {A##n};                                                                                          \
        return call(#name, n, args);                                                                                      \
    }
#define P0 void
#define A0 0
CALLS(STUB)

__attribute__((visibility("default"))) uint32_t cuGetProcAddress_v2(const char *symbol, void **function, int version,
                                                                     uint64_t flags, uint32_t *status);

#define ENTRY(name, n) {#name, (void *)name},
static const struct {
    const char *name;
    void *function;
} table[] = {CALLS(ENTRY){"cuGetProcAddress", (void *)cuGetProcAddress_v2}};

uint32_t cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, uint32_t *status) {
    (void)version, (void)flags;
    if (!symbol || !function) return INVALID_VALUE;
    *function = NULL;
    /* The binding asks for all that it has before its first call; what a program asks for later is a call like others. */
    word args[] = {(word)(uintptr_t)symbol};
    uint32_t result = dispatch ? call("cuGetProcAddress", 1, args) : SUCCESS;
    if (result) return result;
    for (size_t at = 0; at < sizeof table / sizeof *table; ++at)
        if (!strcmp(symbol, table[at].name)) *function = table[at].function;
    if (status) *status = *function ? 0 : 1;
    return *function ? SUCCESS : NOT_FOUND;
}
