/* A libcudart (and libcuda) for programs that run on the simulator: hands every call to warpsan through a socket.
 *
 * Calls with simple arguments are one line each in calls.inc, which warpsan writes from its table; those that need more
 * are below: module registration, launches, copies, error state, driver entry points. Device memory is a memfd of
 * warpsan's, mapped twice: at the addresses that kernels see, where only memory that the host may access has its pages
 * open, and a second time for copies. A fault in a closed page asks warpsan whether the host may access it yet.
 *
 * Compiled once for each version of the runtime: -DVERSION=13. Sources: CUDA Runtime API; crt/host_runtime.h (what
 * compiled programs call); fatbinary_section.h. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <ucontext.h>
#include <unistd.h>

typedef uint64_t word;
typedef struct { uint32_t x, y, z; } dim3;
enum { SUCCESS = 0, INVALID_VALUE = 1, INITIALIZATION = 3, MISSING_CONFIGURATION = 52, NOT_READY = 600, UNKNOWN = 999 };
enum { FRAMES = 12, CONFIGURATIONS = 16, MOST_PARAMETERS = 4096, NO_ROOM = 97 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int connection = -1;
static char *memory, *alias; /* device memory at the addresses of the device, and where copies find it */
static size_t memory_size;
static __thread int last_error;
static struct sigaction previous_action;

/* ---- messages ---------------------------------------------------------------------------------------------------- */

typedef struct { char *data; size_t size, room; } buffer;

static void put(buffer *to, const void *from, size_t size) {
    if (to->size + size > to->room) {
        to->room = 2 * to->room + size + 256;
        to->data = realloc(to->data, to->room);
        if (!to->data) abort();
    }
    memcpy(to->data + to->size, from, size);
    to->size += size;
}
static void put_byte(buffer *to, unsigned value) { unsigned char byte = (unsigned char)value; put(to, &byte, 1); }
static void put_u32(buffer *to, uint32_t value) { put(to, &value, 4); }
static void put_word(buffer *to, word value) { put(to, &value, 8); }
static void put_bytes(buffer *to, const void *from, size_t size) { put_u32(to, (uint32_t)size); put(to, from, size); }

static int send_all(const char *data, size_t size) {
    while (size) {
        ssize_t part = send(connection, data, size, MSG_NOSIGNAL);
        if (part < 0 && errno == EINTR) continue;
        if (part <= 0) return 0;
        data += part, size -= (size_t)part;
    }
    return 1;
}

static int receive_all(char *data, size_t size) {
    while (size) {
        ssize_t part = recv(connection, data, size, 0);
        if (part < 0 && errno == EINTR) continue;
        if (part <= 0) return 0;
        data += part, size -= (size_t)part;
    }
    return 1;
}

#ifndef VERSION
#error "compile with -DVERSION=13, the major version of the CUDA runtime"
#endif

static uint32_t take_u32(const char **at) { uint32_t value; memcpy(&value, *at, 4); *at += 4; return value; }
static word take_word(const char **at) { word value; memcpy(&value, *at, 8); *at += 8; return value; }

static void disconnect(void) {
    if (connection >= 0) close(connection);
    connection = -1;
}

static void begin(buffer *message, const char *name, void **frames, int count) {
    put_u32(message, 0); /* the size, once it is known */
    put_bytes(message, name, strlen(name));
    put_byte(message, (unsigned)count);
    for (int k = 0; k < count; k++) put_word(message, (word)(uintptr_t)frames[k]);
}

/* Send a message, and take its reply: the status, what goes through the pointers of the caller, pages to open and to
 * close, and what kernels printed. Frees the message. */
