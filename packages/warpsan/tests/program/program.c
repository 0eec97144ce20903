/* A CUDA program for gcc: it contains the code that nvcc would generate for its kernels, and reads the fat binary. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { uint32_t x, y, z; } dim3;
typedef void *stream_t;
enum { HOST_TO_DEVICE = 1, DEVICE_TO_HOST = 2, DEVICE_TO_DEVICE = 3, NON_BLOCKING = 1, N = 1000 };

void **__cudaRegisterFatBinary(void *);
void __cudaRegisterFunction(void **, const void *, char *, const char *, int, void *, void *, void *, void *, int *);
void __cudaRegisterVar(void **, void *, char *, const char *, int, size_t, int, int);
void __cudaRegisterManagedVar(void **, void **, char *, const char *, int, size_t, int, int);
char __cudaInitModule(void **);
int cudaMalloc(void **, size_t), cudaFree(void *), cudaMallocHost(void **, size_t), cudaFreeHost(void *);
int cudaMallocManaged(void **, size_t, unsigned), cudaMemcpy(void *, const void *, size_t, int);
int cudaMemcpyAsync(void *, const void *, size_t, int, stream_t), cudaMemset(void *, int, size_t);
int cudaMemcpy2D(void *, size_t, const void *, size_t, size_t, size_t, int);
int cudaMallocPitch(void **, size_t *, size_t, size_t);
int cudaMemcpyToSymbol(const void *, const void *, size_t, size_t, int);
int cudaMemcpyFromSymbol(void *, const void *, size_t, size_t, int);
int cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, stream_t);
int cudaStreamCreate(stream_t *), cudaStreamCreateWithFlags(stream_t *, unsigned), cudaStreamSynchronize(stream_t);
int cudaStreamWaitEvent(stream_t, void *, unsigned), cudaDeviceSynchronize(void);
int cudaEventCreate(void **), cudaEventRecord(void *, stream_t), cudaEventElapsedTime(float *, void *, void *);
int cudaEventSynchronize(void *), cudaLaunchHostFunc(stream_t, void (*)(void *), void *);
int cudaGetLastError(void), cudaGraphCreate(void *, unsigned), cudaMemGetInfo(size_t *, size_t *);
int cudaDeviceGetAttribute(int *, int, int), cudaGetDeviceCount(int *);
int cudaFuncSetAttribute(const void *, int, int);
const char *cudaGetErrorString(int), *cudaGetErrorName(int);

static char binary[1 << 20] __attribute__((aligned(8)));
static struct { int magic, version; const void *data; void *others; } wrapper = {0x466243b1, 1, binary, NULL};
static char scale, reverse, hello, fail, turn; /* host functions of the kernels */
static float factor = 1;
static void **module;

static void check(int error, int line) {
    if (!error) return;
    printf("line %d: %s\n", line, cudaGetErrorString(error));
    exit(1);
}
#define CHECK(call) check(call, __LINE__)

__attribute__((constructor)) static void load(void) {
    FILE *file = fopen(getenv("FAT_BINARY"), "rb");
    if (!file || !fread(binary, 1, sizeof binary, file)) exit(9);
    if (getenv("LINKED")) wrapper.version = 2;
    module = __cudaRegisterFatBinary(&wrapper);
    char *names[] = {"scale", "reverse", "hello", "fail", "turn"};
    char *functions[] = {&scale, &reverse, &hello, &fail, &turn};
    for (int k = 0; k < 5; k++) __cudaRegisterFunction(module, functions[k], names[k], names[k], -1, 0, 0, 0, 0, 0);
    __cudaRegisterVar(module, &factor, "factor", "factor", 0, sizeof factor, 1, 0);
}

static int launch(const void *kernel, float *x, int n, stream_t stream) {
    void *arguments[] = {&x, &n};
    return cudaLaunchKernel(kernel, (dim3){4, 1, 1}, (dim3){256, 1, 1}, arguments, 0, stream);
}

static int right(const float *x, float by) {
    for (int i = 0; i < N; i++)
        if (x[i] != by * (float)i) return printf("x[%d] is %g\n", i, x[i]), 0;
    return 1;
}

