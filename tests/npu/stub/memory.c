/* Part of cann.c: memory of the device, by pointer or mapped piece by piece into a range; pinned memory of the host. */

static size_t used;

static size_t total_bytes(void) { /* asked each time, so that a test can make the card small */
  const char *mib = getenv("NPU_STUB_MIB");
  return mib ? (size_t)atol(mib) << 20 : (size_t)64 << 30;
}
static int take(void **memory, size_t size, size_t alignment) {
  return posix_memalign(memory, alignment, size ? size : 1) ? NO_MEMORY : OK;
}
static struct mapped { /* what lies on the device */
  struct mapped *next;
  char *at;
  size_t size;
} *mappings, *allocations;
static void note(struct mapped **list, void *at, size_t size) {
  struct mapped *made = malloc(sizeof *made);
  *made = (struct mapped){.next = *list, .at = at, .size = size};
  *list = made;
}
static struct mapped *taken_out(struct mapped **list, void *at) { /* NULL: it is not there */
  for (struct mapped **link = list; *link; link = &(*link)->next) {
    struct mapped *found = *link;
    if (found->at != at) continue;
    *link = found->next;
    return found;
  }
  return NULL;
}
int aclrtMalloc(void **memory, size_t size, int policy) {
  int wanted = fault("aclrtMalloc");
  if (wanted) return wanted;
  if (used + size > total_bytes() || take(memory, size, 512)) return NO_MEMORY;
  __atomic_add_fetch(&used, malloc_usable_size(*memory), __ATOMIC_RELAXED);
  pthread_mutex_lock(&lock);
  note(&allocations, *memory, size);
  pthread_mutex_unlock(&lock);
  return OK;
}
int aclrtMallocAlign32(void **memory, size_t size, int policy) { return aclrtMalloc(memory, size, policy); }
int aclrtFree(void *memory) {
  __atomic_sub_fetch(&used, malloc_usable_size(memory), __ATOMIC_RELAXED);
  pthread_mutex_lock(&lock);
  free(taken_out(&allocations, memory));
  pthread_mutex_unlock(&lock);
  free(memory);
  return OK;
}
int aclrtGetMemInfo(int attribute, size_t *free_bytes, size_t *total) {
  *total = total_bytes();
  *free_bytes = *total > used ? *total - used : 0;
  return OK;
}

/* ---- expandable segments: a range of addresses, and pieces of memory behind some of them ---- */

int aclrtReserveMemAddress(void **range, size_t size, size_t alignment, void *wanted, uint64_t flags) {
  *range = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return *range == MAP_FAILED ? NO_MEMORY : OK;
}
int aclrtReserveMemAddressNoUCMemory(void **range, size_t size, size_t alignment, void *wanted, uint64_t flags) {
  return aclrtReserveMemAddress(range, size, alignment, wanted, flags);
}
int aclrtReleaseMemAddress(void *range) { return OK; } /* its size is unknown here, and it takes no memory */
int aclrtMallocPhysical(size_t **piece, size_t size, const void *properties, uint64_t flags) {
  int wanted = fault("aclrtMalloc");
  if (wanted) return wanted;
  if (used + size > total_bytes()) return NO_MEMORY;
  __atomic_add_fetch(&used, size, __ATOMIC_RELAXED);
  *piece = malloc(sizeof **piece);
  **piece = size;
  return OK;
}
int aclrtFreePhysical(size_t *piece) {
  __atomic_sub_fetch(&used, *piece, __ATOMIC_RELAXED);
  free(piece);
  return OK;
}
int aclrtMapMem(void *at, size_t size, size_t offset, size_t *piece, uint64_t flags) {
  note(&mappings, at, size);
  return mprotect(at, size, PROT_READ | PROT_WRITE) ? FAILED : OK;
}
int aclrtUnmapMem(void *at) {
  struct mapped *found = taken_out(&mappings, at);
  if (!found) return FAILED;
  madvise(at, found->size, MADV_DONTNEED);
  mprotect(at, found->size, PROT_NONE);
  free(found);
  return OK;
}
static int on_device(const char *at, size_t n) { /* pieces that are mapped side by side are one */
  pthread_mutex_lock(&lock);
  const char *end = at;
  for (struct mapped *m = allocations; m; m = m->next)
    if (m->at <= at && at < m->at + m->size) end = m->at + m->size;
  for (int longer = 1; longer && end < at + n;) {
    longer = 0;
    for (struct mapped *m = mappings; m; m = m->next)
      if (m->at <= end && end < m->at + m->size) end = m->at + m->size, longer = 1;
  }
  pthread_mutex_unlock(&lock);
  return end >= at + n;
}

/* ---- pinned memory: what is copied beside the host ---- */

static struct block {
  struct block *next;
  char *first;
  size_t size;
} *blocks;
static pthread_mutex_t blocks_lock = PTHREAD_MUTEX_INITIALIZER;

static int pinned(const void *at) { /* an address inside of a block is as good as its first */
  pthread_mutex_lock(&blocks_lock);
  struct block *b = blocks;
  while (b && !(b->first <= (char *)at && (char *)at < b->first + b->size)) b = b->next;
  pthread_mutex_unlock(&blocks_lock);
  return b != NULL;
}
int aclrtMallocHost(void **memory, size_t size) {
  if (take(memory, size, 4096)) return NO_MEMORY;
  struct block *made = malloc(sizeof *made);
  pthread_mutex_lock(&blocks_lock);
  *made = (struct block){.next = blocks, .first = *memory, .size = size};
  blocks = made;
  pthread_mutex_unlock(&blocks_lock);
  return OK;
}
int aclrtMallocHostWithCfg(void **memory, size_t size, void *config) { return aclrtMallocHost(memory, size); }
int aclrtFreeHost(void *memory) {
  pthread_mutex_lock(&blocks_lock);
  for (struct block **link = &blocks; *link; link = &(*link)->next) {
    struct block *found = *link;
    if (found->first != memory) continue;
    *link = found->next;
    free(found);
    break;
  }
  pthread_mutex_unlock(&blocks_lock);
  free(memory);
  return OK;
}
int aclrtPointerGetAttributes(const void *at, uint32_t attributes[8]) { /* where it lies: number and kind of the place */
  enum { HOST, DEVICE, UNREGISTERED };
  attributes[0] = 0;
  attributes[1] = pinned(at) ? HOST : UNREGISTERED;
  return OK;
}