static int exchange(buffer *message, void **outs, int count) {
    uint32_t size = (uint32_t)message->size - 4;
    memcpy(message->data, &size, 4);
    char *reply = NULL;
    pthread_mutex_lock(&mutex);
    int good = connection >= 0 && send_all(message->data, message->size) && receive_all((char *)&size, 4) &&
               (reply = malloc(size + 1)) && receive_all(reply, size);
    if (!good) disconnect();
    pthread_mutex_unlock(&mutex);
    free(message->data);
    if (!good) {
        free(reply);
        return INITIALIZATION;
    }
    const char *at = reply;
    int status = (int)take_u32(&at);
    uint32_t pages = take_u32(&at); /* before the results, which may lie in pages that are still closed */
    for (uint32_t k = 0; k < pages; k++) {
        word address = take_word(&at), bytes = take_word(&at);
        int open = (int)take_u32(&at);
        mprotect((void *)(uintptr_t)address, bytes, open == 2 ? PROT_READ | PROT_WRITE : open ? PROT_READ : PROT_NONE);
    }
    uint32_t results = take_u32(&at);
    for (uint32_t k = 0; k < results; k++) {
        uint32_t bytes = take_u32(&at);
        if ((int)k < count && outs[k]) memcpy(outs[k], at, bytes);
        at += bytes;
    }
    uint32_t printed = take_u32(&at);
    if (printed) {
        fwrite(at, 1, printed, stdout);
        fflush(stdout);
    }
    free(reply);
    return status;
}

/* ---- memory of the device that the host may access --------------------------------------------------------------- */

static void fault(int number, siginfo_t *info, void *context) {
    char *address = info->si_addr;
    if (memory && address >= memory && address < memory + memory_size && connection >= 0) {
        int write = 0;
#ifdef __x86_64__
        write = (((ucontext_t *)context)->uc_mcontext.gregs[REG_ERR] & 2) != 0;
#endif
        void *frames[FRAMES + 2];
        int count = backtrace(frames, FRAMES + 2) - 2; /* without this function and the return from the signal */
        buffer message = {0};
        begin(&message, "host access", frames + 2, count > 0 ? count : 0);
        put_word(&message, (word)(uintptr_t)address);
        put_word(&message, (word)write);
        if (exchange(&message, NULL, 0) == SUCCESS) return;
    }
    sigaction(number, &previous_action, NULL); /* the instruction runs again, and ends the program as without us */
}

static void child(void) { disconnect(); } /* CUDA cannot be used after fork, as on a GPU */

static void start(void) {
    const char *path = getenv("WARPSAN_RUN_SOCKET");
    if (!path) {
        fprintf(stderr, "warpsan: this libcudart works in programs that 'warpsan run' starts\n");
        return;
    }
    struct sockaddr_un place = {.sun_family = AF_UNIX};
    snprintf(place.sun_path, sizeof place.sun_path, "%s", path);
    connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connection < 0 || connect(connection, (struct sockaddr *)&place, sizeof place)) {
        disconnect();
        return;
    }
    word hello[2]; /* the address and the size of device memory, with its file */
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {hello, sizeof hello};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    if (recvmsg(connection, &header, MSG_CMSG_CLOEXEC) != sizeof hello || !CMSG_FIRSTHDR(&header)) {
        disconnect();
        return;
    }
    int file;
    memcpy(&file, CMSG_DATA(CMSG_FIRSTHDR(&header)), sizeof file);
    void *wanted = (void *)(uintptr_t)hello[0];
    memory_size = hello[1];
    int flags = MAP_SHARED | MAP_NORESERVE;
    memory = mmap(wanted, memory_size, PROT_NONE, flags | MAP_FIXED_NOREPLACE, file, 0);
    if (memory != wanted) _exit(NO_ROOM); /* something lies there, by chance: warpsan starts the program again */
    alias = mmap(NULL, memory_size, PROT_READ | PROT_WRITE, flags, file, 0);
    close(file);
    if (alias == MAP_FAILED) disconnect();
    void *first[1];
    backtrace(first, 1); /* loads what it needs now, not in a signal */
    struct sigaction action = {.sa_sigaction = fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSEGV, &action, &previous_action);
    pthread_atfork(NULL, NULL, child);
    buffer message = {0};
    begin(&message, "version", NULL, 0);
    put_word(&message, VERSION);
    exchange(&message, NULL, 0);
}

static int failed(int status) {
    if (status != SUCCESS && status != NOT_READY) last_error = status;
    return status;
}

static void open_message(buffer *message, const char *name) {
    void *frames[FRAMES];
    pthread_once(&once, start);
    begin(message, name, frames, backtrace(frames, FRAMES));
}

