/* The part of CANN that torch_npu needs to run without a device: device memory is host memory, launches compute nothing
   and are counted, asynchronous copies wait in the queue of their stream until something waits for it or is launched
   behind them. What is captured goes into a graph, whose kernels are functions of the test's Python (see graphs.py).
   Whatever is not written here succeeds and does nothing (see names.py for where the names come from). */
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, IN_CAPTURE = 107027, STUCK = 107020, NO_MEMORY = 207001, FAILED = 500002, NO_FENCE = 507011, BROKEN = 507015 };

/* ---- counters: calls by name, read by tests/npu/stub/counts.py ---- */

enum counter {
#define COUNTER(name) COUNT_##name,
#include "counters.inc"
#undef COUNTER
  COUNTERS
};
static const char *counter_names[] = {
#define COUNTER(name) #name,
#include "counters.inc"
#undef COUNTER
};
static long counters[COUNTERS];

int stub_counters(void) { return COUNTERS; }
const char *stub_counter_name(int i) { return counter_names[i]; }
long stub_counter(int i) { return counters[i]; }
long stub_launches; /* of all kernels */

#include "queues.c" /* streams and events */

/* ---- copies ---- */

static int counted(int kind, int blocking) { /* kind: host-host, host-device, device-host, device-device, as ACL has it */
  static const enum counter names[2][4] = {
      {COUNT_copy_async_host_to_host, COUNT_copy_async_host_to_device, COUNT_copy_async_device_to_host,
       COUNT_copy_async_device_to_device},
      {COUNT_copy_blocking_host_to_host, COUNT_copy_blocking_host_to_device, COUNT_copy_blocking_device_to_host,
       COUNT_copy_blocking_device_to_device}};
  if (kind < 0 || kind > 3) return FAILED;
  counters[names[blocking][kind]]++;
  return OK;
}
int aclrtMemcpy(void *to, size_t room, const void *from, size_t n, int kind) { /* waits for no stream */
  if (counted(kind, 1)) return FAILED;
  if (capturing) return IN_CAPTURE;
  memcpy(to, from, n);
  return OK;
}
int aclrtMemcpyAsync(void *to, size_t room, const void *from, size_t n, int kind, void *stream) {
  if (counted(kind, 0)) return FAILED;
  queue(stream, (struct task){.kind = COPY, .to = to, .from = from, .n = n});
  return OK;
}
int aclrtMemset(void *to, size_t room, int32_t value, size_t n) { memset(to, value, n); return OK; }
int aclrtMemsetAsync(void *to, size_t room, int32_t value, size_t n, void *stream) {
  queue(stream, (struct task){.kind = SET, .to = to, .value = value, .n = n});
  return OK;
}

/* ---- launches ---- */

static int launch(enum counter name, void *stream) { /* what reads or writes behind it finds the stream's copies done */
  counters[name]++;
  stub_launches++;
  launched_on = of(stream);
  if (launched_on != capturing && launched_on != updating) launched_on->failed = stub_run(stream);
  return OK; /* what failed is told to whoever waits */
}
#define LAUNCH(name) \
  int name(void *workspace, uint64_t size, void *executor, void *stream) { return launch(COUNT_##name, stream); }
#include "launches.inc"
#define OBJECT(name) void *name(void) { static char object[64]; return object; }
#include "objects.inc"
int aclopCompileAndExecute(const char *name) {
  counters[COUNT_aclop]++;
  fprintf(stderr, "stub of CANN: %s was launched as an aclop, which compiles for minutes on a device\n", name);
  return FAILED;
}
int aclopCompileAndExecuteV2(const char *name) { return aclopCompileAndExecute(name); }

#include "graphs.c" /* their capture, replay and update */

/* ---- device, memory ---- */

static int32_t device;
static size_t used;

static size_t total_bytes(void) { /* asked each time, so that a test can make the card small */
  const char *mib = getenv("NPU_STUB_MIB");
  return mib ? (size_t)atol(mib) << 20 : (size_t)64 << 30;
}

int aclrtGetDeviceCount(uint32_t *count) { *count = 1; return OK; }
int aclrtSetDevice(int32_t number) { device = number; return OK; }
int aclrtGetDevice(int32_t *number) { *number = device; return OK; }
int aclrtGetCurrentContext(void **context) { static char one; *context = &one; return OK; }
int aclrtDeviceCanAccessPeer(int32_t *can, int32_t from, int32_t to) { *can = 1; return OK; }
const char *aclrtGetSocName(void) {
  const char *name = getenv("NPU_STUB_SOC");
  return name ? name : "Ascend910B3";
}
int aclsysGetCANNVersion(int package, void *version) { strcpy(version, "9.1.0"); return OK; }
int aclsysGetVersionStr(char *package, char *version) { strcpy(version, "9.1.0"); return OK; }
const char *aclGetRecentErrMsg(void) { return NULL; }
size_t aclGetCompileoptSize(int option) { return 2; }
int aclGetCompileopt(int option, char *value, size_t size) { strncpy(value, "0", size); return OK; }

static int take(void **memory, size_t size, size_t alignment) {
  return posix_memalign(memory, alignment, size ? size : 1) ? NO_MEMORY : OK;
}
int aclrtMalloc(void **memory, size_t size, int policy) {
  if (used + size > total_bytes() || take(memory, size, 512)) return NO_MEMORY;
  __atomic_add_fetch(&used, malloc_usable_size(*memory), __ATOMIC_RELAXED);
  return OK;
}
int aclrtMallocAlign32(void **memory, size_t size, int policy) { return aclrtMalloc(memory, size, policy); }
int aclrtFree(void *memory) {
  __atomic_sub_fetch(&used, malloc_usable_size(memory), __ATOMIC_RELAXED);
  free(memory);
  return OK;
}
int aclrtMallocHost(void **memory, size_t size) { return take(memory, size, 4096); }
int aclrtMallocHostWithCfg(void **memory, size_t size, void *config) { return take(memory, size, 4096); }
int aclrtFreeHost(void *memory) { free(memory); return OK; }
int aclrtGetMemInfo(int attribute, size_t *free_bytes, size_t *total) {
  *total = total_bytes();
  *free_bytes = *total > used ? *total - used : 0;
  return OK;
}

/* ---- HCCL: a group of one rank, whose collectives have nothing to do in place ---- */

const char *HcclGetErrorString(int code) { return "an error of the stub"; }
int HcclCommInitRootInfo(uint32_t ranks, const void *root, uint32_t rank, void **group) {
  static char one[64];
  *group = one;
  return ranks == 1 ? OK : FAILED;
}
int HcclCommInitRootInfoConfig(uint32_t ranks, const void *root, uint32_t rank, const void *config, void **group) {
  return HcclCommInitRootInfo(ranks, root, rank, group);
}
int HcclGetCommName(void *group, char *name) { strcpy(name, "stub"); return OK; }
int HcclGetCommAsyncError(void *group, int *error) { *error = OK; return OK; }

/* ---- everything else ---- */

#define ZERO(name) long name(void) { return 0; }
#include "zeros.inc"
