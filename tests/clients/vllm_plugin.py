"""A plug-in of pytest under which vLLM's own HTTP tests run unchanged, against servers of this project.

It runs in the environment of these tests, beside their package `tests`, and imports nothing of this project's.
`tests.utils.RemoteOpenAIServer` starts a server of ours under the name of the model that the test wants, with those
flags that change what is asked of HTTP. Of `vllm` there are names alone, but for the few functions that prepare what
is sent. Media of vLLM's public bucket are files of examples/media, in data: URLs.
"""

import base64
import importlib.abc
import importlib.machinery
import importlib.util
import io
import json
import os
import sys
import tempfile
import types
import wave
from collections.abc import Iterator, Mapping, MutableSequence, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from PIL import Image
from transformers import AutoTokenizer
from transformers.utils import is_torch_available

REPO = Path(__file__).resolve().parents[2]
CHECKPOINT = Path(os.environ["VLLM_TESTS_CHECKPOINT"])  # what every server of this session serves
CONTEXT = int(os.environ["VLLM_TESTS_CONTEXT"])  # its longest, in tokens
OUTCOMES = Path(os.environ["VLLM_TESTS_OUTCOMES"])  # where a line goes for each test: its id and whether it passed
MEDIA = REPO / "examples" / "media"
BUCKET = "https://assets.invalid"
VIDEOS = {
    f"{BUCKET}/multimodal_asset/slow_traffic_small.mp4": "moving-right.mp4",
    f"{BUCKET}/multimodal_asset/vtest.avi": "moving-left-two-beeps.mp4",
    f"{BUCKET}/multimodal_asset/Megamind.avi": "moving-right.mp4",
}
PICTURES = {  # by name: a file, and the mode in which it is sent
    "2560px-Gfp-wisconsin-madison-the-nature-boardwalk.jpg": ("ferry.jpg", "RGB"),
    "Grayscale_8bits_palette_sample_image.png": ("chart.png", "P"),
    "1280px-Venn_diagram_rgb.svg.png": ("shapes.png", "RGB"),
    "RGBA_comp.png": ("red-circle.png", "RGBA"),
    "stop_sign.jpg": ("red-circle.png", "RGB"),
}


class Stub:
    """Of a class of vLLM, the name: what needs more fails where it is used."""


class StubModule(types.ModuleType):
    """A module that holds every name, each as an empty class."""

    __path__: MutableSequence[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (Stub,), {"__module__": self.__name__})


class StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes `vllm` and all below it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] != "vllm":
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return StubModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        vars(module).update(PREPARING.get(module.__name__, {}))


def data_url(kind: str, content: bytes) -> str:
    """As clients send a medium."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def tone() -> bytes:
    """A second of a tone of 440 Hz, as a WAV."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((1, 2, 16000, 0, "NONE", ""))
        out.writeframes((np.sin(np.arange(16000) * (2 * np.pi * 440 / 16000)) * 20000).astype("<i2").tobytes())
    return file.getvalue()


class AudioAsset:
    def __init__(self, name: str) -> None:
        sounds = {"winning_call": (MEDIA / "three-beeps.wav").read_bytes(), "mary_had_lamb": tone()}
        self.url = data_url("audio/wav", sounds[name])


def fetch_audio(url: str) -> tuple[bytes, int]:
    return base64.b64decode(url.partition(",")[2]), 16000


def encode_audio_base64(audio: bytes, rate: int) -> str:
    return base64.b64encode(audio).decode()


def get_tokenizer(tokenizer_name: str) -> Any:
    """The served checkpoint's, whatever model the test names, with the template that lies beside it."""
    found = AutoTokenizer.from_pretrained(CHECKPOINT)
    found.chat_template = json.loads((CHECKPOINT / "chat_template.json").read_text())["chat_template"]
    return found


class ModelConfig:
    """The size of the served checkpoint's vocabulary."""

    def __init__(self, **settings: Any) -> None:
        config = json.loads((CHECKPOINT / "config.json").read_text())
        self.get_vocab_size = lambda: config["thinker_config"]["text_config"]["vocab_size"]


PREPARING: Mapping[str, Mapping[str, Any]] = {
    "vllm.config": {"ModelConfig": ModelConfig},
    "vllm.assets.audio": {"AudioAsset": AudioAsset},
    "vllm.assets.base": {"VLLM_S3_BUCKET_URL": BUCKET},
    "vllm.multimodal.utils": {"fetch_audio": fetch_audio, "encode_audio_base64": encode_audio_base64},
    "vllm.platforms": {"current_platform": types.SimpleNamespace(is_rocm=lambda: False)},
    "vllm.tokenizers": {"get_tokenizer": get_tokenizer},
    "vllm.transformers_utils.repo_utils": {
        "hf_api": lambda: types.SimpleNamespace(snapshot_download=lambda repo_id: "")
    },
}


