/* A pretended libnvidia-ml.so.1: the ABI of NVML over a list of answers.
 *
 * For tests; `fake_nvml.py` compiles it and writes the list, which lies beside the library under its
 * name and `.answers`. A line is a call on a subject and its answer, sorted by bytes for searching:
 *
 *     0 nvmlDeviceGetName<TAB>=NVIDIA A30        a text, or numbers separated by blanks
 *     0 nvmlDeviceGetFanSpeed<TAB>!3             an error code
 *     1.4 nvmlDeviceGetUUID<TAB>=MIG-...         instance 4 of card 1; 1:7 is its GPU instance 7
 *     - nvmlInit<TAB>*                           a call that never returns; ^ is one that crashes,
 *                                                ~800 =1 one that takes 800 ms whatever happens
 *
 * What is not listed is not supported. The list may be written anew at any time; but as in the true
 * library, which MIG instances there are is what it was when NVML was initialised.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef const void *handle;
typedef unsigned int u32;
typedef unsigned long long u64;

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7,
       TIMED_OUT = 10, VERSION_MISMATCH = 25, NONE = -1 };

struct list { char *text, **lines; size_t count; ino_t file; };
static struct list now, at_init;
static int sessions;

static int by_key(const void *key, const void *line) {
    size_t n = strlen(key);
    const char *text = *(char *const *)line;
    int order = strncmp(key, text, n);
    return order ? order : '\t' - text[n];
}

/* Read the list again if it is another file than before. */
static void load(struct list *list) {
    static char path[4096];
    struct stat about;
    Dl_info self;
    if (!*path && dladdr(&sessions, &self))
        snprintf(path, sizeof path, "%s.answers", self.dli_fname);
    if (stat(path, &about) || about.st_ino == list->file) return;
    FILE *file = fopen(path, "rb");
    if (!file) return;
    fstat(fileno(file), &about);
    free(list->text), free(list->lines);
    list->file = about.st_ino, list->count = 0;
    list->text = calloc(1, about.st_size + 1);
    list->lines = calloc(about.st_size + 1, sizeof *list->lines);
    if (fread(list->text, 1, about.st_size, file)) {
        for (char *at = strtok(list->text, "\n"); at; at = strtok(NULL, "\n"))
            list->lines[list->count++] = at;
    }
    fclose(file);
}

/* Handles are numbers: the card, its instance and its GPU instance, each plus one. */
static handle as_handle(int card, int instance, int gpu_instance) {
    return (handle)(uintptr_t)((card + 1) << 16 | (instance + 1) << 8 | (gpu_instance + 1));
}

static int part(handle h, int shift) { return (int)((uintptr_t)h >> shift & 0xff) - 1; }

/* Wait for so many milliseconds, which no signal makes shorter; return what follows them. */
static const char *later(const char *text) {
    char *end;
    long milliseconds = strtol(text, &end, 10);
    struct timespec left = { milliseconds / 1000, milliseconds % 1000 * 1000000 };
    while (nanosleep(&left, &left)) {}
    return end + (*end == ' ');
}

static int answer(handle h, const char *call, long first, long second, const char **text) {
    char key[160], subject[40] = "-";
    int card = part(h, 16), instance = part(h, 8), gpu_instance = part(h, 0);
    if (!sessions) return UNINITIALIZED;
    if (instance >= 0) snprintf(subject, sizeof subject, "%d.%d", card, instance);
    else if (gpu_instance >= 0) snprintf(subject, sizeof subject, "%d:%d", card, gpu_instance);
    else if (card >= 0) snprintf(subject, sizeof subject, "%d", card);
    if (first < 0) snprintf(key, sizeof key, "%s %s", subject, call);
    else if (second < 0) snprintf(key, sizeof key, "%s %s(%ld)", subject, call, first);
    else snprintf(key, sizeof key, "%s %s(%ld,%ld)", subject, call, first, second);
    int cached = !strcmp(call, "nvmlDeviceGetMigDeviceHandleByIndex");
    struct list *list = cached ? &at_init : &now;
    if (!cached) load(list);
    char **line = list->count
        ? bsearch(key, list->lines, list->count, sizeof *list->lines, by_key) : NULL;
    if (!line) return NOT_SUPPORTED;
    const char *value = strchr(*line, '\t') + 1;
    if (*value == '*') for (;;) pause();
    if (*value == '^') raise(SIGSEGV);
    if (*value == '~') value = later(value + 1);
    if (*value == '!') return atoi(value + 1);
    *text = value + 1;
    return OK;
}