/* A call with simple arguments, as its format says for each: w a word; o a pointer to a result; i a word that is also
 * a pointer to a result; z a string; a digit d a pointer to 8 * d bytes. */
static int call(const char *name, const char *format, const word *arguments) {
    buffer message = {0};
    void *outs[12];
    int count = 0;
    open_message(&message, name);
    for (int k = 0; format[k]; k++) {
        const void *pointer = (const void *)(uintptr_t)arguments[k];
        switch (format[k]) {
        case 'o':
            put_byte(&message, pointer != NULL);
            outs[count++] = (void *)pointer;
            break;
        case 'i':
            outs[count++] = (void *)pointer; /* fall through */
        case 'w':
            put_word(&message, arguments[k]);
            break;
        case 'z':
            put_bytes(&message, pointer ? pointer : "", pointer ? strlen(pointer) : 0);
            break;
        default:
            put_bytes(&message, pointer, pointer ? 8 * (size_t)(format[k] - '0') : 0);
        }
    }
    return failed(exchange(&message, outs, count));
}

static int unmodelled(const char *name) { return call(name, "", NULL); }

#define P0 void
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
#define A0 0
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
#define CALL(name, format, n)                                                                                          \
    int name(P##n) {                                                                                                   \
        word arguments[] = {A##n};                                                                                     \
        return call(#name, format, arguments);                                                                         \
    }
#define UNMODELLED(name)                                                                                               \
    int name(void) { return unmodelled(#name); }
#include "calls.inc"

/* ---- modules ----------------------------------------------------------------------------------------------------- */

typedef struct { int magic, version; const char *data; void *others; } wrapper;

void **__cudaRegisterFatBinary(wrapper *binary) {
    uint16_t header;
    word size;
    memcpy(&header, binary->data + 6, sizeof header); /* of the binary: magic, version, header, size of the rest */
    memcpy(&size, binary->data + 8, sizeof size);
    buffer message = {0};
    open_message(&message, "__cudaRegisterFatBinary");
    put_word(&message, (word)(uintptr_t)binary);
    put_u32(&message, (uint32_t)binary->version);
    put_bytes(&message, binary->data, header + size);
    failed(exchange(&message, NULL, 0));
    return (void **)binary;
}
void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
void __cudaUnregisterFatBinary(void **handle) { (void)handle; }

/* ---- launches ---------------------------------------------------------------------------------------------------- */

typedef struct { dim3 grid, block; size_t shared; void *stream; } configuration;
static __thread configuration configurations[CONFIGURATIONS];
static __thread int depth;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) {
    if (depth == CONFIGURATIONS) return (unsigned)failed(UNKNOWN);
    configurations[depth++] = (configuration){grid, block, shared, stream};
    return SUCCESS;
}
int __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void **stream) {
    if (!depth) return failed(MISSING_CONFIGURATION);
    configuration top = configurations[--depth];
    *grid = top.grid, *block = top.block, *shared = top.shared, *stream = top.stream;
    return SUCCESS;
}

/* The parameters go over as bytes: their sizes are those of the PTX. */
static int launch(const char *name, const void *function, dim3 grid, dim3 block, void **arguments, size_t shared,
                  void *stream, const void *attributes, size_t attribute_bytes) {
    uint32_t sizes[MOST_PARAMETERS + 1] = {0};
    void *outs[] = {sizes};
    buffer message = {0};
    open_message(&message, "parameter sizes");
    put_word(&message, (word)(uintptr_t)function);
    int status = exchange(&message, outs, 1);
    if (status != SUCCESS) return failed(status);
    message = (buffer){0};
    open_message(&message, name);
    put_word(&message, (word)(uintptr_t)function);
    put(&message, &grid, sizeof grid);
    put(&message, &block, sizeof block);
    put_word(&message, shared);
    put_word(&message, (word)(uintptr_t)stream);
    put_bytes(&message, attributes, attribute_bytes);
    for (uint32_t k = 0; k < sizes[0]; k++) put(&message, arguments[k], sizes[k + 1]);
    return failed(exchange(&message, NULL, 0));
}

typedef struct { dim3 grid, block; size_t shared; void *stream; const char *attributes; unsigned count; } launch_config;
enum { ATTRIBUTE_BYTES = 72 };

#define LAUNCHES(suffix)                                                                                               \
    int cudaLaunchKernel##suffix(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared,         \
                                 void *stream) {                                                                       \
        return launch("cudaLaunchKernel" #suffix, function, grid, block, arguments, shared, stream, NULL, 0);          \
    }                                                                                                                  \
    int __cudaLaunchKernel##suffix(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared,       \
                                   void *stream) {                                                                     \
        return launch("cudaLaunchKernel" #suffix, function, grid, block, arguments, shared, stream, NULL, 0);          \
    }                                                                                                                  \
    int cudaLaunchCooperativeKernel##suffix(const void *function, dim3 grid, dim3 block, void **arguments,             \
                                            size_t shared, void *stream) {                                             \
        return launch("cudaLaunchCooperativeKernel" #suffix, function, grid, block, arguments, shared, stream, NULL,   \
                      0);                                                                                              \
    }                                                                                                                  \
    int cudaLaunchKernelExC##suffix(const launch_config *config, const void *function, void **arguments) {             \
        return launch("cudaLaunchKernelExC" #suffix, function, config->grid, config->block, arguments, config->shared, \
                      config->stream, config->attributes, (size_t)config->count * ATTRIBUTE_BYTES);                    \
    }
