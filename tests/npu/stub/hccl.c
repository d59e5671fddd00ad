/* Part of cann.c: HCCL between processes of this machine. Arguments are held to hccl.h as the wheels ship it; what is
   summed or gathered is a task of its stream, in a graph as well, and is computed at rank 0 over sockets without a name
   in any folder. A rank waits for the others where its stream comes to the task, as cards do. */
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { HCCL_PARAMETER = 1, HCCL_POINTER = 2, HCCL_UNSUPPORTED = 5, HCCL_REMOTE = 21 }; /* of HcclResult */
enum { MOST_RANKS = 8, INT32 = 2, FLOAT32 = 4, BFLOAT16 = 11, SUM = 0, OPERATIONS = 4 };
enum collective_kind { ALL_REDUCE, ALL_GATHER };
static const uint8_t element_sizes[] = {1, 2, 4, 2, 4, 8, 8, 1, 2, 4, 8, 2}; /* of HcclDataType, int8 to bfp16 */
static const uint8_t summed[] = {1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 1};        /* those that AllReduce takes */

struct ranks {
  uint32_t n, rank;
  int sockets[MOST_RANKS]; /* of rank 0 to each other one; of these the first, to rank 0 */
  char name[32];
};
struct call { /* what all ranks must say alike */
  int kind, type;
  uint64_t count;
};
struct collective {
  struct call call;
  struct ranks *group;
};
static int listening = -1;
static const char *root_name = "pixelferry-hccl-stub"; /* of an abstract socket, with the process and a number behind */

static int refuse(int code, const char *call, const char *rule) {
  fprintf(stderr, "stub of CANN: %s: %s\n", call, rule);
  return code;
}

/* ---- groups ---- */

static socklen_t address(struct sockaddr_un *made, const char *name) {
  memset(made, 0, sizeof *made);
  made->sun_family = AF_UNIX;
  strncpy(made->sun_path + 1, name, sizeof made->sun_path - 2);
  return offsetof(struct sockaddr_un, sun_path) + 1 + strlen(made->sun_path + 1);
}
static int all_bytes(int fd, void *at, size_t n, int out) { /* 0: the other rank is gone */
  for (size_t done = 0; done < n;) {
    ssize_t moved = out ? send(fd, (char *)at + done, n - done, MSG_NOSIGNAL) : recv(fd, (char *)at + done, n - done, 0);
    if (moved <= 0) return 0;
    done += moved;
  }
  return 1;
}
const char *HcclGetErrorString(int code) { return "an error of the stub"; }
int HcclGetRootInfo(char *root) { /* called by rank 0 alone, who tells the others */
  static int made;
  struct sockaddr_un here;
  snprintf(root, sizeof here.sun_path - 2, "%s-%d-%d", root_name, getpid(), ++made);
  listening = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  return bind(listening, (void *)&here, address(&here, root)) || listen(listening, MOST_RANKS) ? HCCL_REMOTE : OK;
}
int HcclCommInitRootInfo(uint32_t n, const char *root, uint32_t rank, struct ranks **group) {
  if (!root || !group) return refuse(HCCL_POINTER, "HcclCommInitRootInfo", "no root or no place for the group");
  if (!n || n > MOST_RANKS || rank >= n) return refuse(HCCL_PARAMETER, "HcclCommInitRootInfo", "rank or ranks");
  struct ranks *made = calloc(1, sizeof *made);
  *made = (struct ranks){.n = n, .rank = rank};
  snprintf(made->name, sizeof made->name, "stub %.20s", strrchr(root, '-'));
  *group = made;
  for (uint32_t i = 1; !rank && i < n; i++) {
    uint32_t theirs;
    int fd = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0 || !all_bytes(fd, &theirs, sizeof theirs, 0) || theirs >= n) return HCCL_REMOTE;
    made->sockets[theirs] = fd;
  }
  if (!rank) return close(listening) ? HCCL_REMOTE : OK;
  struct sockaddr_un there;
  made->sockets[0] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int failed = connect(made->sockets[0], (void *)&there, address(&there, root));
  return failed || !all_bytes(made->sockets[0], &rank, sizeof rank, 1) ? HCCL_REMOTE : OK;
}
int HcclCommInitRootInfoConfig(uint32_t n, const char *root, uint32_t rank, const uint32_t *config, struct ranks **group) {
  enum { MAGIC = 0xf0f0f0f0 }; /* behind the size, as HcclCommConfigInit writes it */
  if (!config || config[2] != MAGIC) return refuse(HCCL_PARAMETER, "HcclCommInitRootInfoConfig", "no configuration");
  return HcclCommInitRootInfo(n, root, rank, group);
}
int HcclCommDestroy(struct ranks *group) { /* its record stays: a queued task may still name it */
  for (uint32_t i = 0; i < MOST_RANKS; i++)
    if (group->sockets[i]) close(group->sockets[i]);
  return OK;
}
int HcclGetCommName(struct ranks *group, char *name) { strcpy(name, group->name); return OK; }
int HcclGetCommAsyncError(struct ranks *group, int *error) { *error = OK; return OK; }

