"""The table of settings: for each its one name, place in ServeConfig, unit, range and help."""

from typing import get_args

from configs.serve import KIB, MEGA, MIB, Device, Dtype, Hub, LogFormat, LogLevel
from configs.setting import Setting

SETTINGS: tuple[Setting, ...] = (
    Setting(
        name="model", section="model", field="path", kind="checkpoint",
        help="checkpoint directory, or a model's name on a hub, which is downloaded: ORG/NAME, ORG/NAME@REVISION; the "
        "embedded demo model when absent",
    ),
    Setting(
        name="hub", section="model", field="hub", kind="choice", choices=get_args(Hub),
        help="where a model's name is looked up; each hub's own client downloads it and keeps it in its own cache",
    ),
    Setting(
        name="served_model_name", section="model", field="served_name", kind="text",
        help="the name that clients ask for; the directory's own name, or ORG/NAME, when absent",
    ),
    Setting(name="host", section="http", field="host", kind="text", help="address to listen on"),
    Setting(
        name="port", section="http", field="port", kind="int", low=0, high=65535,
        help="TCP port to listen on; 0 takes a free one",
    ),
    Setting(
        name="max_body_mib", section="http", field="max_body_bytes", kind="int", unit="MiB", scale=MIB, low=1,
        high=4096, help="largest request body; a larger one is a 413",
    ),
    Setting(
        name="max_inflight_mib", section="http", field="max_inflight_bytes", kind="int", unit="MiB", scale=MIB, low=1,
        high=1 << 20, help="bodies of all unfinished requests together; what comes on top is a 429",
    ),
    Setting(
        name="max_head_kib", section="http", field="max_head_bytes", kind="int", unit="KiB", scale=KIB, low=1,
        high=1024, help="request line and headers of one request; more is a 431",
    ),
    Setting(
        name="max_unread_mib", section="http", field="max_unread_bytes", kind="int", unit="MiB", scale=MIB, low=1,
        high=1 << 20, help="bytes of answers that clients have not taken, of all connections together; beyond it the "
        "connection whose client has taken nothing for longest is cut",
    ),
    Setting(
        name="max_connections", section="http", field="max_connections", kind="int", low=1, high=1 << 20,
        help="open connections, fewer where the hard limit of open files leaves fewer; a new one takes the place of "
        "the one that has asked for nothing for longest, and is a 503 when all are busy",
    ),
    Setting(
        name="receive_seconds", section="http", field="receive_seconds", kind="float", unit="seconds", low=1, high=3600,
        help="how long a request's head may take, and how long its body may stand still; then it is a 408",
    ),
    Setting(
        name="receive_kib_per_second", section="http", field="receive_rate", kind="int", unit="KiB/s", scale=KIB, low=1,
        high=1 << 20, help="least rate of a body; one that is receive_seconds behind it is a 408",
    ),
    Setting(
        name="body_seconds", section="http", field="body_seconds", kind="float", unit="seconds", low=1, high=86400,
        help="how long one body may take, whatever its rate; then it is a 408",
    ),
    Setting(
        name="send_seconds", section="http", field="send_seconds", kind="float", unit="seconds", low=1, high=86400,
        help="how long a client may take nothing of what there is for it; then it is cut, and its request aborted",
    ),
    Setting(
        name="max_requests", section="http", field="max_requests", kind="int", low=1, high=65536,
        help="requests accepted and unfinished at once; the next one is a 429",
    ),
    Setting(
        name="max_n", section="http", field="max_n", kind="int", low=1, high=64,
        help="answers that one chat may ask for (`n`); each takes a place in the engine of its own",
    ),
    Setting(
        name="max_asked_tokens", section="http", field="max_asked_tokens", kind="int", low=1, high=1 << 40,
        help="tokens that one body may ask for: prompts + `n` x (answers + prompts with log-probabilities), each "
        "twice for each log-probability that stands with it",
    ),
    Setting(
        name="max_asked_mib", section="http", field="max_asked_bytes", kind="int", unit="MiB", scale=MIB, low=1,
        high=1 << 20, help="bytes that one body may ask for: its answers as JSON, and its parameters for each prompt",
    ),
    Setting(
        name="drain_seconds", section="http", field="drain_seconds", kind="float", unit="seconds", low=0, high=3600,
        help="how long SIGTERM waits for running requests",
    ),
    Setting(
        name="api_key", section="http", field="api_keys", kind="secrets",
        help="key that clients send as `Authorization: Bearer KEY`; repeatable; `ps` shows it to every user of the "
        "machine: prefer PIXELFERRY_API_KEY or api_key_file",
    ),
    Setting(
        name="api_key_file", section="http", field="api_key_file", kind="file",
        help="file with one key a line, read again when it changes",
    ),
    Setting(
        name="ssl_certfile", section="http", field="ssl_certfile", kind="file",
        help="certificate chain in PEM: the server speaks TLS and nothing else",
    ),
    Setting(
        name="ssl_keyfile", section="http", field="ssl_keyfile", kind="file",
        help="private key of ssl_certfile in PEM, without a password; absent when it stands in ssl_certfile",
    ),
    Setting(
        name="root_path", section="http", field="root_path", kind="prefix",
        help="prefix that a proxy leaves in the path: every route answers with and without it",
    ),
    Setting(
        name="url_file", section="http", field="url_file", kind="written",
        help="file for the server's URL while it listens; the container's health check reads it",
    ),
    Setting(
        name="allowed_origins", section="http", field="allowed_origins", kind="origins",
        help="origins of web pages whose scripts may use this server (CORS), with commas between them, or * for all; "
        "none by default",
    ),
    Setting(
        name="allowed_host", section="http", field="allowed_hosts", kind="hosts",
        help="name by which clients may call this server, beside localhost and loopback addresses; repeatable; asked "
        "for where it listens on a loopback address, elsewhere all names count when absent",
    ),
    Setting(
        name="show_model_root", section="http", field="show_model_root", kind="switch",
        help="/v1/models tells the checkpoint's directory, where load testers find the tokenizer; on a loopback "
        "address it always does",
    ),
    Setting(
        name="allow_media_root", section="media", field="roots", kind="paths",
        help="directory whose files a chat may name by path; repeatable; none by default",
    ),
    Setting(
        name="max_items", section="media", field="max_items", kind="int", low=0, high=4096,
        help="media items in one prompt, history included",
    ),
    Setting(
        name="max_file_mib", section="media", field="max_file_bytes", kind="int", unit="MiB", scale=MIB, low=1,
        high=4096, help="largest media file, local or in a data: URL, as encoded",
    ),
    Setting(
        name="max_source_pixels", section="media", field="max_source_pixels", kind="int", unit="pixels", low=1,
        high=1 << 32, help="width x height that an image's header may announce; more is refused before decoding",
    ),
    Setting(
        name="max_pixels", section="media", field="max_pixels", kind="int", unit="pixels", low=3136, high=1 << 28,
        help="pixels of one image or frame after resizing; caps the checkpoint's own bound, which takes its place when "
        "absent with --device npu or cuda",
    ),
    Setting(
        name="max_frames", section="media", field="max_frames", kind="int", unit="frames", low=2, high=16384,
        help="frames of one video that reach the model; also the longest list of frames",
    ),
    Setting(
        name="max_video_seconds", section="media", field="max_video_seconds", kind="float", unit="seconds", low=1,
        high=86400, help="length of one video; a longer one is refused before it is decoded",
    ),
    Setting(
        name="max_decoded_frames", section="media", field="max_decoded_frames", kind="int", unit="frames", low=1,
        high=1 << 20, help="frames of one video decoded to get at those looked at; above full HD they count as more",
    ),
    Setting(
        name="max_video_pixels", section="media", field="max_video_pixels", kind="int", unit="pixels", low=3136,
        high=1 << 32, help="pixels of all frame pairs of one video after resizing: frames / 2 x height x width",
    ),
    Setting(
        name="max_audio_seconds", section="media", field="max_audio_seconds", kind="float", unit="seconds", low=1,
        high=86400, help="length of one sound, also of a video's; decoding a longer one stops there and it is refused",
    ),
    Setting(
        name="max_effort_mpixels", section="media", field="max_effort_pixels", kind="int", unit="megapixels",
        scale=MEGA, low=1, high=1 << 20, help="work that decoding all media of one request may take, in pixels of "
        "a photograph that are decoded and resized, 10 ns of a core each; other formats count by what they take",
    ),
    Setting(
        name="free_effort_mpixels", section="media", field="free_effort_pixels", kind="int", unit="megapixels",
        scale=MEGA, low=0, high=1 << 20, help="work that the media of one request may take however few bytes they "
        "have; each byte allows 4,096 pixels more, one of a video 12,288",
    ),
    Setting(
        name="shm_root", section="shm", field="root", kind="path",
        help="directory of the shared memory, or one that others may enter, too: then one of ours inside it; one "
        "directory per user on the machine's shared-memory mount when absent",
    ),
    Setting(
        name="shm_mib", section="shm", field="pool_bytes", kind="int", unit="MiB", scale=MIB, low=1, high=1 << 20,
        help="shared memory that the pool may hold; what does not fit now is a 429",
    ),
    Setting(
        name="device", section="engine", field="device", kind="choice", choices=get_args(Device),
        help="where the model runs; npu is Atlas A2 or A3; auto takes an npu that can be served, else cuda where torch "
        "sees one, else cpu",
    ),
    Setting(
        name="dtype", section="engine", field="dtype", kind="choice", choices=get_args(Dtype),
        help="the model's arithmetic; auto takes the checkpoint's own, or bfloat16 where the device does not serve it "
        "(float16 on a cpu, float32 on an npu)",
    ),
    Setting(
        name="max_model_len", section="engine", field="max_model_len", kind="int", unit="tokens", low=16, high=1 << 20,
        help="prompt and answer of one request together; the checkpoint's limit, at most 32768, when absent",
    ),
    Setting(
        name="max_seqs", section="engine", field="max_seqs", kind="int", low=1, high=4096,
        help="sequences in the engine at once; further requests queue in the server",
    ),
    Setting(
        name="max_batched_tokens", section="engine", field="max_batched_tokens", kind="int", unit="tokens", low=1,
        high=1 << 20, help="token budget of one engine step; a longer prompt is prefilled in chunks",
    ),
    Setting(
        name="block_size", section="engine", field="block_size", kind="int", unit="tokens", low=1, high=1024,
        help="tokens in one block of the KV cache; an npu takes 128",
    ),
    Setting(
        name="kv_cache_mib", section="engine", field="kv_cache_bytes", kind="int", unit="MiB", scale=MIB, low=1,
        high=1 << 24, help="size of the KV cache, instead of its share; at most what max_seqs x max_model_len use",
    ),
    Setting(
        name="kv_cache_share", section="engine", field="kv_cache_share", kind="float", low=0.01, high=1,
        help="share, for the KV cache, of the memory free with the weights loaded, on a cpu (0.5 when absent), or of "
        "what an npu or cuda has left beside all that was measured (0.9); at most what max_seqs x max_model_len use",
    ),
    Setting(
        name="embedding_mib", section="engine", field="embedding_bytes", kind="int", unit="MiB", scale=MIB, low=1,
        high=1 << 24, help="host memory for the encoder outputs of unfinished requests",
    ),
    Setting(
        name="graphs", section="engine", field="graphs", kind="switch",
        help="decode steps as graphs that are captured at start; on an npu alone, without effect elsewhere",
    ),
    Setting(
        name="threads", section="engine", field="threads", kind="int", low=1, high=1024,
        help="CPU threads of the engine; when absent by cores, affinity and CPU quota, as the table at start says",
    ),
    Setting(
        name="log_level", section="log", field="level", kind="choice", choices=get_args(LogLevel),
        help="what is logged, of all processes; access lines are info, a 4xx is a warning, a 5xx and a cut stream an "
        "error",
    ),
    Setting(
        name="log_format", section="log", field="format", kind="choice", choices=get_args(LogFormat),
        help="how log lines are written; json is one object a line",
    ),
    Setting(
        name="access_log", section="log", field="access", kind="switch",
        help="one line for each answered request, but probes and /metrics; errors leave their line either way",
    ),
    Setting(
        name="workers", section="", field="workers", kind="int", low=1, high=256,
        help="tokenizer worker processes, which decode media and build prompts; one more takes chats without media",
    ),
    Setting(
        name="worker_memory_mib", section="worker", field="memory_bytes", kind="int", unit="MiB", scale=MIB, low=512,
        high=1 << 20, help="private memory that one worker may take; a request that needs more of it is a 400",
    ),
    Setting(
        name="worker_keep_mib", section="worker", field="keep_bytes", kind="int", unit="MiB", scale=MIB, low=16,
        high=1 << 20, help="memory that a worker keeps between jobs above what it had at first, so as not to fetch it "
        "anew, at most a quarter of worker_memory_mib; what is more goes back to the system, and a worker that then "
        "still has more than half of it is replaced",
    ),
    Setting(
        name="pulse_seconds", section="", field="pulse_seconds", kind="float", unit="seconds", low=1, high=3600,
        help="a worker or engine that is silent and does nothing for so long is killed and started again",
    ),
    Setting(
        name="load_seconds", section="", field="load_seconds", kind="float", unit="seconds", low=1, high=86400,
        help="how long a worker or engine that loads may take to get further, by one more tensor or stage; then it is "
        "killed and started again",
    ),
    Setting(
        name="wait_seconds", section="", field="wait_seconds", kind="float", unit="seconds", low=1, high=86400,
        help="how long a request waits while no worker, or no engine, is up; then it is a 503",
    ),
    Setting(
        name="step_seconds", section="", field="step_seconds", kind="float", unit="seconds", low=1, high=86400,
        help="how long one engine step or worker job may take; each token, patch and media item adds to it",
    ),
    Setting(
        name="canary_seconds", section="", field="canary_seconds", kind="float", unit="seconds", low=0, high=3600,
        help="an engine that gave nobody a token for so long is asked for one by the server itself; 0: never",
    ),
    Setting(
        name="canary_deadline_seconds", section="", field="canary_deadline_seconds", kind="float", unit="seconds",
        low=0.1, high=3600,
        help="an engine that owes such a token and does no work for so long is not ready; three times in a row, and it "
        "is started again",
    ),
)  # fmt: skip
