/* Part of cann.c: streams with their tasks, which wait until something needs them, and events. */

struct stream;
struct graph;
struct collective;
struct event {
  struct stream *stream; /* that it was last recorded on */
  long recorded, done;   /* tickets */
};
struct task {
  struct task *next;
  enum { COPY, SET, RECORD, WAIT, WAIT_VALUE, WRITE_VALUE, KERNEL, EXECUTE, PATCH, COLLECTIVE } kind;
  void *to;
  const void *from;
  size_t n;
  int value;
  struct event *event;
  long ticket;
  long kernel;         /* the function of Python that computes */
  struct graph *graph; /* that is executed */
  struct task *at;     /* of the graph: what comes next; of a patch: the kernel that is replaced */
  struct collective *collective;
};
struct queue {
  struct task *first, *last;
};
struct stream {
  struct queue tasks;
  struct stream *next; /* of all streams */
  int running;         /* in the middle of a task */
  int failed;          /* what the next one to wait is told */
  int joined;          /* it waited for the stream that is captured, and is captured, too */
  int apart;           /* it did something that the captured stream has not waited for */
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
static long capture_began;       /* a ticket */
static struct group *open_group;
static struct stream *updating; /* NULL: no update is under way */
static struct group *updated;
static struct stream *launched_on;
static int (*call_python)(long kernel);
static pthread_t python; /* the thread that computes; one that only launches must not wait for it */

void stub_python(int (*function)(long)) {
  call_python = function;
  python = pthread_self();
}

static struct stream *of(void *stream) { return stream ? stream : &standard; }
static int in_capture(struct stream *s) { return capturing && (s == capturing || s->joined); }

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
  struct stream *s = of(stream);
  if (in_capture(s) && task.kind != RECORD && task.kind != WAIT) s->apart = s != capturing;
  append(in_capture(s) ? &captured->tasks : &s->tasks, task);
}

static int advance(struct stream *s);
static int compute(struct task *task); /* of HCCL */

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
    case COLLECTIVE: if (!compute(task)) s->failed = BROKEN; break;
    case PATCH: task->at->kernel = task->kernel; break;
    case EXECUTE:
      for (; task->at; task->at = task->at->next) if (!run(s, task->at)) return 0;
      break;
  }
  return 1;
}

static int advance(struct stream *s) { /* 0: its first task cannot run yet, or not in this thread */
  struct task *task = s->tasks.first;
  int computes = task->kind == KERNEL || task->kind == EXECUTE;
  if (s->running || (computes && call_python && !pthread_equal(python, pthread_self()))) return 0;
  s->running = 1;
  int done = run(s, task);
  if (done) {
    s->tasks.first = task->next;
    if (!s->tasks.first) s->tasks.last = NULL;
    free(task);
  }
  s->running = 0;
  return done;
}

static void go_on(struct stream *s) { /* as far as it can */
  pthread_mutex_lock(&lock);
  while (s->tasks.first && advance(s)) {}
  pthread_mutex_unlock(&lock);
}

void stub_go_on(void) { /* as a device does while the host waits for something else */
  pthread_mutex_lock(&lock);
  for (struct stream *s = streams; s; s = s->next) go_on(s);
  pthread_mutex_unlock(&lock);
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
  if (event->stream && event->stream != of(stream) && event->recorded > capture_began && in_capture(event->stream)) {
    if (of(stream) == capturing) event->stream->apart = 0; /* all that it did before */
    else of(stream)->joined = 1;
  }
  of(stream)->fence = *event;
  queue(stream, (struct task){.kind = WAIT, .event = event, .ticket = event->recorded});
  return OK;
}
int aclrtSynchronizeEvent(struct event *event) {
  counters[COUNT_wait_event]++;
  if (capturing) return IN_CAPTURE;
  int wanted = fault("aclrtSynchronizeEvent");
  if (wanted) return wanted;
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
int aclQueryEventRecordedStatus(struct event *event, int *status) { /* nothing goes on for it: copies stay late */
  *status = event->done >= event->recorded;
  return OK;
}
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
  if (in_capture(of(stream))) return OK;
  go_on(of(stream)); /* as early as a device can: whoever should have waited finds that */
  return OK;
}