/* ---- calls ---- */

static int collective(struct call call, enum counter counter, void *sent, void *received, struct ranks *group, void *stream) {
  const char *name = counter_names[counter];
  int wanted = fault(name);
  if (wanted) return wanted;
  if (!sent || !received || !group || !stream) return refuse(HCCL_POINTER, name, "a buffer, the group or the stream is missing");
  if (!call.count) return refuse(HCCL_PARAMETER, name, "nothing to send");
  size_t bytes = call.count * element_sizes[call.type], whole = bytes * (call.kind == ALL_GATHER ? group->n : 1);
  if (!on_device(sent, bytes) || !on_device(received, whole))
    return refuse(HCCL_PARAMETER, name, "a buffer is not on the device, or too short");
  counters[counter]++;
  struct collective *made = malloc(sizeof *made);
  *made = (struct collective){.call = call, .group = group};
  queue(stream, (struct task){.kind = COLLECTIVE, .to = received, .from = sent, .n = bytes, .collective = made});
  return OK;
}
int HcclAllReduce(void *sent, void *received, uint64_t count, int type, int op, struct ranks *group, void *stream) {
  if (type < 0 || type >= (int)sizeof summed || !summed[type]) return refuse(HCCL_PARAMETER, "HcclAllReduce", "type");
  if (op < 0 || op >= OPERATIONS) return refuse(HCCL_PARAMETER, "HcclAllReduce", "operation");
  int computed = type == INT32 || type == FLOAT32 || type == BFLOAT16;
  if (group && group->n > 1 && (op != SUM || !computed))
    return refuse(HCCL_UNSUPPORTED, "HcclAllReduce", "the stub knows sums of int32, float32 and bfloat16");
  return collective((struct call){ALL_REDUCE, type, count}, COUNT_HcclAllReduce, sent, received, group, stream);
}
int HcclAllGather(void *sent, void *received, uint64_t count, int type, struct ranks *group, void *stream) {
  if (type < 0 || type >= (int)sizeof element_sizes) return refuse(HCCL_PARAMETER, "HcclAllGather", "type");
  return collective((struct call){ALL_GATHER, type, count}, COUNT_HcclAllGather, sent, received, group, stream);
}

/* ---- what they compute, when their stream comes to it ---- */

static float widened(uint16_t x) { uint32_t bits = (uint32_t)x << 16; float y; memcpy(&y, &bits, 4); return y; }
static uint16_t rounded(float y) { /* to the nearest, ties to even; numbers alone */
  uint32_t bits;
  memcpy(&bits, &y, 4);
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
static void add(void *total, const void *part, uint64_t count, int type) {
  for (uint64_t i = 0; i < count; i++)
    if (type == BFLOAT16) ((uint16_t *)total)[i] = rounded(widened(((uint16_t *)total)[i]) + widened(((uint16_t *)part)[i]));
    else if (type == FLOAT32) ((float *)total)[i] += ((float *)part)[i];
    else ((int32_t *)total)[i] += ((int32_t *)part)[i];
}
static int compute(struct task *task) { /* 0: a rank is gone, or makes another call */
  struct call mine = task->collective->call, theirs;
  struct ranks *group = task->collective->group;
  int gathers = mine.kind == ALL_GATHER;
  size_t whole = task->n * (gathers ? group->n : 1);
  counters[gathers ? COUNT_computed_gather : COUNT_computed_sum]++;
  if (group->rank) {
    int fd = group->sockets[0];
    return all_bytes(fd, &mine, sizeof mine, 1) && all_bytes(fd, (void *)task->from, task->n, 1) &&
           all_bytes(fd, task->to, whole, 0);
  }
  memmove(task->to, task->from, task->n);
  char *part = malloc(task->n);
  int well = 1;
  for (uint32_t i = 1; well && i < group->n; i++) {
    well = all_bytes(group->sockets[i], &theirs, sizeof theirs, 0);
    if (well && (theirs.kind != mine.kind || theirs.type != mine.type || theirs.count != mine.count)) {
      fprintf(stderr, "stub of CANN: rank %u makes another call: kind %d of %lu, here %d of %lu\n", i, theirs.kind,
              theirs.count, mine.kind, mine.count);
      well = 0;
    }
    well = well && all_bytes(group->sockets[i], gathers ? (char *)task->to + i * task->n : part, task->n, 0);
    if (well && !gathers) add(task->to, part, mine.count, mine.type);
  }
  for (uint32_t i = 1; well && i < group->n; i++) well = all_bytes(group->sockets[i], task->to, whole, 1);
  free(part);
  if (!well) /* nobody waits for it any more */
    for (uint32_t i = 1; i < group->n; i++) shutdown(group->sockets[i], SHUT_RDWR);
  return well;
}
