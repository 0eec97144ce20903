#ifndef C_API_H
#define C_API_H
#include <stddef.h>

#if defined(_WIN32)
#define LAB_EXPORT __declspec(dllexport)
#else
#define LAB_EXPORT __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif
LAB_EXPORT int lab_smooth(const float *x, float *y, int n, void *stream);
const char *lab_last_error(void);
#ifdef __cplusplus
}
#endif
#endif
