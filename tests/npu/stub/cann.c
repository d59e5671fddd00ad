/* The part of CANN that torch_npu needs to run without a device: device memory is host memory, launches compute nothing
   and are counted, asynchronous copies wait in the queue of their stream until something waits for it or is launched
   behind them. Whatever is not written here succeeds and does nothing (see names.py for where the names come from). */
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, NO_MEMORY = 207001, FAILED = 500002 };

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

/* ---- streams and events ---- */

struct stream;
struct event {
  struct stream *stream; /* that it was last recorded on */
  long recorded, done;   /* tickets */
};
struct task {
  struct task *next;
  enum { COPY, SET, RECORD, WAIT } kind;
  void *to;
  const void *from;
  size_t n;
  int value;
  struct event *event;
  long ticket;
};
struct stream {
  struct task *first, *last;
  struct stream *next; /* of all streams */
};

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static struct stream standard, *streams = &standard;
static long tickets;

static struct stream *of(void *stream) { return stream ? stream : &standard; }

static void queue(void *stream, struct task task) {
  struct stream *s = of(stream);
  struct task *added = malloc(sizeof *added);
  *added = task;
  added->next = NULL;
  pthread_mutex_lock(&lock);
  if (s->last) s->last->next = added; else s->first = added;
  s->last = added;
  pthread_mutex_unlock(&lock);
}

static void run_until(struct event *event, long ticket);

static void run_one(struct stream *s) {
  struct task *task = s->first;
  s->first = task->next;
  if (!s->first) s->last = NULL;
  switch (task->kind) {
    case COPY: memcpy(task->to, task->from, task->n); break;
    case SET: memset(task->to, task->value, task->n); break;
    case RECORD: if (task->event->done < task->ticket) task->event->done = task->ticket; break;
    case WAIT: run_until(task->event, task->ticket); break;
  }
  free(task);
}

static void run_until(struct event *event, long ticket) {
  while (event->done < ticket && event->stream && event->stream->first) run_one(event->stream);
}

void stub_run(void *stream) { /* whatever waits on one stream */
  pthread_mutex_lock(&lock);
  while (of(stream)->first) run_one(of(stream));
  pthread_mutex_unlock(&lock);
}

static void run_all(void) {
  pthread_mutex_lock(&lock);
  for (struct stream *s = streams; s; s = s->next) stub_run(s);
  pthread_mutex_unlock(&lock);
}

int aclrtCreateStream(void **stream) {
  struct stream *s = calloc(1, sizeof *s);
  pthread_mutex_lock(&lock);
  s->next = streams;
  streams = s;
  pthread_mutex_unlock(&lock);
  *stream = s;
  return OK;
}
int aclrtCreateStreamWithConfig(void **stream, uint32_t priority, uint32_t flag) { return aclrtCreateStream(stream); }
int aclrtDestroyStream(void *stream) { stub_run(stream); return OK; } /* its record stays: events point to it */
int aclrtStreamQuery(void *stream, int *status) {
  pthread_mutex_lock(&lock);
  if (of(stream)->first) run_one(of(stream)); /* a device goes on while it is asked */
  *status = of(stream)->first ? 1 : 0;
  pthread_mutex_unlock(&lock);
  return OK;
}
int aclrtSynchronizeStream(void *stream) { counters[COUNT_wait_stream]++; stub_run(stream); return OK; }
int aclrtSynchronizeStreamWithTimeout(void *stream, int32_t ms) { return aclrtSynchronizeStream(stream); }
int aclrtSynchronizeDevice(void) { counters[COUNT_wait_device]++; run_all(); return OK; }
int aclrtSynchronizeDeviceWithTimeout(int32_t ms) { return aclrtSynchronizeDevice(); }

int aclrtCreateEvent(void **event) { *event = calloc(1, sizeof(struct event)); return OK; }
int aclrtCreateEventWithFlag(void **event, uint32_t flag) { return aclrtCreateEvent(event); }
int aclrtCreateEventExWithFlag(void **event, uint32_t flag) { return aclrtCreateEvent(event); }
int aclrtDestroyEvent(void *event) { return OK; } /* a queued task may still name it */
int aclrtRecordEvent(struct event *event, void *stream) {
  pthread_mutex_lock(&lock);
  event->stream = of(stream);
  event->recorded = ++tickets;
  pthread_mutex_unlock(&lock);
  queue(stream, (struct task){.kind = RECORD, .event = event, .ticket = event->recorded});
  return OK;
}
int aclrtStreamWaitEvent(void *stream, struct event *event) {
  queue(stream, (struct task){.kind = WAIT, .event = event, .ticket = event->recorded});
  return OK;
}
int aclrtSynchronizeEvent(struct event *event) {
  counters[COUNT_wait_event]++;
  pthread_mutex_lock(&lock);
  run_until(event, event->recorded);
  pthread_mutex_unlock(&lock);
  return OK;
}
int aclrtQueryEventStatus(struct event *event, int *status) {
  pthread_mutex_lock(&lock);
  if (event->done < event->recorded && event->stream->first) run_one(event->stream);
  *status = event->done >= event->recorded;
  pthread_mutex_unlock(&lock);
  return OK;
}
int aclrtQueryEventWaitStatus(struct event *event, int *status) { return aclrtQueryEventStatus(event, status); }
int aclrtEventElapsedTime(float *ms, void *start, void *end) { *ms = 0; return OK; }

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
  stub_run(stream);
  return OK;
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
