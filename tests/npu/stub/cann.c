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

/* ---- streams, events and graphs ---- */

struct stream;
struct graph;
struct event {
  struct stream *stream; /* that it was last recorded on */
  long recorded, done;   /* tickets */
};
struct task {
  struct task *next;
  enum { COPY, SET, RECORD, WAIT, WAIT_VALUE, WRITE_VALUE, KERNEL, EXECUTE, PATCH } kind;
  void *to;
  const void *from;
  size_t n;
  int value;
  struct event *event;
  long ticket;
  long kernel;         /* the function of Python that computes */
  struct graph *graph; /* that is executed */
  struct task *at;     /* of the graph: what comes next; of a patch: the kernel that is replaced */
};
struct queue {
  struct task *first, *last;
};
struct stream {
  struct queue tasks;
  struct stream *next; /* of all streams */
  int running;         /* in the middle of a task */
  int failed;          /* what the next one to wait is told */
  struct event fence;  /* that it waited for last, as it was then */
};
struct graph {
  struct queue tasks;
  struct event executed[2]; /* where the last execution and the one before it stand in their stream */
  long executions;
};
struct group {
  struct graph *graph;
  struct task *kernel; /* the one that it holds */
  long updates;
};

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static struct stream standard, *streams = &standard;
static long tickets;
static struct stream *capturing; /* NULL: no capture is under way */
static struct graph *captured;   /* into this one */
static struct group *open_group;
static struct stream *updating; /* NULL: no update is under way */
static struct group *updated;
static struct stream *launched_on;
static int (*call_python)(long kernel);

void stub_python(int (*function)(long)) { call_python = function; }

static struct stream *of(void *stream) { return stream ? stream : &standard; }

static struct task *append(struct queue *queue, struct task task) {
  struct task *added = malloc(sizeof *added);
  *added = task;
  added->next = NULL;
  pthread_mutex_lock(&lock);
  if (queue->last) queue->last->next = added; else queue->first = added;
  queue->last = added;
  pthread_mutex_unlock(&lock);
  return added;
}

static void queue(void *stream, struct task task) {
  append(of(stream) == capturing ? &captured->tasks : &of(stream)->tasks, task);
}

static int advance(struct stream *s);

static int run_until(struct event *event, long ticket) { /* whether the device comes so far */
  struct stream *s = event->stream;
  while (event->done < ticket && s && s->tasks.first && advance(s)) {}
  return event->done >= ticket;
}

static int holds(volatile uint64_t *at, uint64_t value) { /* other streams go on for it */
  for (struct stream *s = streams; s && *at != value; s = s->next)
    while (*at != value && s->tasks.first && advance(s)) {}
  return *at == value;
}

static int run(struct stream *s, struct task *task) { /* 0: it cannot go on yet */
  switch (task->kind) {
    case COPY: memcpy(task->to, task->from, task->n); break;
    case SET: memset(task->to, task->value, task->n); break;
    case RECORD:
      if (task->event->done < task->ticket) task->event->done = task->ticket;
      break;
    case WAIT: return run_until(task->event, task->ticket);
    case WAIT_VALUE: return holds(task->to, task->n);
    case WRITE_VALUE: *(uint64_t *)task->to = task->n; break;
    case KERNEL: if (!call_python || call_python(task->kernel)) s->failed = BROKEN; break;
    case PATCH: task->at->kernel = task->kernel; break;
    case EXECUTE:
      for (; task->at; task->at = task->at->next) if (!run(s, task->at)) return 0;
      break;
  }
  return 1;
}

static int advance(struct stream *s) { /* 0: its first task cannot run yet */
  if (s->running) return 0;
  s->running = 1;
  struct task *task = s->tasks.first;
  int done = run(s, task);
  if (done) {
    s->tasks.first = task->next;
    if (!s->tasks.first) s->tasks.last = NULL;
    free(task);
  }
  s->running = 0;
  return done;
}

