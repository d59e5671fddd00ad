"""The flags of `vllm serve`, one by one: what is typed here instead, or why there is nothing to type.

The list is that of vLLM's main branch of August 2026, about release 0.29 (vllm/engine/arg_utils.py,
vllm/entrypoints/openai/cli_args.py), with flags that earlier releases had. Those that have the same name here are not
in it.
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
_ONE = "one server has one device; start one for each and spread the requests"
_SPLIT = "one server computes the whole answer"
_CHECKPOINT = "it is read from the checkpoint"

FLAGS: tuple[VllmFlag, ...] = (
    *_ours("--kv-cache-share, a share of what is left beside the weights", "--gpu-memory-utilization"),
    *_ours("--kv-cache-mib, in MiB", "--kv-cache-memory-bytes", "--num-gpu-blocks-override"),
    *_ours("--max-seqs", "--max-num-seqs"),
    *_ours("--max-batched-tokens", "--max-num-batched-tokens"),
    *_ours("--allow-media-root", "--allowed-local-media-path"),
    *_ours("--allowed-media-domain, once for each; none by default", "--allowed-media-domains"),
    *_ours("--max-items, of all kinds together", "--limit-mm-per-prompt"),
    *_ours("--max-pixels for the server, mm_processor_kwargs in a request", "--mm-processor-kwargs"),
    *_ours("--max-frames for the server, num_frames or fps beside a video", "--media-io-kwargs"),
    *_ours("--no-graphs", "--enforce-eager"),
    *_ours("--model ORG/NAME@REVISION", "--revision"),
    *_ours("--workers", "--api-server-count", "-asc", "--renderer-num-workers", "--tokenizer-pool-size"),
    *_ours("--max-requests", "--max-num-queued-reqs"),
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
        "--model-impl",
    ),
    *_not_needed("prompts are prefilled in chunks anyhow", "--enable-chunked-prefill", "--disable-chunked-mm-input"),
    *_not_needed(
        _GRAPHS, "--cudagraph-capture-sizes", "--max-cudagraph-capture-size", "--max-seq-len-to-capture",
        "--compilation-config", "-cc", "-O", "--optimization-level", "--performance-mode",
    ),
    *_not_needed(
        "one way of computing it is chosen for the device", "--attention-backend", "--attention-config", "-ac",
        "--mm-encoder-attn-backend", "--disable-cascade-attn", "--kernel-config", "--enable-flashinfer-autotune",
        "--override-attention-dtype", "--ir-op-priority", "--additional-config",
    ),
    *_not_needed("what a request asks for by `seed` counts", "--seed"),
    *_not_needed("up to 20, with bounds on what a body asks for (--max-asked-tokens)", "--max-logprobs"),
    *_not_needed("the engine overlaps what it can", "--async-scheduling"),
    *_not_needed(
        "clients take turns (--client-share)", "--scheduling-policy", "--scheduler-cls",
        "--max-num-partial-prefills", "--max-long-partial-prefills",
        "--long-prefill-token-threshold",
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
    *_not_needed("/metrics has them", "--disable-log-stats", "--kv-cache-metrics", "--enable-mfu-metrics"),
    *_not_needed(
        "no request's words are logged", "--enable-log-requests", "--enable-log-outputs", "--enable-log-deltas",
        "--max-log-len",
    ),
    *_not_needed("there is no page of documentation to hide", "--disable-fastapi-docs", "--enable-offline-docs"),
    *_not_needed("memory is measured at start in any case", "--skip-mm-profiling"),
    *_not_needed("the vocabulary is always loaded", "--skip-tokenizer-init"),
    *_not_needed("what a page of an allowed origin may send is fixed", "--allowed-methods", "--allowed-headers"),
    *_absent(
        _ONE, "--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp", "--data-parallel-size", "-dp",
        "--data-parallel-size-local", "-dpl", "--data-parallel-rank", "-dpn", "--data-parallel-start-rank", "-dpr",
        "--data-parallel-address", "-dpa", "--data-parallel-rpc-port", "-dpp", "--data-parallel-backend", "-dpb",
        "--data-parallel-hybrid-lb", "--data-parallel-external-lb", "--data-parallel-supervisor-port",
        "--decode-context-parallel-size", "-dcp", "--prefill-context-parallel-size", "-pcp", "--enable-expert-parallel",
        "-ep", "--distributed-executor-backend", "--nnodes", "-n", "--node-rank", "-r", "--master-addr",
        "--master-port", "--headless", "--mm-encoder-tp-mode", "--disable-custom-all-reduce", "--worker-cls",
        "--enable-eplb", "--eplb-config", "--enable-dbo", "--all2all-backend",
    ),
    *_absent(_SPLIT, "--kv-transfer-config", "--kv-events-config", "--ec-transfer-config", "--weight-transfer-config"),
    *_absent(
        "weights and cache are served in the dtypes of --dtype", "--quantization", "-q", "--kv-cache-dtype",
        "--calculate-kv-scales", "--kv-cache-dtype-skip-layers",
    ),
    *_absent(
        "adapters are not served", "--enable-lora", "--lora-modules", "--max-loras", "--max-lora-rank", "--lora-dtype",
        "--max-cpu-loras", "--fully-sharded-loras", "--default-mm-loras",
    ),
    *_absent("tokens are not guessed ahead", "--speculative-config", "--speculative-model", "--num-speculative-tokens"),
    *_ours("--prefix-cache on or off; it is on", "--enable-prefix-caching", "--no-enable-prefix-caching"),
    *_not_needed("blocks are named by SHA-256", "--prefix-caching-hash-algo"),
    *_absent(
        "of processed media nothing is kept", "--kv-sharing-fast-prefill", "--mm-processor-cache-gb",
        "--mm-processor-cache-type", "--disable-mm-preprocessor-cache",
    ),
    *_absent(
        "constrained decoding is not served", "--guided-decoding-backend", "--structured-outputs-config",
    ),
    *_not_needed(
        "a model's family says how it calls tools", "--enable-auto-tool-choice", "--tool-call-parser",
    ),
    *_absent("no code from outside reads calls of tools, and none is run", "--tool-parser-plugin", "--tool-server"),
    *_absent("give no tools where none may be called", "--exclude-tools-when-tool-choice-none"),
    *_absent("no model here thinks aloud", "--reasoning-parser", "--reasoning-parser-plugin", "--enable-reasoning"),
    *_absent(
        "the checkpoint's own configuration counts, and its template or that of --chat-template",
        "--trust-request-chat-template", "--default-chat-template-kwargs", "--hf-overrides",
        "--override-generation-config", "--rope-scaling", "--rope-theta", "--response-role",
        "--disable-sliding-window",
    ),
    *_absent("TLS is plain; a proxy in front does more", "--ssl-ca-certs", "--ssl-cert-reqs", "--ssl-ciphers"),
    *_absent("a new certificate needs a restart", "--enable-ssl-refresh"),
    *_absent("it listens on a TCP port", "--uds"),
    *_absent("a web page sends no cookie or key by itself", "--allow-credentials"),
    *_absent(
        "no code from outside is loaded", "--middleware", "--logits-processors", "--logits-processor-pattern",
        "--io-processor-plugin", "--model-loader-extra-config", "--worker-extension-cls",
    ),
    *_absent("weights stay on the device", "--cpu-offload-gb", "--swap-space", "--enable-sleep-mode",
             "--kv-offloading-size", "--offload-backend"),
    *_absent("log lines have two forms, --log-format", "--log-config-file"),
    *_absent(
        "prompts are texts, ids and media", "--enable-prompt-embeds", "--enable-mm-embeds", "--language-model-only",
        "--interleave-mm-strings", "--video-pruning-rate", "--mm-encoder-only", "--pooler-config",
    ),
)  # fmt: skip
BY_NAME = {flag.name: flag for flag in FLAGS}
