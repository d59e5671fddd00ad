/* Part of cann.c: what the host side of npu_fused_infer_attention_score refuses before it launches anything.

   Packed tokens ("TND") with as many key-value heads as heads go to the attention of prompts, which takes bfloat16
   alone, and which cannot say how large a workspace may become: it wants lengths, and has none of a graph. */

enum { FLOAT16 = 1 }; /* of aclDataType */
struct tensor {
  int dtype;
};
struct tensor *aclCreateTensor(const int64_t *sizes, uint64_t n, int dtype) {
  struct tensor *made = malloc(sizeof *made);
  made->dtype = dtype;
  return made;
}
int aclDestroyTensor(void *tensor) { free(tensor); return OK; }

#define MEGABYTE (1 << 20) /* what a workspace takes here */
#define ATTENTION \
  struct tensor *query, void *key, void *value, void *shift, void *mask, void *lengths, void *lengths_kv, void *dequant_1, \
      void *quant_1, void *dequant_2, void *quant_2, void *offset_2, void *antiquant, void *antiquant_offset, \
      void *block_table, void *query_padding, void *kv_padding, void *key_antiquant, void *key_antiquant_offset, \
      void *value_antiquant, void *value_antiquant_offset, void *key_prefix, void *value_prefix, void *prefix_lengths, \
      void *query_rope, void *key_rope, void *key_rope_antiquant, int64_t heads, double scale, int64_t before, \
      int64_t after, const char *layout, int64_t kv_heads, int64_t sparse_mode, int64_t inner_precise, \
      int64_t block_size, int64_t antiquant_mode, int lse, int64_t key_mode, int64_t value_mode, void *out, \
      void *softmax, uint64_t *size, void **executor

static int refuses(const char *layout, int64_t heads, int64_t kv_heads, const char *why, int holds) {
  if (strcmp(layout, "TND") || heads != kv_heads || !holds) return OK;
  fprintf(stderr, "stub of CANN: attention over packed tokens, %ld heads over %ld: %s\n", heads, kv_heads, why);
  return REFUSED;
}
int aclnnFusedInferAttentionScoreV3GetWorkspaceSize(ATTENTION) {
  int wanted = fault("aclnnFusedInferAttentionScoreV3GetWorkspaceSize");
  *size = 0;
  return wanted ? wanted : refuses(layout, heads, kv_heads, "bfloat16 alone", query->dtype == FLOAT16);
}
int aclnnFusedInferAttentionScoreV3GetMaxWorkspaceSize(ATTENTION) {
  int wanted = fault("aclnnFusedInferAttentionScoreV3GetMaxWorkspaceSize");
  *size = MEGABYTE;
  return wanted ? wanted : refuses(layout, heads, kv_heads, "no largest workspace", 1);
}