static int numbers(handle h, const char *call, long first, long second, u64 *found, int most) {
    const char *text;
    int code = answer(h, call, first, second, &text), n = 0;
    if (code) return code;
    memset(found, 0, most * sizeof *found);
    for (char *end; n < most; n++, text = end) {
        found[n] = strtoull(text, &end, 10);
        if (end == text) break;
    }
    return OK;
}

static int copied(handle h, const char *call, char *to, u32 size) {
    const char *text;
    int code = answer(h, call, NONE, NONE, &text);
    if (!code) snprintf(to, size, "%s", text);
    return code;
}

#define TEXT(call) int call(handle h, char *to, u32 n) { return copied(h, #call, to, n); }
#define NUMBER(call, type) \
    int call(handle h, type *to) { \
        u64 v; int code = numbers(h, #call, NONE, NONE, &v, 1); \
        if (!code) *to = (type)v; \
        return code; }
#define NUMBER_OF(call, type) \
    int call(handle h, u32 of, type *to) { \
        u64 v; int code = numbers(h, #call, of, NONE, &v, 1); \
        if (!code) *to = (type)v; \
        return code; }

/* The library */

int nvmlInitWithFlags(u32 flags) {
    (void)flags;
    if (!sessions) load(&now), load(&at_init);
    sessions++;
    const char *text;
    int code = answer(NULL, "nvmlInit", NONE, NONE, &text);
    if (code == NOT_SUPPORTED) return OK;
    if (code) sessions--;
    return code;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
/* Who shut it down is noted in a file beside the library, under its name and `.ended`. */
int nvmlShutdown(void) {
    char path[4096];
    Dl_info self;
    if (!sessions) return UNINITIALIZED;
    sessions--;
    if (!dladdr(&sessions, &self)) return OK;
    snprintf(path, sizeof path, "%s.ended", self.dli_fname);
    FILE *file = fopen(path, "a");
    if (file) fprintf(file, "%d\n", getpid()), fclose(file);
    return OK;
}

const char *nvmlErrorString(int code) {
    static char text[80];
    const char *said;
    sessions++;
    int unknown = answer(NULL, "nvmlErrorString", code, NONE, &said);
    sessions--;
    snprintf(text, sizeof text, "%s", unknown ? "Unknown Error" : said);
    return text;
}

int nvmlSystemGetDriverVersion(char *to, u32 n) {
    return copied(NULL, "nvmlSystemGetDriverVersion", to, n);
}
int nvmlSystemGetNVMLVersion(char *to, u32 n) {
    return copied(NULL, "nvmlSystemGetNVMLVersion", to, n);
}
static int cuda(int *to) {
    u64 v;
    int code = numbers(NULL, "nvmlSystemGetCudaDriverVersion", NONE, NONE, &v, 1);
    if (!code) *to = (int)v;
    return code;
}
int nvmlSystemGetCudaDriverVersion(int *to) { return cuda(to); }
int nvmlSystemGetCudaDriverVersion_v2(int *to) { return cuda(to); }
int nvmlDeviceGetCount_v2(u32 *to) {
    u64 v;
    int code = numbers(NULL, "nvmlDeviceGetCount", NONE, NONE, &v, 1);
    if (!code) *to = (u32)v;
    return code;
}
int nvmlDeviceGetHandleByIndex_v2(u32 index, handle *to) {
    const char *text;
    int code = answer(as_handle(index, -1, -1), "nvmlDeviceGetHandleByIndex", NONE, NONE, &text);
    if (!code) *to = as_handle(index, -1, -1);
    return code == NOT_SUPPORTED ? INVALID : code;
}

/* A card or an instance */

TEXT(nvmlDeviceGetName)
TEXT(nvmlDeviceGetUUID)
NUMBER(nvmlDeviceGetArchitecture, u32)
NUMBER(nvmlDeviceGetComputeMode, u32)
NUMBER(nvmlDeviceGetFanSpeed, u32)
NUMBER(nvmlDeviceGetPowerUsage, u32)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, u32)
NUMBER(nvmlDeviceGetPowerManagementLimit, u32)
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, u64)
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, u64)
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, u32)
NUMBER(nvmlDeviceGetPcieReplayCounter, u32)
NUMBER(nvmlDeviceGetMaxMigDeviceCount, u32)
NUMBER(nvmlDeviceGetGpuInstanceId, u32)
NUMBER(nvmlDeviceGetComputeInstanceId, u32)
NUMBER_OF(nvmlDeviceGetClockInfo, u32)
NUMBER_OF(nvmlDeviceGetTemperature, u32)
NUMBER_OF(nvmlDeviceGetTemperatureThreshold, u32)
NUMBER_OF(nvmlDeviceGetNvLinkState, u32)
NUMBER_OF(nvmlDeviceGetNvLinkRemoteDeviceType, u32)