LAUNCHES()
LAUNCHES(_ptsz)

/* ---- copies ------------------------------------------------------------------------------------------------------ */

static char *reach(const void *pointer) {
    const char *at = pointer;
    return at >= memory && at < memory + memory_size ? alias + (at - memory) : (char *)at;
}

/* Rows of a copy. warpsan checks it, and copies what lies in device memory on both sides; the rest is copied here. */
static int copy(const char *name, void *target, size_t target_pitch, const void *source, size_t source_pitch,
                size_t width, size_t height, word kind, word stream) {
    uint32_t host = 0;
    void *outs[] = {&host};
    buffer message = {0};
    open_message(&message, name);
    word arguments[] = {(word)(uintptr_t)target, target_pitch, (word)(uintptr_t)source, source_pitch, width, height, kind, stream};
    put(&message, arguments, sizeof arguments);
    int status = exchange(&message, outs, 1);
    if (status == SUCCESS && host)
        for (size_t row = 0; row < height; row++)
            memcpy(reach(target) + row * target_pitch, reach(source) + row * source_pitch, width);
    return failed(status);
}

static int symbol_address(const void *symbol, char **address) {
    word arguments[] = {(word)(uintptr_t)address, (word)(uintptr_t)symbol};
    return call("cudaGetSymbolAddress", "ow", arguments);
}