class PictureServer:
    """In the place of vLLM's server of pictures: their addresses are data: URLs."""

    def url_for(self, name: str) -> str:
        source, mode = PICTURES[name]
        kind = "jpeg" if name.endswith(".jpg") else "png"
        file = io.BytesIO()
        Image.open(MEDIA / source).convert("RGB").convert(mode).save(file, kind)
        return data_url(f"image/{kind}", file.getvalue())


def file_of(path: str, module: str) -> Any:
    """A module of this project by its file: the name `tests` belongs to vLLM here."""
    spec = importlib.util.spec_from_file_location(module, REPO / path)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[module] = found
    spec.loader.exec_module(found)
    return found


RUNNING = file_of("tests/e2e/running.py", "pixelferry_running")


class RemoteOpenAIServer:
    """A server of ours in the place of `vllm serve MODEL ARGS`."""

    def __init__(
        self, model: str, vllm_serve_args: Sequence[str], *, env_dict: Mapping[str, str] | None = None
    ) -> None:
        flags = ["--served-model-name", model, "--allow-media-root", str(MEDIA), "--workers", "1"]
        said = dict(zip(vllm_serve_args, [*vllm_serve_args[1:], ""], strict=True))
        for name in ("--api-key", "--root-path"):
            if name in said:
                flags += [name, said[name]]
        if "VLLM_API_KEY" in (env_dict or {}):
            flags += ["--api-key", (env_dict or {})["VLLM_API_KEY"]]
        if "--max-model-len" in said:
            flags += ["--max-model-len", str(min(CONTEXT, int(said["--max-model-len"])))]
        if "--limit-mm-per-prompt" in said:
            flags += ["--max-items", str(max(json.loads(said["--limit-mm-per-prompt"]).values()))]
        self._flags = flags

    def __enter__(self) -> "RemoteOpenAIServer":
        self._directory = tempfile.TemporaryDirectory()
        place = Path(self._directory.name)
        root = Path("/dev/shm") / f"pixelferry-vllm-{os.getpid()}-{place.name}"
        program = (str(REPO / ".venv/bin/python"), "-m", "server")
        self._running: AbstractContextManager[Any] = RUNNING.running(
            CHECKPOINT, root, place, *self._flags, program=program
        )
        self.url_root = self._running.__enter__().url
        return self

    def __exit__(self, *error: Any) -> None:
        self._running.__exit__(*error)
        self._directory.cleanup()

    def url_for(self, *parts: str) -> str:
        return "/".join([self.url_root, *(part.strip("/") for part in parts if part)])

    def get_async_client(self, **settings: Any) -> openai.AsyncOpenAI:
        settings.setdefault("timeout", 60)
        return openai.AsyncOpenAI(base_url=self.url_for("v1"), api_key="token-abc123", max_retries=0, **settings)


def pytest_configure() -> None:
    """Before vLLM's tests are imported: what stands in the place of their helpers."""
    is_torch_available()  # asked before there is a module of this name, and remembered
    sys.modules["torch"] = StubModule("torch")
    sys.meta_path.insert(0, StubFinder())
    for name, held in (("utils", RemoteOpenAIServer), ("conftest", Stub)):
        module = StubModule(f"tests.{name}")
        vars(module)[held.__name__] = held
        vars(module)["ROCM_EXTRA_ARGS"] = []
        sys.modules[module.__name__] = module


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """One line for a test that ran, or whose server did not start."""
    if report.when == "call" or report.failed:
        with OUTCOMES.open("a") as out:
            out.write(f"{'passed' if report.passed else 'failed'}\t{report.nodeid}\n")


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Videos of the bucket become data: URLs; the tests keep their ids."""
    for item in items:
        params = getattr(item, "callspec", types.SimpleNamespace(params={})).params
        for name, value in params.items():
            if isinstance(value, list):
                params[name] = [carried(one) for one in value]
            else:
                params[name] = carried(value)


def carried(value: Any) -> Any:
    """A video's address becomes its content."""
    if isinstance(value, str) and value in VIDEOS:
        return data_url("video/mp4", (MEDIA / VIDEOS[value]).read_bytes())
    return value


@pytest.fixture(scope="session")
def local_asset_server() -> PictureServer:
    return PictureServer()


@pytest.fixture
def image_url(request: pytest.FixtureRequest, local_asset_server: PictureServer) -> str:
    return local_asset_server.url_for(request.param)


@pytest.fixture
def image_urls(request: pytest.FixtureRequest, local_asset_server: PictureServer) -> list[str]:
    return [local_asset_server.url_for(name) for name in request.param]


@pytest.fixture(scope="session")
def video_assets() -> Iterator[list[Any]]:
    yield [types.SimpleNamespace(video_path=MEDIA / "moving-left-two-beeps.mp4")]