int nvmlDeviceIsMigDeviceHandle(handle h, u32 *to) { return *to = part(h, 8) >= 0, OK; }

struct temperature_v { u32 version, sensor; int celsius; };
int nvmlDeviceGetTemperatureV(handle h, struct temperature_v *to) {
    if (to->version != 0x100000c) return VERSION_MISMATCH;
    u64 v;
    int code = numbers(h, "nvmlDeviceGetTemperature", to->sensor, NONE, &v, 1);
    if (!code) to->celsius = (int)v;
    return code;
}
struct margin_temperature { u32 version; int celsius; };
int nvmlDeviceGetMarginTemperature(handle h, struct margin_temperature *to) {
    if (to->version != 0x1000008) return VERSION_MISMATCH;
    u64 v;
    int code = numbers(h, "nvmlDeviceGetMarginTemperature", NONE, NONE, &v, 1);
    if (!code) to->celsius = (int)v;
    return code;
}
struct addressing_mode { u32 version, mode; };
int nvmlDeviceGetAddressingMode(handle h, struct addressing_mode *to) {
    u64 v;
    int code = numbers(h, "nvmlDeviceGetAddressingMode", NONE, NONE, &v, 1);
    if (!code) to->mode = (u32)v;
    return code;
}

struct pci { char legacy[16]; u32 domain, bus, device, id, subsystem; char address[32]; };
static int pci(handle h, const char *call, long link, struct pci *to) {
    const char *text;
    int code = answer(h, call, link, NONE, &text);
    if (code) return code;
    memset(to, 0, sizeof *to);
    snprintf(to->address, sizeof to->address, "%s", text);
    snprintf(to->legacy, sizeof to->legacy, "%.15s", strlen(text) > 4 ? text + 4 : text);
    return OK;
}
int nvmlDeviceGetPciInfo_v3(handle h, struct pci *to) {
    return pci(h, "nvmlDeviceGetPciInfo", NONE, to);
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(handle h, u32 link, struct pci *to) {
    return pci(h, "nvmlDeviceGetNvLinkRemotePciInfo", link, to);
}

/* Memory is listed as total, reserved, used, free. */
struct memory_info { u64 total, free, used; };
int nvmlDeviceGetMemoryInfo(handle h, struct memory_info *to) {
    u64 v[4];
    int code = numbers(h, "nvmlDeviceGetMemoryInfo", NONE, NONE, v, 4);
    if (!code) to->total = v[0], to->free = v[3], to->used = v[1] + v[2];
    return code;
}
struct memory_info_v2 { u32 version; u64 total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo_v2(handle h, struct memory_info_v2 *to) {
    if (to->version != 0x2000028) return VERSION_MISMATCH;
    u64 v[4];
    int code = numbers(h, "nvmlDeviceGetMemoryInfo", NONE, NONE, v, 4);
    if (!code) to->total = v[0], to->reserved = v[1], to->used = v[2], to->free = v[3];
    return code;
}

int nvmlDeviceGetUtilizationRates(handle h, u32 *gpu_and_memory) {
    u64 v[2];
    int code = numbers(h, "nvmlDeviceGetUtilizationRates", NONE, NONE, v, 2);
    if (!code) gpu_and_memory[0] = (u32)v[0], gpu_and_memory[1] = (u32)v[1];
    return code;
}
int nvmlDeviceGetMigMode(handle h, u32 *current, u32 *pending) {
    u64 v[2];
    int code = numbers(h, "nvmlDeviceGetMigMode", NONE, NONE, v, 2);
    if (!code) *current = (u32)v[0], *pending = (u32)v[1];
    return code;
}
int nvmlDeviceGetTotalEccErrors(handle h, u32 kind, u32 counter, u64 *to) {
    return numbers(h, "nvmlDeviceGetTotalEccErrors", kind, counter, to, 1);
}
int nvmlDeviceGetRemappedRows(handle h, u32 *corrected, u32 *uncorrected, u32 *pending, u32 *failed) {
    u64 v[4];
    int code = numbers(h, "nvmlDeviceGetRemappedRows", NONE, NONE, v, 4);
    if (!code) *corrected = v[0], *uncorrected = v[1], *pending = v[2], *failed = v[3];
    return code;
}
int nvmlDeviceGetRetiredPages(handle h, u32 cause, u32 *n, u64 *pages) {
    u64 v;
    int code = numbers(h, "nvmlDeviceGetRetiredPages", cause, NONE, &v, 1);
    if (code) return code;
    if (v && (!pages || *n < v)) return *n = (u32)v, TOO_SMALL;
    for (u32 i = 0; i < v; i++) pages[i] = 0x1000 * (i + 1);
    return *n = (u32)v, OK;
}
int nvmlDeviceGetMemoryAffinity(handle h, u32 size, unsigned long *to, u32 scope) {
    u64 v;
    (void)scope;
    int code = numbers(h, "nvmlDeviceGetMemoryAffinity", NONE, NONE, &v, 1);
    if (code) return code;
    memset(to, 0, size * sizeof *to);
    if (v / 64 < size) to[v / 64] = 1ul << v % 64;
    return OK;
}

/* Processors are listed as the words of a mask. */
int nvmlDeviceGetCpuAffinity(handle h, u32 size, unsigned long *to) {
    u64 v[64];
    int code = numbers(h, "nvmlDeviceGetCpuAffinity", NONE, NONE, v, 64);
    for (u32 i = 0; !code && i < size; i++) to[i] = i < 64 ? v[i] : 0;
    return code;
}

/* Processes are listed as pid, memory, GPU instance, compute instance. The drivers 535.43 to 535.98
 * filled a structure of 32 bytes under the name of the one with 24. */
static int processes(handle h, const char *call, u32 *n, char *to) {
    u64 v[4 * 256], wide;
    const char *text;
    int code = answer(h, call, NONE, NONE, &text);
    if (code) return code;
    u32 found = 0;
    for (const char *at = text; *at; at++) found += *at == ' ';
    found = *text ? (found + 1) / 4 : 0;
    if (found && (!to || *n < found)) return *n = found, TOO_SMALL;
    numbers(h, call, NONE, NONE, v, 4 * 256);
    size_t stride = numbers(NULL, "wide", NONE, NONE, &wide, 1) == OK ? 32 : 24;
    for (u32 i = 0; i < found && i < 256; i++) {
        char *one = to + i * stride;
        memset(one, 0, stride);
        *(u32 *)one = (u32)v[4 * i];
        *(u64 *)(one + 8) = v[4 * i + 1];
        *(u32 *)(one + 16) = (u32)v[4 * i + 2];
        *(u32 *)(one + 20) = (u32)v[4 * i + 3];
    }
    return *n = found, OK;
}
#define PROCESSES(kind) \
    int nvmlDeviceGet##kind##RunningProcesses_v2(handle h, u32 *n, char *to) { \
        return processes(h, "nvmlDeviceGet" #kind "RunningProcesses", n, to); } \
    int nvmlDeviceGet##kind##RunningProcesses_v3(handle h, u32 *n, char *to) { \
        return processes(h, "nvmlDeviceGet" #kind "RunningProcesses", n, to); }
PROCESSES(Compute)
PROCESSES(Graphics)
PROCESSES(MPSCompute)

/* Field values: each has a code and a type of its own. Listed as type and value. They are of now,
 * or of the microsecond that is listed as the card's `time of values`. */
static u64 now_us(void) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    return at.tv_sec * 1000000ull + at.tv_nsec / 1000;
}

struct field { u32 id, scope; int64_t at, took; u32 type; int code; union { double d; u64 v; } value; };
static double real(handle h, const char *call, long first, long second) {
    const char *text = "";
    answer(h, call, first, second, &text);
    const char *blank = strchr(text, ' ');
    return blank ? strtod(blank, NULL) : 0;
}
int nvmlDeviceGetFieldValues(handle h, int n, struct field *to) {
    const char *text;
    int whole = answer(h, "nvmlDeviceGetFieldValues", NONE, NONE, &text);
    if (whole && whole != NOT_SUPPORTED) return whole;
    u64 at;
    int fixed = numbers(h, "time of values", NONE, NONE, &at, 1);
    for (int i = 0; i < n; i++) {
        u64 v[2];
        to[i].code = numbers(h, "nvmlDeviceGetFieldValues", to[i].id, to[i].scope, v, 2);
        if (to[i].code) continue;
        to[i].at = fixed == OK ? (int64_t)at : (int64_t)now_us();
        to[i].type = (u32)v[0];
        if (v[0] == 0) to[i].value.d = real(h, "nvmlDeviceGetFieldValues", to[i].id, to[i].scope);
        else to[i].value.v = v[0] == 1 ? v[1] | 0xdeadull << 32 : v[1];
    }
    return OK;
}

/* The fabric is listed as cluster UUID in hexadecimal, clique, state, status. */
static int fabric(handle h, unsigned char *cluster, u32 *clique, u32 *state, u32 *status) {
    const char *text;
    char digits[33] = "";
    int code = answer(h, "nvmlDeviceGetGpuFabricInfo", NONE, NONE, &text);
    if (code) return code;
    sscanf(text, "%32s %u %u %u", digits, clique, state, status);
    for (int i = 0; i < 16; i++) sscanf(digits + 2 * i, "%2hhx", cluster + i);
    return OK;
}
struct gpu_fabric_info { unsigned char cluster[16]; u32 status, clique, state; };
int nvmlDeviceGetGpuFabricInfo(handle h, struct gpu_fabric_info *to) {
    return fabric(h, to->cluster, &to->clique, &to->state, &to->status);
}
struct gpu_fabric_info_v { u32 version; unsigned char cluster[16]; u32 status, clique, state, health; };
int nvmlDeviceGetGpuFabricInfoV(handle h, struct gpu_fabric_info_v *to) {
    u64 newest = 2;
    numbers(NULL, "fabricVersion", NONE, NONE, &newest, 1);
    if (to->version >> 24 > newest) return VERSION_MISMATCH;
    return fabric(h, to->cluster, &to->clique, &to->state, &to->status);
}

int nvmlDeviceGetP2PStatus(handle h, handle other, u32 index, u32 *to) {
    u64 v;
    int code = numbers(h, "nvmlDeviceGetP2PStatus", part(other, 16), index, &v, 1);
    if (!code) *to = (u32)v;
    return code;
}

/* MIG. Attributes are listed as multiprocessors, slices of the GPU instance, own slices. */
int nvmlDeviceGetMigDeviceHandleByIndex(handle h, u32 index, handle *to) {
    const char *text;
    int code = answer(h, "nvmlDeviceGetMigDeviceHandleByIndex", index, NONE, &text);
    if (!code) *to = as_handle(part(h, 16), index, -1);
    return code == NOT_SUPPORTED ? NOT_FOUND : code;
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle h, handle *to) {
    if (part(h, 8) < 0) return INVALID;
    return *to = as_handle(part(h, 16), -1, -1), OK;
}
struct attributes_v2 { u32 sm, copy, decoder, encoder, jpeg, ofa, slices, own; u64 memory_mib; };
int nvmlDeviceGetAttributes_v2(handle h, struct attributes_v2 *to) {
    u64 v[4];
    int code = numbers(h, "nvmlDeviceGetAttributes", NONE, NONE, v, 4);
    if (code) return code;
    memset(to, 0, sizeof *to);
    to->sm = (u32)v[0], to->slices = (u32)v[1], to->own = (u32)v[2], to->memory_mib = v[3];
    return OK;
}
struct profile { u32 id, p2p, slices, instances, sm, copy, decoder, encoder, jpeg, ofa; u64 memory_mib; };
int nvmlDeviceGetGpuInstanceProfileInfo(handle h, u32 profile, struct profile *to) {
    u64 v[4];
    int code = numbers(h, "nvmlDeviceGetGpuInstanceProfileInfo", profile, NONE, v, 4);
    if (code) return code;
    memset(to, 0, sizeof *to);
    to->id = (u32)v[0], to->instances = (u32)v[1], to->slices = (u32)v[2], to->memory_mib = v[3];
    return OK;
}
int nvmlDeviceGetGpuInstances(handle h, u32 profile, handle *to, u32 *n) {
    const char *text;
    int code = answer(h, "nvmlDeviceGetGpuInstances", profile, NONE, &text);
    if (code) return code;
    char *end;
    for (*n = 0;; text = end, ++*n) {
        long id = strtol(text, &end, 10);
        if (end == text) return OK;
        to[*n] = as_handle(part(h, 16), -1, (int)id);
    }
}
struct gpu_instance_info { handle card; u32 id, profile, start, size; };
int nvmlGpuInstanceGetInfo(handle h, struct gpu_instance_info *to) {
    memset(to, 0, sizeof *to);
    to->card = as_handle(part(h, 16), -1, -1), to->id = (u32)part(h, 0);
    return OK;
}

#include "fake_nvml_events.c"
#include "fake_nvml_others.c"

/* GPM: a sample keeps how busy the instance was, and the later of two is what they tell. */
struct sample { handle card; u32 instance; u64 number; double busy; };
struct gpm_support { u32 version, supported; };
struct metric { u32 id; int code; double value; const char *words[3]; };
struct metrics { u32 version, count; struct sample *before, *after; struct metric metrics[]; };
int nvmlGpmQueryDeviceSupport(handle h, struct gpm_support *to) {
    u64 v;
    if (to->version != 1) return VERSION_MISMATCH;
    int code = numbers(h, "nvmlGpmQueryDeviceSupport", NONE, NONE, &v, 1);
    if (!code) to->supported = (u32)v;
    return code;
}
int nvmlGpmSampleAlloc(struct sample **to) { return *to = calloc(1, sizeof **to), OK; }
int nvmlGpmSampleFree(struct sample *sample) { return free(sample), OK; }
int nvmlGpmMigSampleGet(handle h, u32 instance, struct sample *to) {
    static u64 taken;
    const char *text;
    int code = answer(as_handle(part(h, 16), -1, (int)instance), "nvmlGpmMigSampleGet", NONE, NONE, &text);
    if (!code) *to = (struct sample){h, instance, ++taken, strtod(text, NULL)};
    return code;
}
int nvmlGpmMetricsGet(struct metrics *to) {
    struct sample *before = to->before, *after = to->after;
    if (to->version != 1) return VERSION_MISMATCH;
    if (!before || !after || !before->number || before->number >= after->number) return INVALID;
    if (before->card != after->card || before->instance != after->instance) return INVALID;
    for (u32 i = 0; i < to->count; i++) {
        to->metrics[i].code = to->metrics[i].id == 2 ? OK : NOT_SUPPORTED;
        to->metrics[i].value = after->busy;
    }
    return OK;
}