#define COPIES(sync, async)                                                                                            \
    int cudaMemcpy##sync(void *target, const void *source, size_t bytes, unsigned kind) {                              \
        return copy("cudaMemcpy" #sync, target, bytes, source, bytes, bytes, 1, kind, 0);                              \
    }                                                                                                                  \
    int cudaMemcpyAsync##async(void *target, const void *source, size_t bytes, unsigned kind, void *stream) {          \
        return copy("cudaMemcpyAsync" #async, target, bytes, source, bytes, bytes, 1, kind, (word)(uintptr_t)stream);  \
    }                                                                                                                  \
    int cudaMemcpy2D##sync(void *target, size_t target_pitch, const void *source, size_t pitch, size_t width,          \
                           size_t height, unsigned kind) {                                                             \
        return copy("cudaMemcpy2D" #sync, target, target_pitch, source, pitch, width, height, kind, 0);                \
    }                                                                                                                  \
    int cudaMemcpy2DAsync##async(void *target, size_t target_pitch, const void *source, size_t pitch, size_t width,    \
                                 size_t height, unsigned kind, void *stream) {                                         \
        return copy("cudaMemcpy2DAsync" #async, target, target_pitch, source, pitch, width, height, kind,              \
                    (word)(uintptr_t)stream);                                                                          \
    }                                                                                                                  \
    int cudaMemcpyToSymbol##sync(const void *symbol, const void *source, size_t bytes, size_t offset, unsigned kind) { \
        char *address;                                                                                                 \
        int status = symbol_address(symbol, &address);                                                                 \
        return status ? status                                                                                         \
                      : copy("cudaMemcpyToSymbol" #sync, address + offset, bytes, source, bytes, bytes, 1, kind, 0);   \
    }                                                                                                                  \
    int cudaMemcpyFromSymbol##sync(void *target, const void *symbol, size_t bytes, size_t offset, unsigned kind) {     \
        char *address;                                                                                                 \
        int status = symbol_address(symbol, &address);                                                                 \
        return status ? status                                                                                         \
                      : copy("cudaMemcpyFromSymbol" #sync, target, bytes, address + offset, bytes, bytes, 1, kind, 0); \
    }                                                                                                                  \
    int cudaMemcpyToSymbolAsync##async(const void *symbol, const void *source, size_t bytes, size_t offset,            \
                                       unsigned kind, void *stream) {                                                  \
        char *address;                                                                                                 \
        int status = symbol_address(symbol, &address);                                                                 \
        return status ? status                                                                                         \
                      : copy("cudaMemcpyToSymbolAsync" #async, address + offset, bytes, source, bytes, bytes, 1, kind, \
                             (word)(uintptr_t)stream);                                                                 \
    }                                                                                                                  \
    int cudaMemcpyFromSymbolAsync##async(void *target, const void *symbol, size_t bytes, size_t offset, unsigned kind, \
                                         void *stream) {                                                               \
        char *address;                                                                                                 \
        int status = symbol_address(symbol, &address);                                                                 \
        return status ? status                                                                                         \
                      : copy("cudaMemcpyFromSymbolAsync" #async, target, bytes, address + offset, bytes, bytes, 1,     \
                             kind, (word)(uintptr_t)stream);                                                           \
    }                                                                                                                  \
    int cudaMemcpyPeerAsync##async(void *target, int to, const void *source, int from, size_t bytes, void *stream) {   \
        (void)to, (void)from;                                                                                          \
        return copy("cudaMemcpyPeerAsync" #async, target, bytes, source, bytes, bytes, 1, 3, (word)(uintptr_t)stream); \
    }                                                                                                                  \
    int cudaMemcpy3D##sync(const copy_3d *parameters) {                                                                \
        return copy_planes("cudaMemcpy3D" #sync, parameters, 0);                                                       \
    }                                                                                                                  \
    int cudaMemcpy3DAsync##async(const copy_3d *parameters, void *stream) {                                            \
        return copy_planes("cudaMemcpy3DAsync" #async, parameters, (word)(uintptr_t)stream);                           \
    }

typedef struct { char *pointer; size_t pitch, width, height; } pitched;
typedef struct {
    void *source_array;
    size_t source_at[3];
    pitched source;
    void *target_array;
    size_t target_at[3];
    pitched target;
    size_t extent[3];
    unsigned kind;
} copy_3d;

static int copy_planes(const char *name, const copy_3d *p, word stream) {
    if (p->source_array || p->target_array) return unmodelled("cudaMemcpy3D of a cudaArray");
    for (size_t plane = 0; plane < p->extent[2]; plane++) {
        const size_t *from = p->source_at, *to = p->target_at;
        size_t source = ((from[2] + plane) * p->source.height + from[1]) * p->source.pitch + from[0];
        size_t target = ((to[2] + plane) * p->target.height + to[1]) * p->target.pitch + to[0];
        int status = copy(name, p->target.pointer + target, p->target.pitch, p->source.pointer + source,
                          p->source.pitch, p->extent[0], p->extent[1], p->kind, stream);
        if (status) return status;
    }
    return SUCCESS;
}

COPIES(, )
COPIES(_ptds, _ptsz)

/* ---- host functions ---------------------------------------------------------------------------------------------- */

