/* Part of cann.c: what is captured becomes tasks of a graph, which run in one task of a stream when it is replayed. */

int stub_defers(void) { /* whether the last launch computes later: in a graph, or behind one that is not done */
  if (in_capture(launched_on) || launched_on == updating) return 1;
  go_on(launched_on);
  return launched_on->tasks.first != NULL;
}
void stub_kernel(long kernel) { /* what the last launch computes, where it does not compute at once */
  if (!in_capture(launched_on) && launched_on != updating) {
    queue(launched_on, (struct task){.kind = KERNEL, .kernel = kernel});
    return;
  }
  if (launched_on == updating) {
    queue(updating, (struct task){.kind = PATCH, .at = updated->kernel, .kernel = kernel});
    return;
  }
  struct task *added = append(&captured->tasks, (struct task){.kind = KERNEL, .kernel = kernel});
  if (open_group) open_group->kernel = added;
}

int aclmdlRICaptureBegin(void *stream, int mode) {
  if (capturing) return IN_CAPTURE;
  int wanted = fault("aclmdlRICaptureBegin");
  if (wanted) return wanted;
  int failed = stub_run(stream);
  capturing = of(stream);
  captured = calloc(1, sizeof *captured);
  capture_began = tickets;
  counters[COUNT_graph_capture]++;
  return failed;
}
int aclmdlRICaptureGetInfo(void *stream, int *status, void **graph) {
  int active = in_capture(of(stream));
  if (status) *status = active;
  if (graph) *graph = active ? captured : NULL;
  return OK;
}
int aclmdlRICaptureEnd(void *stream, void **graph) {
  int unjoined = 0;
  *graph = captured;
  capturing = NULL;
  for (struct stream *s = streams; s; s = s->next) {
    unjoined |= s->joined && s->apart;
    s->joined = s->apart = 0;
  }
  return unjoined ? UNJOINED : OK;
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
  int wanted = fault("aclmdlRICaptureTaskGrpBegin");
  if (wanted) return wanted;
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