static void simple(float *d, float *h) {
    float two = 2, back = 0;
    CHECK(cudaMemcpyToSymbol(&factor, &two, sizeof two, 0, HOST_TO_DEVICE));
    CHECK(launch(&scale, d, N, NULL));
    CHECK(cudaMemcpy(h, d, N * sizeof *h, DEVICE_TO_HOST));
    CHECK(cudaMemcpyFromSymbol(&back, &factor, sizeof back, 0, DEVICE_TO_HOST));
    printf("%s\n", right(h, 2) && back == 2 ? "right" : "wrong");
}

static void streams(float *d, float *h) {
    stream_t first, second;
    void *begin, *end;
    float ms = -1;
    CHECK(cudaStreamCreateWithFlags(&first, NON_BLOCKING));
    CHECK(cudaStreamCreateWithFlags(&second, NON_BLOCKING));
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    CHECK(cudaEventRecord(begin, first));
    CHECK(launch(&scale, d, N, first));
    CHECK(cudaEventRecord(end, first));
    CHECK(cudaStreamWaitEvent(second, end, 0));
    CHECK(launch(&scale, d, N, second));
    CHECK(cudaStreamSynchronize(second));
    CHECK(cudaMemcpy(h, d, N * sizeof *h, DEVICE_TO_HOST));
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    printf("%s\n", right(h, 1) && ms > 0 ? "right" : "wrong");
}

static void rows(float *d, float *h) {
    char *pitched;
    size_t pitch;
    float back[N];
    CHECK(cudaMallocPitch((void **)&pitched, &pitch, 10 * sizeof *h, N / 10));
    CHECK(cudaMemcpy2D(pitched, pitch, d, 10 * sizeof *h, 10 * sizeof *h, N / 10, DEVICE_TO_DEVICE));
    CHECK(cudaMemcpy2D(back, 10 * sizeof *h, pitched, pitch, 10 * sizeof *h, N / 10, DEVICE_TO_HOST));
    printf("%s\n", pitch == 512 && right(back, 1) ? "right" : "wrong");
    CHECK(cudaFree(pitched));
}

static void variable(void) { /* __managed__ int turns = 2 */
    int *turns, shadow;
    __cudaRegisterManagedVar(module, (void **)&turns, (char *)&shadow, "turns", 0, sizeof *turns, 0, 0);
    __cudaInitModule(module);
    int first = *turns, value;
    *turns = 7;
    CHECK(launch(&turn, NULL, 3, NULL));
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpyFromSymbol(&value, &shadow, sizeof value, 0, DEVICE_TO_HOST));
    puts(first == 2 && *turns == 7 + 3 * 256 && value == *turns ? "right" : "wrong");
}

static void managed(int wait) {
    float *m;
    CHECK(cudaMallocManaged((void **)&m, N * sizeof *m, 1));
    for (int i = 0; i < N; i++) m[i] = (float)i;
    CHECK(launch(&scale, m, N, NULL));
    if (wait) CHECK(cudaDeviceSynchronize());
    float early = m[5]; /* the host reads managed memory */
    CHECK(cudaDeviceSynchronize());
    printf("%s\n", right(m, 1) && early == 5 ? "right" : "wrong");
}

static void pinned(float *d, int wait) {
    float *p;
    stream_t stream;
    CHECK(cudaMallocHost((void **)&p, N * sizeof *p));
    CHECK(cudaStreamCreate(&stream));
    CHECK(launch(&scale, d, N, stream));
    CHECK(cudaMemcpyAsync(p, d, N * sizeof *p, DEVICE_TO_HOST, stream)); /* the copy back */
    if (wait) CHECK(cudaStreamSynchronize(stream));
    printf("%s\n", right(p, 1) ? "right" : "wrong");
    CHECK(cudaFreeHost(p));
}

static void look(void *data) { printf("%s\n", right(data, 1) ? "right" : "wrong"); }

static void callback(float *d) {
    float *p;
    stream_t stream;
    CHECK(cudaMallocHost((void **)&p, N * sizeof *p));
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaMemcpyAsync(p, d, N * sizeof *p, DEVICE_TO_HOST, stream));
    CHECK(cudaLaunchHostFunc(stream, look, p));
}