/* What a stream would call later is called when it is issued, as everything in it runs then. */
int cudaLaunchHostFunc(void *stream, void (*function)(void *), void *data) {
    word arguments[] = {(word)(uintptr_t)stream};
    int status = call("cudaLaunchHostFunc", "w", arguments);
    if (status == SUCCESS) function(data);
    return status;
}
int cudaStreamAddCallback(void *stream, void (*function)(void *, int, void *), void *data, unsigned flags) {
    (void)flags;
    word arguments[] = {(word)(uintptr_t)stream};
    int status = call("cudaLaunchHostFunc", "w", arguments);
    if (status == SUCCESS) function(stream, SUCCESS, data);
    return status;
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */

int cudaGetLastError(void) { int error = last_error; last_error = SUCCESS; return error; }
int cudaPeekAtLastError(void) { return last_error; }

enum { MOST_ERROR = 1000, LONGEST = 160 };
static const char *error_text(const char *name, unsigned error) {
    static char names[2][MOST_ERROR][LONGEST];
    char *text = names[name[12] == 'S'][error < MOST_ERROR ? error : MOST_ERROR - 1]; /* cudaGetErrorString or Name */
    if (!*text) {
        buffer message = {0};
        void *outs[] = {text};
        open_message(&message, name);
        put_word(&message, error);
        if (exchange(&message, outs, 1) != SUCCESS) snprintf(text, LONGEST, "error %u", error);
    }
    return text;
}
const char *cudaGetErrorString(unsigned error) { return error_text("cudaGetErrorString", error); }
const char *cudaGetErrorName(unsigned error) { return error_text("cudaGetErrorName", error); }
int cuGetErrorString(unsigned error, const char **text) { *text = cudaGetErrorString(error); return SUCCESS; }
int cuGetErrorName(unsigned error, const char **text) { *text = cudaGetErrorName(error); return SUCCESS; }

/* ---- the driver's functions -------------------------------------------------------------------------------------- */

static int entry_point(const char *name, void **function, uint32_t *found) {
    Dl_info here;
    *function = NULL;
    void *own = dladdr((void *)start, &here) ? dlopen(here.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    if (own) {
        char versioned[160];
        snprintf(versioned, sizeof versioned, "%s_v2", name);
        *function = dlsym(own, versioned);
        if (!*function) *function = dlsym(own, name);
    }
    if (found) *found = *function ? 0 : 1; /* cudaDriverEntryPointSymbolNotFound */
    return *function ? SUCCESS : unmodelled(name);
}
int cudaGetDriverEntryPoint(const char *name, void **function, word flags, uint32_t *found) {
    (void)flags;
    return entry_point(name, function, found);
}
int cudaGetDriverEntryPoint_ptsz(const char *name, void **function, word flags, uint32_t *found) {
    (void)flags;
    return entry_point(name, function, found);
}
int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, word flags, uint32_t *found) {
    (void)version, (void)flags;
    return entry_point(name, function, found);
}
int cudaGetDriverEntryPointByVersion_ptsz(const char *name, void **function, unsigned version, word flags,
                                          uint32_t *found) {
    (void)version, (void)flags;
    return entry_point(name, function, found);
}
int cuGetProcAddress_v2(const char *name, void **function, int version, word flags, uint32_t *found) {
    (void)version, (void)flags;
    return entry_point(name, function, found);
}
int cuGetProcAddress(const char *name, void **function, int version, word flags, uint32_t *found) {
    (void)version, (void)flags;
    return entry_point(name, function, found);
}

int cuTensorMapEncodeTiled(void *map, unsigned type, unsigned rank, void *address, const word *sizes,
                           const word *strides, const uint32_t *box, const uint32_t *steps, unsigned interleave,
                           unsigned swizzle, unsigned promotion, unsigned fill) {
    (void)promotion;
    if (rank < 1 || rank > 5) return INVALID_VALUE;
    buffer message = {0};
    void *outs[] = {map};
    open_message(&message, "cuTensorMapEncodeTiled");
    word numbers[] = {type, rank, (word)(uintptr_t)address, interleave, swizzle, fill};
    put(&message, numbers, sizeof numbers);
    put(&message, sizes, rank * sizeof *sizes);
    put(&message, strides, (rank - 1) * sizeof *strides);
    put(&message, box, rank * sizeof *box);
    put(&message, steps, rank * sizeof *steps);
    return exchange(&message, outs, 1);
}
