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
#include <strings.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
  OK = 0, UNJOINED = 107025, IN_CAPTURE = 107027, STUCK = 107020, NO_MEMORY = 207001, FAILED = 500002, NO_FENCE = 507011, BROKEN = 507015,
  REFUSED = 561002
};

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

#include "faults.c" /* what a test wants to fail */
#include "queues.c" /* streams and events */

#include "memory.c" /* that which copies know: pinned on the host, mapped on the device */

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
int aclrtMemcpyAsyncWithCondition(void *to, size_t room, const void *from, size_t n, int kind, void *stream) {
  const void *host = kind == 1 ? from : kind == 2 ? to : NULL;
  if (!host || pinned(host)) return aclrtMemcpyAsync(to, room, from, n, kind, stream);
  int failed = stub_run(stream);
  return failed ? failed : aclrtMemcpy(to, room, from, n, kind);
}
int aclrtMemset(void *to, size_t room, int32_t value, size_t n) { memset(to, value, n); return OK; }
int aclrtMemsetAsync(void *to, size_t room, int32_t value, size_t n, void *stream) {
  queue(stream, (struct task){.kind = SET, .to = to, .value = value, .n = n});
  return OK;
}

/* ---- launches ---- */

static char loaded[COUNTERS]; /* kernels whose program is on the device */
void stub_unload(void) { memset(loaded, 0, sizeof loaded); }

static int launch(enum counter name, void *stream) { /* what reads or writes behind it finds the stream's copies done */
  int wanted = fault(counter_names[name]);
  if (wanted) return wanted;
  if (in_capture(of(stream)) && !loaded[name]) return IN_CAPTURE; /* loading it would block */
  loaded[name] = 1;
  counters[name]++;
  stub_launches++;
  launched_on = of(stream);
  if (!in_capture(launched_on) && launched_on != updating) go_on(launched_on);
  return OK; /* what failed is told to whoever waits */
}
#define LAUNCH(name) \
  int name(void *workspace, uint64_t size, void *executor, void *stream) { return launch(COUNT_##name, stream); }
#include "launches.inc"
#include "attention.c" /* what its host-side tiling refuses */
#define SIZE(name) \
  int name##GetWorkspaceSize(void) { return fault(#name "GetWorkspaceSize"); }
#include "sizes.inc"
#define OBJECT(name) void *name(void) { static char object[64]; return object; }
#include "objects.inc"
int aclopCompileAndExecute(const char *name) {
  counters[COUNT_aclop]++;
  fprintf(stderr, "stub of CANN: %s was launched as an aclop, which compiles for minutes on a device\n", name);
  return FAILED;
}
int aclopCompileAndExecuteV2(const char *name) { return aclopCompileAndExecute(name); }

#include "graphs.c" /* their capture, replay and update */
#include "hccl.c"   /* groups of processes, their sums and gathers */

/* ---- device ---- */

static int32_t device;

int aclrtGetDeviceCount(uint32_t *count) { /* cards that this process sees */
  const char *cards = getenv("NPU_STUB_CARDS");
  *count = cards ? atol(cards) : 1;
  return OK;
}
int aclrtSetDevice(int32_t number) { device = number; return OK; }
int aclrtGetDevice(int32_t *number) { *number = device; return OK; }
int aclrtGetCurrentContext(void **context) { static char one; *context = &one; return OK; }
int aclrtDeviceCanAccessPeer(int32_t *can, int32_t from, int32_t to) { *can = 1; return OK; }
const char *aclrtGetSocName(void) {
  const char *name = getenv("NPU_STUB_SOC");
  return name ? name : "Ascend910B3";
}
enum { DRIVER = 7 }; /* of aclCANNPackageName */
static const char *version_of(int driver) { /* what is installed together; a test may have another driver */
  const char *other = getenv("NPU_STUB_DRIVER");
  return !driver ? "9.1.0" : other ? other : "25.5.1";
}
int aclsysGetCANNVersion(int package, char *version) { strcpy(version, version_of(package == DRIVER)); return OK; }
int aclsysGetVersionStr(char *package, char *version) {
  strcpy(version, version_of(!strcasecmp(package, "driver")));
  return OK;
}
const char *aclGetRecentErrMsg(void) { return NULL; }
size_t aclGetCompileoptSize(int option) { return 2; }
int aclGetCompileopt(int option, char *value, size_t size) { strncpy(value, "0", size); return OK; }

/* ---- everything else ---- */

#define ZERO(name) long name(void) { return 0; }
#include "zeros.inc"
