/* Part of cann.c: a call that fails once, because a test says so, and is well again. */

static int fault(const char *call) { /* NPU_STUB_FAULT names a file, which holds the name of a call and its error */
  const char *path = getenv("NPU_STUB_FAULT");
  FILE *file = path ? fopen(path, "r") : NULL;
  if (!file) return OK;
  char name[128];
  int code = OK;
  int found = fscanf(file, "%127s %d", name, &code) == 2 && !strcmp(name, call);
  fclose(file);
  return found && !unlink(path) ? code : OK; /* of two that come at once the first one has it */
}
