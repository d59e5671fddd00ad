"""What MindIE's configuration, environment and requests are here: the rows of docs/migrating.md, and why some are not.

The names are those of its parameter pages, release 2.3, and of the `config.json` that it comes with.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Counterpart:
    """Of names that are told the same."""

    names: tuple[str, ...]
    kind: Literal["ours", "not needed", "absent"]
    told: str  # ours: what is given instead; flags as --flag, fields in backquotes


def _row(kind: Literal["ours", "not needed", "absent"], told: str, names: str) -> Counterpart:
    return Counterpart(names=tuple(names.split()), kind=kind, told=told)


_ONE_PORT = "probes and /metrics are routes of the one port"
_ONE_DEVICE = "one server has one device, or those of one host (--tensor-parallel); start more and spread the requests"
_SPLIT = "one server computes the whole answer"
_TURNS = "clients take turns (--client-share), and prompts are prefilled in chunks beside the decode"
_ALIKE = "the same"

KEYS: Mapping[str, Sequence[Counterpart]] = {
    "top level": (
        _row("not needed", "settings are named, and an unknown one stops the start", "Version"),
        _row("not needed", "each time has a flag of its own", "EnableDynamicAdjustTimeoutConfig"),
    ),
    "LogConfig": (
        _row("ours", "--log-level", "logLevel"),
        _row("absent", "it is set at start", "dynamicLogLevel dynamicLogLevelValidHours dynamicLogLevelValidTime"),
        _row("not needed", "lines go to standard error", "logPath logFileSize logFileNum"),
    ),
    "ServerConfig": (
        _row("ours", "--host", "ipAddress"),
        _row("ours", "--port", "port"),
        _row("not needed", _ONE_PORT, "managementIpAddress managementPort metricsPort"),
        _row("not needed", "--host 0.0.0.0 says it; a server without keys then warns", "allowAllZeroIpListening"),
        _row("ours", "--max-requests, and --max-connections", "maxLinkNum"),
        _row("ours", "--ssl-certfile: with it the server speaks TLS and nothing else", "httpsEnabled tlsCert"),
        _row("ours", "--ssl-keyfile", "tlsPk"),
        _row("absent", "the key has no password: guard the file", "tlsPkPwd kmcKsfMaster kmcKsfStandby"),
        _row(
            "absent", "clients show an API key (--api-key-file); a proxy in front asks for certificates",
            "tlsCaPath tlsCaFile tlsCrlPath tlsCrlFiles",
        ),
        _row(
            "not needed", _ONE_PORT,
            "managementTlsCaFile managementTlsCert managementTlsPk managementTlsPkPwd managementTlsCrlPath "
            "managementTlsCrlFiles metricsTlsCaFile metricsTlsCert metricsTlsPk metricsTlsPkPwd metricsTlsCrlPath "
            "metricsTlsCrlFiles",
        ),
        _row(
            "absent", _SPLIT,
            "inferMode interCommTLSEnabled interCommPort interCommTlsCaPath interCommTlsCaFiles interCommTlsCert "
            "interCommPk interCommPkPwd interCommTlsCrlPath interCommTlsCrlFiles distDPServerEnabled",
        ),
        _row("absent", "an event of a stream holds what is new", "fullTextEnabled"),
        _row("not needed", "OpenAI's form with vLLM's fields, always", "openAiSupport"),
        _row("ours", "--step-seconds, for one step of the engine", "tokenTimeout"),
        _row("absent", "an answer ends with `max_tokens`, or when its client leaves", "e2eTimeout"),
        _row("ours", "--max-body-mib", "maxRequestLength"),
        _row("ours", "--canary-seconds: a silent engine is asked for a token", "HealthCheckConfig npuUsageThreshold"),
    ),
    "BackendConfig": (
        _row("not needed", "there is one engine", "backendName"),
        _row("absent", _ONE_DEVICE, "modelInstanceNumber"),
        _row("ours", "the variable ASCEND_RT_VISIBLE_DEVICES", "npuDeviceIds"),
        _row("ours", "--workers", "tokenizerProcessNumber"),
        _row(
            "absent", _ONE_DEVICE,
            "multiNodesInferEnabled multiNodesInferPort interNodeTLSEnabled interNodeTlsCaPath interNodeTlsCaFiles "
            "interNodeTlsCert interNodeTlsPk interNodeTlsPkPwd interNodeTlsCrlPath interNodeTlsCrlFiles "
            "interNodeKmcKsfMaster interNodeKmcKsfStandby",
        ),
        _row("absent", "the KV cache stays on the device", "kvPoolConfig"),
    ),
    "ModelDeployConfig": (
        _row("ours", "--max-model-len", "maxSeqLen"),
        _row("not needed", "prompt and answer share --max-model-len", "maxInputTokenLen"),
        _row("absent", "a prompt that is too long is a 400: cut, a chat loses its media and turns", "truncation"),
    ),
    "ModelConfig": (
        _row("ours", "--served-model-name", "modelName"),
        _row("ours", "--model", "modelWeightPath"),
        _row("ours", "no --model: the demo model answers, with the real engine", "modelInstanceType"),
        _row("ours", "--tensor-parallel", "worldSize tp"),
        _row("absent", _ONE_DEVICE, "dp cp sp pp moe_tp moe_ep"),
        _row("ours", "--kv-cache-mib; without it the server measures what is left (--kv-cache-share)", "npuMemSize"),
        _row("absent", "a preempted sequence is computed again", "cpuMemSize"),
        _row("not needed", "one way of computing it is chosen for the device (--device)", "backendType"),
        _row("not needed", "no code of a checkpoint runs", "trustRemoteCode"),
        _row("not needed", "it is read from the checkpoint", "models"),
        _row("ours", "--prefix-cache for prefix_cache; splitfuse is always on; no other", "plugin_params"),
        _row("absent", _SPLIT, "kv_trans_timeout kv_link_timeout async_scheduler_wait_time"),
    ),
    "ScheduleConfig": (
        _row("ours", "--block-size", "cacheBlockSize"),
        _row("ours", "--max-batched-tokens, for prompts and answers of one step", "maxPrefillTokens"),
        _row("ours", "--max-seqs", "maxBatchSize"),
        _row("ours", "--max-n", "maxN"),
        _row("not needed", "a request says `max_tokens`; without it --max-model-len bounds a chat", "maxIterTimes"),
        _row(
            "not needed", _TURNS,
            "templateType templateName maxPrefillBatchSize prefillTimeMsPerReq prefillPolicyType decodeTimeMsPerReq "
            "decodePolicyType prefillExpectedTime decodeExpectedTime supportSelectBatch maxPreemptCount "
            "maxQueueDelayMicroseconds maxFirstTokenWaitTime bufferResponseEnabled",
        ),
    ),
    "environment": (
        _row("ours", "--kv-cache-share", "NPU_MEMORY_FRACTION"),
        _row("ours", "--step-seconds", "TOKENIZER_ENCODE_TIMEOUT"),
        _row("ours", "--host", "MIES_CONTAINER_IP"),
        _row("not needed", _ONE_PORT, "MIES_CONTAINER_MANAGEMENT_IP MIES_SERVICE_MONITOR_MODE"),
        _row("not needed", "media lie in shared memory, never on a disk", "LOCAL_CACHE_DIR"),
        _row("ours", "--allowed-media-domain, once for each; none by default", "ALLOWED_MEDIA_DOMAINS_ENV"),
    ),
}  # fmt: skip

FIELDS: Mapping[str, Sequence[Counterpart]] = {
    "/v1/chat/completions": (
        _row(
            "ours", _ALIKE,
            "model messages stream max_tokens temperature top_p top_k seed stop stop_token_ids n logprobs top_logprobs "
            "include_stop_str_in_output skip_special_tokens ignore_eos presence_penalty frequency_penalty "
            "repetition_penalty tools tool_choice response_format chat_template_kwargs",
        ),
        _row("ours", "`n`: only the answers that are asked for are computed", "best_of"),
        _row("absent", "beam search is not supported: `n` draws several answers", "use_beam_search"),
        _row("not needed", "clients take turns", "priority"),
        _row("absent", "leave, and the answer ends", "timeout"),
        _row("absent", "`max_tokens` bounds thoughts and words together", "thinking_budget"),
        _row("ours", "`chat_template_kwargs`, for a template that asks for it", "enable_thinking"),
    ),
    "/infer, /generate, /generate_stream: POST /chat": (
        _row("ours", "`inputs`: a list of parts, `text`, `image`, `video` or `audio` each", "inputs prompt"),
        _row("ours", _ALIKE, "stream parameters"),
        _row("ours", "`image`, `video`, `audio`", "image_url video_url audio_url"),
        _row(
            "ours", _ALIKE,
            "parameters.temperature parameters.top_k parameters.top_p parameters.seed parameters.repetition_penalty "
            "parameters.stop",
        ),
        _row("ours", "`max_tokens` in `parameters`", "parameters.max_new_tokens"),
        _row("ours", "`temperature` 0 for false", "parameters.do_sample"),
        _row("not needed", "usage and the reason of the end are always told", "parameters.details"),
        _row("absent", "`top_p` or `min_p` does the like", "parameters.typical_p"),
        _row("ours", "`n`", "parameters.best_of"),
        _row("absent", "an answer is what is new", "parameters.return_full_text parameters.decoder_input_details"),
        _row("absent", "answers bear no watermark", "parameters.watermark"),
        _row("absent", "a prompt that is too long is a 400", "parameters.truncate"),
        _row("not needed", "clients take turns; leave, and the answer ends", "parameters.priority parameters.timeout"),
    ),
    "/v1/tokenizer: POST /tokenize": (
        _row("ours", "`prompt` or `messages`, or `inputs` as for /chat", "inputs"),
    ),
    "/infer_token, /v2/models/{m}/infer: POST /v1/completions": (
        _row("ours", "`prompt`: a list of token ids", "input_id inputs"),
    ),
}  # fmt: skip
