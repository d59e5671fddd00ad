"""The flags of `vllm serve`, one by one: what is typed here instead, or why there is nothing to type.

The list is that of release 0.33 (vllm/engine/arg_utils.py, vllm/entrypoints/common/cli_args.py), with flags that
earlier releases had. `make vllm-tests` compares it with these files.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmFlag:
    name: str
    kind: Literal["ours", "not needed", "absent"]
    told: str  # ours: what is typed, and how it differs; else why nothing is

    def __str__(self) -> str:
        """As a sentence."""
        if self.kind == "ours":
            return f"for vLLM's {self.name} give {self.told}"
        return f"vLLM's {self.name} is {'not needed' if self.kind == 'not needed' else 'not there'}: {self.told}"


def _ours(told: str, *names: str) -> tuple[VllmFlag, ...]:
    return tuple(VllmFlag(name=name, kind="ours", told=told) for name in names)


def _not_needed(why: str, *names: str) -> tuple[VllmFlag, ...]:
    return tuple(VllmFlag(name=name, kind="not needed", told=why) for name in names)


def _absent(why: str, *names: str) -> tuple[VllmFlag, ...]:
    return tuple(VllmFlag(name=name, kind="absent", told=why) for name in names)


_GRAPHS = "graphs of decode steps are sized at start"
_ONE = "one server has one device, or those of one host (--tensor-parallel); start more and spread the requests"
_SPLIT = "one server computes the whole answer"
_CHECKPOINT = "it is read from the checkpoint"

FLAGS: tuple[VllmFlag, ...] = (
    *_ours(
        "--kv-cache-share, a share of what is left beside the weights", "--gpu-memory-utilization",
        "--device-memory-utilization",
    ),
    *_ours("--kv-cache-mib, in MiB", "--kv-cache-memory-bytes", "--num-gpu-blocks-override"),
    *_ours("--max-seqs", "--max-num-seqs", "--max-num-active-seqs"),
    *_ours("--max-batched-tokens", "--max-num-batched-tokens", "--max-num-scheduled-tokens"),
    *_ours("--allow-media-root", "--allowed-local-media-path"),
    *_ours("--allowed-media-domain, once for each; none by default", "--allowed-media-domains"),
    *_ours("--max-items, of all kinds together", "--limit-mm-per-prompt"),
    *_ours("--max-pixels for the server, mm_processor_kwargs in a request", "--mm-processor-kwargs"),
    *_ours("--max-frames for the server, num_frames or fps beside a video", "--media-io-kwargs"),
    *_ours("--no-graphs", "--enforce-eager"),
    *_ours("--tensor-parallel", "--tensor-parallel-size", "-tp"),
    *_ours("--model ORG/NAME@REVISION", "--revision"),
    *_ours("--workers", "--api-server-count", "-asc", "--renderer-num-workers", "--tokenizer-pool-size"),
    *_ours("--max-requests", "--max-num-queued-reqs"),
    *_ours("--max-asked-tokens for one body, --max-requests for all", "--max-num-queued-tokens"),
    *_ours("--step-seconds for a step, --pulse-seconds for silence", "--watchdog-config"),
    *_ours("the variable ASCEND_RT_VISIBLE_DEVICES, or CUDA_VISIBLE_DEVICES", "--device-ids"),
    *_ours("--drain-seconds", "--shutdown-timeout"),
    *_ours("--max-head-kib", "--h11-max-incomplete-event-size"),
    *_ours("--log-level", "--uvicorn-log-level"),
    *_ours(
        "--no-access-log", "--disable-uvicorn-access-log", "--disable-log-requests",
        "--disable-access-log-for-endpoints",
    ),
    *_ours("--profile FILE, in TOML", "--config"),
    *_ours("the variable HF_TOKEN", "--hf-token"),
    *_ours("the variable HF_HOME", "--download-dir"),
    *_ours("the variable OTEL_EXPORTER_OTLP_ENDPOINT", "--otlp-traces-endpoint", "--collect-detailed-traces"),
    *_not_needed("no code of a checkpoint runs", "--trust-remote-code", "--code-revision"),
    *_not_needed(
        _CHECKPOINT, "--tokenizer", "--tokenizer-mode", "--tokenizer-revision", "--hf-config-path", "--config-format",
        "--load-format", "--generation-config", "--chat-template-content-format", "--runner", "--convert", "--task",
        "--model-impl", "--ignore-patterns", "--pt-load-map-location", "--safetensors-load-strategy",
        "--safetensors-prefetch-num-threads", "--safetensors-prefetch-block-size",
    ),
    *_not_needed("the log tells how far the weights are", "--use-tqdm-on-load"),
    *_not_needed("prompts are prefilled in chunks anyhow", "--enable-chunked-prefill", "--disable-chunked-mm-input"),
    *_not_needed(
        _GRAPHS, "--cudagraph-capture-sizes", "--max-cudagraph-capture-size", "--max-seq-len-to-capture",
        "--compilation-config", "-cc", "-O", "--optimization-level", "--performance-mode",
    ),
    *_not_needed(
        "one way of computing it is chosen for the device", "--attention-backend", "--attention-config", "-ac",
        "--mm-encoder-attn-backend", "--disable-cascade-attn", "--kernel-config", "--enable-flashinfer-autotune",
        "--override-attention-dtype", "--ir-op-priority", "--additional-config", "--linear-backend", "--monokernel",
        "--jit-monitor-mode", "--jit-monitor-verbose", "--mm-encoder-attn-dtype", "--mm-device-do-normalize",
        "--mm-processor-device", "--use-fp64-gumbel",
    ),
    *_not_needed("what a request asks for by `seed` counts", "--seed"),
    *_not_needed("up to 20, with bounds on what a body asks for (--max-asked-tokens)", "--max-logprobs"),
    *_not_needed("the engine overlaps what it can", "--async-scheduling"),
    *_not_needed(
        "clients take turns (--client-share)", "--scheduling-policy", "--scheduler-cls",
        "--max-num-partial-prefills", "--max-long-partial-prefills",
        "--long-prefill-token-threshold", "--long-prefill-token-threshold-adaptive", "--prefill-schedule-interval",
        "--scheduler-reserve-full-isl", "--watermark",
    ),
    *_not_needed("tokens leave as they come", "--stream-interval"),
    *_not_needed(
        "it is always told", "--enable-prompt-tokens-details", "--enable-request-id-headers",
        "--enable-server-load-tracking",
    ),
    *_not_needed(
        "a request asks for it itself", "--return-tokens-as-token-ids", "--enable-per-request-metrics",
        "--enable-force-include-usage",
    ),
    *_not_needed(
        "/metrics has them", "--disable-log-stats", "--kv-cache-metrics", "--kv-cache-metrics-sample",
        "--enable-mfu-metrics", "--cudagraph-metrics", "--aggregate-engine-logging",
        "--enable-logging-iteration-details", "--show-hidden-metrics-for-version",
    ),
    *_not_needed("the edges of histograms are those that vLLM has by itself", "--custom-histogram-buckets"),
    *_not_needed("it is a digest of version, model and dtype", "--fingerprint-mode", "--fingerprint-value"),
    *_not_needed("a defect is logged with its traceback", "--log-error-stack"),
    *_not_needed("a silent stream sends a comment after 15 s", "--sse-keep-alive-interval"),
    *_not_needed("a head has at most 256 fields", "--h11-max-header-count"),
    *_not_needed("an unknown variable of ours stops the start in any case", "--fail-on-environ-validation"),
    *_not_needed("the bounds of the server hold, whatever a request says of its media", "--trust-request-mm-kwargs"),
    *_not_needed("arguments are always held to the schema", "--tool-strict-level"),
    *_not_needed("a prefix is found by whole blocks", "--prefix-match-unit", "--prefix-cache-retention-interval"),
    *_not_needed(
        "media reach the engine through shared memory anyhow", "--enable-shm-tensor-arena", "--mm-tensor-ipc",
        "--mm-ipc-gpu-memory-gb", "--mm-hasher-algorithm", "--mm-shm-cache-max-object-size-mb",
    ),
    *_not_needed(
        "no request's words are logged", "--enable-log-requests", "--enable-log-outputs", "--enable-log-deltas",
        "--max-log-len",
    ),
    *_not_needed("the page of /docs is fetched from nowhere", "--disable-fastapi-docs", "--enable-offline-docs"),
    *_not_needed("an NPU's memory is measured at start; a CPU measures nothing", "--skip-mm-profiling"),
    *_not_needed("the vocabulary is always loaded", "--skip-tokenizer-init"),
    *_not_needed("what a page of an allowed origin may send is fixed", "--allowed-methods", "--allowed-headers"),
    *_absent(
        _ONE, "--pipeline-parallel-size", "-pp", "--data-parallel-size", "-dp",
        "--data-parallel-size-local", "-dpl", "--data-parallel-rank", "-dpn", "--data-parallel-start-rank", "-dpr",
        "--data-parallel-address", "-dpa", "--data-parallel-rpc-port", "-dpp", "--data-parallel-backend", "-dpb",
        "--data-parallel-hybrid-lb", "--data-parallel-external-lb", "--data-parallel-supervisor-port",
        "--decode-context-parallel-size", "-dcp", "--prefill-context-parallel-size", "-pcp", "--enable-expert-parallel",
        "-ep", "--distributed-executor-backend", "--nnodes", "-n", "--node-rank", "-r", "--master-addr",
        "--master-port", "--headless", "--disable-custom-all-reduce", "--worker-cls",
        "--enable-eplb", "--eplb-config", "--enable-dbo", "--all2all-backend", "-dph", "-dpe", "-dpm",
        "--data-parallel-multi-port-external-lb", "--dp-supervisor-probe-interval-s",
        "--dp-supervisor-probe-timeout-s", "--dp-supervisor-probe-failure-threshold", "--dp-sync-interval",
        "--disable-nccl-for-dp-synchronization", "--dcp-comm-backend", "--dcp-q-replicate",
        "--dcp-kv-cache-interleave-size", "--cp-kv-cache-interleave-size", "--distributed-timeout-seconds",
        "--cpu-distributed-timeout-seconds", "--numa-bind", "--numa-bind-nodes", "--numa-bind-cpus", "--enable-hc-sp",
        "--enable-batch-sharded-sampling", "--enable-ep-weight-filter", "--enable-elastic-ep",
        "--elastic-ep-max-dp-size", "--ubatch-size", "--dbo-decode-token-threshold", "--dbo-prefill-token-threshold",
        "--expert-placement-strategy", "--max-parallel-loading-workers", "--ray-workers-use-nsight",
        "--enable-fault-tolerance", "--fault-tolerance-config", "--enable-nccl-comm-suspend", "--moe-backend",
    ),
    *_absent(
        "no model here has such layers", "--mamba-backend", "--mamba-ssu-algorithm",
        "--enable-mamba-cache-stochastic-rounding", "--mamba-cache-philox-rounds", "--mamba-block-size",
        "--mamba-cache-dtype", "--mamba-cache-mode", "--mamba-ssm-cache-dtype",
        "--enable-mamba-shared-prefix-checkpoint", "--use-replayssm", "--replayssm-buffer-len",
        "--gdn-prefill-backend", "--kda-prefill-backend", "--kda-decode-backend", "--sparse-indexer-topk-backend",
        "--swa-bounded-replay", "--disable-hybrid-kv-cache-manager", "--engram-config", "--diffusion-config", "-dc",
        "--kv-sharing-fast-prefill",
    ),
    *_absent(
        _SPLIT, "--kv-transfer-config", "--kv-events-config", "--ec-transfer-config", "--ec-manager-config",
        "--weight-transfer-config", "--tokens-only", "--enable-scale-out",
    ),
    *_absent(
        "weights and cache are served in the dtypes of --dtype", "--quantization", "-q", "--kv-cache-dtype",
        "--calculate-kv-scales", "--kv-cache-dtype-skip-layers", "--quantization-config",
        "--allow-deprecated-quantization", "--mm-encoder-fp8-scale-path", "--mm-encoder-fp8-scale-save-path",
        "--mm-encoder-fp8-scale-save-margin",
    ),
    *_absent(
        "adapters are not served", "--enable-lora", "--lora-modules", "--max-loras", "--max-lora-rank", "--lora-dtype",
        "--max-cpu-loras", "--fully-sharded-loras", "--default-mm-loras", "--lora-target-modules",
        "--max-lora-cls-labels", "--enable-tower-connector-lora", "--enable-moe-shared-loras",
        "--enable-mixed-moe-lora-format", "--specialize-active-lora",
    ),
    *_absent(
        "tokens are not guessed ahead", "--speculative-config", "-sc", "--speculative-model",
        "--num-speculative-tokens", "--spec-method", "--spec-model", "--spec-tokens",
        "--per-request-spec-decode-metrics",
    ),
    *_ours("--prefix-cache on or off; it is on", "--enable-prefix-caching", "--no-enable-prefix-caching"),
    *_not_needed("blocks are named by SHA-256", "--prefix-caching-hash-algo"),
    *_ours(
        "--encoder-cache on or off, and --embedding-mib: encoder outputs are kept, not what they were made of",
        "--mm-processor-cache-gb", "--mm-processor-cache-type", "--disable-mm-preprocessor-cache",
    ),
    *_ours("--encoder-parallel; data is the default", "--mm-encoder-tp-mode"),
    *_not_needed("llguidance holds every form", "--guided-decoding-backend", "--structured-outputs-config"),
    *_not_needed(
        "a model's family says how it calls tools", "--enable-auto-tool-choice", "--tool-call-parser",
    ),
    *_absent("no code from outside reads calls of tools, and none is run", "--tool-parser-plugin", "--tool-server"),
    *_absent("give no tools where none may be called", "--exclude-tools-when-tool-choice-none"),
    *_not_needed(
        "a model's family says how it thinks, and the prompt whether it does", "--reasoning-parser",
        "--enable-reasoning",
    ),
    *_absent("no code from outside reads thoughts", "--reasoning-parser-plugin"),
    *_absent(
        "max_tokens bounds thoughts and words together", "--reasoning-config", "--reasoning-effort-map",
        "--anthropic-disabled-thinking-effort",
    ),
    *_absent("no such model is served", "--cohere-is-reasoning-model", "--cohere-format"),
    *_absent("log-probabilities have one form", "--logprobs-mode"),
    *_absent(
        "an answer shows its tokens and their log-probabilities, no more", "--aux-output-config",
        "--enable-return-routed-experts", "--return-sampling-mask", "--enable-trace-replay",
    ),
    *_absent("answers bear no watermark", "--watermark-config"),
    *_absent("no embeddings or scores are computed", "--enable-flash-late-interaction"),
    *_absent("no route tells a template or a vocabulary", "--enable-tokenizer-info-endpoint"),
    *_absent("it speaks HTTP", "--grpc", "--grpc-port"),
    *_absent("no profiler is built in", "--profiler-config", "--enable-layerwise-nvtx-tracing"),
    *_absent(
        "the checkpoint's own configuration counts, and its template or that of --chat-template",
        "--trust-request-chat-template", "--default-chat-template-kwargs", "--hf-overrides",
        "--override-generation-config", "--rope-scaling", "--rope-theta", "--response-role",
        "--disable-sliding-window",
    ),
    *_absent("TLS is plain; a proxy in front does more", "--ssl-ca-certs", "--ssl-cert-reqs", "--ssl-ciphers"),
    *_not_needed("a SIGHUP reads certificate and keys again", "--enable-ssl-refresh"),
    *_absent("it listens on a TCP port", "--uds"),
    *_absent("a web page sends no cookie or key by itself", "--allow-credentials"),
    *_absent(
        "no code from outside is loaded", "--middleware", "--logits-processors", "--logits-processor-pattern",
        "--io-processor-plugin", "--model-loader-extra-config", "--worker-extension-cls", "--model-class-overrides",
    ),
    *_absent("weights stay on the device", "--cpu-offload-gb", "--swap-space", "--enable-sleep-mode",
             "--kv-offloading-size", "--kv-offloading-backend", "--offload-backend", "--cpu-offload-params",
             "--offload-params", "--offload-group-size", "--offload-num-in-group", "--offload-prefetch-step",
             "--sleep-mode-backend", "--sleep-mode-offload-cudagraph", "--sleep-preserve-parameter-names",
             "--enable-cumem-allocator"),
    *_absent("log lines have two forms, --log-format", "--log-config-file", "--logging-config"),
    *_absent(
        "prompts are texts, ids and media", "--enable-prompt-embeds", "--enable-mm-embeds", "--language-model-only",
        "--interleave-mm-strings", "--video-pruning-rate", "--video-pruning-method", "--mm-encoder-only",
        "--pooler-config",
    ),
)  # fmt: skip
ALIKE = (
    "--model", "--served-model-name", "--chat-template", "--dtype", "--max-model-len", "--block-size", "--host",
    "--port", "--api-key", "--allowed-origins", "--root-path", "--ssl-certfile", "--ssl-keyfile", "--log-level",
)  # fmt: skip  # the same name here
BY_NAME = {flag.name: flag for flag in FLAGS}