int stub_run(void *stream) { /* whatever waits on one stream; a device hangs where this one gives up */
  struct stream *s = of(stream);
  pthread_mutex_lock(&lock);
  while (s->tasks.first && advance(s)) {}
  int failed = s->failed;
  if (s->tasks.first && !s->running) {
    fprintf(stderr, "stub of CANN: a stream waits for what nobody will give it, and its work is dropped\n");
    s->tasks.first = s->tasks.last = NULL;
    failed = STUCK;
  }
  s->failed = OK;
  pthread_mutex_unlock(&lock);
  return failed;
}

static int run_all(void) {
  int failed = OK;
  pthread_mutex_lock(&lock);
  for (struct stream *s = streams; s; s = s->next) {
    int found = stub_run(s);
    if (found) failed = found;
  }
  pthread_mutex_unlock(&lock);
  return failed;
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
int aclrtDestroyStream(void *stream) { return stub_run(stream); } /* its record stays: events point to it */
int aclrtStreamQuery(void *stream, int *status) {
  pthread_mutex_lock(&lock);
  if (of(stream)->tasks.first) advance(of(stream)); /* a device goes on while it is asked */
  *status = of(stream)->tasks.first ? 1 : 0;
  pthread_mutex_unlock(&lock);
  return OK;
}
int aclrtSynchronizeStream(void *stream) {
  counters[COUNT_wait_stream]++;
  return capturing ? IN_CAPTURE : stub_run(stream);
}
int aclrtSynchronizeStreamWithTimeout(void *stream, int32_t ms) { return aclrtSynchronizeStream(stream); }
int aclrtSynchronizeDevice(void) {
  counters[COUNT_wait_device]++;
  return capturing ? IN_CAPTURE : run_all();
}
int aclrtSynchronizeDeviceWithTimeout(int32_t ms) { return aclrtSynchronizeDevice(); }

int aclrtCreateEvent(void **event) { *event = calloc(1, sizeof(struct event)); return OK; }
int aclrtCreateEventWithFlag(void **event, uint32_t flag) { return aclrtCreateEvent(event); }
int aclrtCreateEventExWithFlag(void **event, uint32_t flag) { return aclrtCreateEvent(event); }
int aclrtDestroyEvent(void *event) { return OK; } /* a queued task may still name it */
static struct event recorded_on(struct stream *stream) {
  return (struct event){.stream = stream, .recorded = ++tickets};
}
int aclrtRecordEvent(struct event *event, void *stream) {
  pthread_mutex_lock(&lock);
  struct event now = recorded_on(of(stream));
  event->stream = now.stream;
  event->recorded = now.recorded;
  pthread_mutex_unlock(&lock);
  queue(stream, (struct task){.kind = RECORD, .event = event, .ticket = event->recorded});
  return OK;
}
int aclrtStreamWaitEvent(void *stream, struct event *event) {
  of(stream)->fence = *event;
  queue(stream, (struct task){.kind = WAIT, .event = event, .ticket = event->recorded});
  return OK;
}
int aclrtSynchronizeEvent(struct event *event) {
  counters[COUNT_wait_event]++;
  if (capturing) return IN_CAPTURE;
  pthread_mutex_lock(&lock);
  int done = run_until(event, event->recorded);
  int failed = event->stream ? event->stream->failed : OK;
  if (event->stream) event->stream->failed = OK;
  pthread_mutex_unlock(&lock);
  return done ? failed : event->stream ? stub_run(event->stream) : OK;
}
int aclrtQueryEventStatus(struct event *event, int *status) {
  pthread_mutex_lock(&lock);
  if (event->done < event->recorded && event->stream->tasks.first) advance(event->stream);
  *status = event->done >= event->recorded;
  pthread_mutex_unlock(&lock);
  return OK;
}
int aclQueryEventRecordedStatus(struct event *event, int *status) { return aclrtQueryEventStatus(event, status); }
int aclrtQueryEventWaitStatus(struct event *event, int *status) { return aclrtQueryEventStatus(event, status); }
int aclrtEventElapsedTime(float *ms, void *start, void *end) { *ms = 0; return OK; }

/* An external event of a graph is a number on the device: the graph waits for 1 and writes 0, an update writes 1. */
int aclrtValueWait(void *at, uint64_t value, uint32_t compare, void *stream) {
  if (compare != 1) return FAILED; /* only for equality */
  queue(stream, (struct task){.kind = WAIT_VALUE, .to = at, .n = value});
  return OK;
}
int aclrtValueWrite(void *at, uint64_t value, uint32_t flag, void *stream) {
  queue(stream, (struct task){.kind = WRITE_VALUE, .to = at, .n = value});
  if (of(stream) == capturing) return OK;
  pthread_mutex_lock(&lock); /* as early as a device can: whoever should have waited finds that */
  while (of(stream)->tasks.first && advance(of(stream))) {}
  pthread_mutex_unlock(&lock);
  return OK;
}

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

/* ---- capture, replay and update of graphs ---- */

int stub_defers(void) { return launched_on == capturing || launched_on == updating; } /* of the last launch; see below */
void stub_kernel(long kernel) { /* what the last launch computes, where it does not compute at once */
  if (launched_on == updating) {
    queue(updating, (struct task){.kind = PATCH, .at = updated->kernel, .kernel = kernel});
    return;
  }
  struct task *added = append(&captured->tasks, (struct task){.kind = KERNEL, .kernel = kernel});
  if (open_group) open_group->kernel = added;
}

int aclmdlRICaptureBegin(void *stream, int mode) {
  if (capturing) return IN_CAPTURE;
  int failed = stub_run(stream);
  capturing = of(stream);
  captured = calloc(1, sizeof *captured);
  counters[COUNT_graph_capture]++;
  return failed;
}
int aclmdlRICaptureGetInfo(void *stream, int *status, void **graph) {
  int active = capturing != NULL && of(stream) == capturing;
  if (status) *status = active;
  if (graph) *graph = active ? captured : NULL;
  return OK;
}
int aclmdlRICaptureEnd(void *stream, void **graph) {
  *graph = captured;
  capturing = NULL;
  return OK;
}
int aclmdlRIExecuteAsync(struct graph *graph, void *stream) {
  counters[COUNT_graph_replay]++;
  graph->executed[1] = graph->executed[0];
  graph->executed[0] = recorded_on(of(stream));
  graph->executions++;
  queue(stream, (struct task){.kind = EXECUTE, .graph = graph, .at = graph->tasks.first});
  return OK;
}
int aclmdlRIDestroy(void *graph) { return OK; } /* a queued task may still name it */
int aclmdlRICaptureTaskGrpBegin(void *stream) {
  open_group = calloc(1, sizeof *open_group);
  open_group->graph = captured;
  return OK;
}
int aclmdlRICaptureTaskGrpEnd(void *stream, void **group) {
  *group = open_group;
  open_group = NULL;
  return OK;
}
/* An update comes behind the replay that it is for, and its stream behind the replay before that. */
int aclmdlRICaptureTaskUpdateBegin(void *stream, struct group *group) {
  counters[COUNT_graph_update]++;
  struct graph *graph = group->graph;
  struct event *before = &graph->executed[graph->executions > group->updates ? 1 : 0];
  struct event *fence = &of(stream)->fence;
  if (before->recorded && (fence->stream != before->stream || fence->recorded < before->recorded)) {
    fprintf(stderr, "stub of CANN: a graph is updated, and its last replay may still run\n");
    return NO_FENCE;
  }
  group->updates++;
  updating = of(stream);
  updated = group;
  return OK;
}
int aclmdlRICaptureTaskUpdateEnd(void *stream) {
  updating = NULL;
  return OK;
}

/* ---- device, memory ---- */

static int32_t device;
static size_t used;
static const size_t TOTAL = 64ull << 30;

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
  if (take(memory, size, 512)) return NO_MEMORY;
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
  *total = TOTAL;
  *free_bytes = TOTAL - used;
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