int main(int count, char **words) {
    const char *mode = count > 1 ? words[1] : "";
#define MODE(name) if (!strcmp(mode, name))
    float h[N], *d;
    for (int i = 0; i < N; i++) h[i] = (float)i;
    CHECK(cudaMalloc((void **)&d, sizeof h)); /* the array of the program */
    CHECK(cudaMemcpy(d, h, sizeof h, HOST_TO_DEVICE));
    MODE("simple") simple(d, h);
    MODE("streams") streams(d, h);
    MODE("rows") rows(d, h);
    MODE("managed") managed(1);
    MODE("managed variable") variable();
    MODE("pinned") pinned(d, 1);
    MODE("callback") callback(d);
    MODE("managed early") managed(0);
    MODE("pinned early") pinned(d, 0);
    MODE("hello") {
        CHECK(launch(&hello, d, N, NULL));
        printf("after the launch\n");
        CHECK(cudaDeviceSynchronize());
        printf("after the wait\n");
    }
    MODE("race") CHECK(launch(&reverse, d, N, NULL));
    MODE("beyond") CHECK(launch(&scale, d, N + 1, NULL));
    MODE("stream") {
        stream_t stream;
        CHECK(cudaStreamCreateWithFlags(&stream, NON_BLOCKING));
        CHECK(launch(&scale, d, N, stream));
        CHECK(cudaMemcpy(h, d, sizeof h, DEVICE_TO_HOST)); /* waits for the default stream alone */
    }
    MODE("copy") printf("%s\n", cudaGetErrorName(cudaMemcpy(h, d, sizeof h + 4, DEVICE_TO_HOST)));
    MODE("freed") {
        CHECK(cudaFree(d));
        CHECK(launch(&scale, d, N, NULL));
    }
    MODE("unwritten") { /* relies on zeros in unwritten memory */
        CHECK(cudaMalloc((void **)&d, sizeof h));
        CHECK(cudaMemcpy(h, d, sizeof h, DEVICE_TO_HOST));
        return h[3] == 0 ? 0 : 3;
    }
    MODE("no memset") {
        CHECK(cudaMalloc((void **)&d, sizeof h)); /* not cleared */
        CHECK(launch(&scale, d, N, NULL));
    }
    MODE("copy of nothing") {
        float *nothing;
        CHECK(cudaMalloc((void **)&nothing, sizeof h));
        CHECK(cudaMemcpy(d, nothing, sizeof h, DEVICE_TO_DEVICE));
        CHECK(launch(&scale, d, N, NULL));
    }
    MODE("memset") {
        CHECK(cudaMalloc((void **)&d, sizeof h + 400));
        CHECK(cudaMemset(d, 0, sizeof h)); /* the kernel reads no more */
        CHECK(launch(&scale, d, N, NULL));
    }
    MODE("dereference") printf("%g\n", d[3]);
    MODE("graph") printf("%s\n", cudaGetErrorString(cudaGraphCreate(&d, 0)));
    MODE("block") {
        void *arguments[] = {&d, &count};
        cudaLaunchKernel(&scale, (dim3){1, 1, 1}, (dim3){2048, 1, 1}, arguments, 0, NULL);
        printf("%s\n", cudaGetErrorString(cudaGetLastError()));
    }
    MODE("shared") {
        void *arguments[] = {&d, &count};
        printf("%d", cudaLaunchKernel(&scale, (dim3){1, 1, 1}, (dim3){1, 1, 1}, arguments, 60000, NULL));
        printf(" %d", cudaFuncSetAttribute(&scale, 8, 60000));
        printf(" %d\n", cudaLaunchKernel(&scale, (dim3){1, 1, 1}, (dim3){1, 1, 1}, arguments, 60000, NULL));
    }
    MODE("assert") {
        CHECK(launch(&fail, d, N, NULL));
        printf("%s\n", cudaGetErrorName(cudaDeviceSynchronize()));
        printf("%s\n", cudaGetErrorName(cudaMemset(d, 0, 4)));
    }
    MODE("device") {
        int major = 0, sms = 0, many = 0;
        CHECK(cudaDeviceGetAttribute(&major, 75, 0));
        CHECK(cudaDeviceGetAttribute(&sms, 16, 0));
        CHECK(cudaGetDeviceCount(&many));
        printf("%d %d %d\n", many, major, sms);
    }
    MODE("exit") return 7;
    fflush(stdout);
    return 0;
}
