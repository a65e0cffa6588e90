/* Calls of NVML that llmgw does not make and other monitors do; a part of fake_nvml.c.
 *
 * With them nvitop and gpustat run on the pretended NVML, so that all can be measured on the same
 * machine. What is not listed is not supported, as with every other call. */

NUMBER(nvmlDeviceGetDisplayActive, u32)
NUMBER(nvmlDeviceGetDisplayMode, u32)
NUMBER(nvmlDeviceGetPerformanceState, u32)
NUMBER(nvmlDeviceGetPersistenceMode, u32)
NUMBER_OF(nvmlDeviceGetMaxClockInfo, u32)
NUMBER_OF(nvmlDeviceGetPcieThroughput, u32)

int nvmlDeviceGetIndex(handle h, u32 *to) { return *to = (u32)part(h, 16), OK; }

static int pair(handle h, const char *call, u32 *first, u32 *second) {
    u64 v[2];
    int code = numbers(h, call, NONE, NONE, v, 2);
    if (!code) *first = (u32)v[0], *second = (u32)v[1];
    return code;
}
#define PAIR(call) int call(handle h, u32 *first, u32 *second) { return pair(h, #call, first, second); }
PAIR(nvmlDeviceGetCudaComputeCapability)
PAIR(nvmlDeviceGetDecoderUtilization)
PAIR(nvmlDeviceGetEncoderUtilization)
PAIR(nvmlDeviceGetDriverModel)
PAIR(nvmlDeviceGetDriverModel_v2)
