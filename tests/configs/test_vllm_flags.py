"""Each flag of vLLM's server is told what it is here, truly."""

import re

from configs.settings import SETTINGS
from configs.vllm_flags import ALIKE, BY_NAME, FLAGS, VllmFlag
from tests.tables import each_of

OWN = {setting.flag for setting in SETTINGS} | {"--profile", "--no-graphs", "--no-access-log"}
# Of the examples in vLLM's documentation: none of them may be told nothing.
USED = """
--gpu-memory-utilization --max-num-seqs --max-num-batched-tokens --tensor-parallel-size -tp --trust-remote-code
--enforce-eager --limit-mm-per-prompt --allowed-local-media-path --enable-auto-tool-choice --tool-call-parser
--chat-template --quantization --kv-cache-dtype --enable-prefix-caching --enable-lora --speculative-config
--reasoning-parser --tokenizer --revision --seed --disable-log-requests --mm-processor-kwargs --download-dir
--served-model-name --max-model-len --dtype --host --port --api-key --ssl-keyfile --ssl-certfile --root-path
--allowed-origins --block-size
""".split()


@each_of("flag", FLAGS, ids=lambda flag: str(flag.name))
def test_what_is_ours_exists(flag: VllmFlag) -> None:
    assert flag.name not in OWN, "a flag of that name is taken, and needs no row"
    named = re.findall(r"--[a-z-]+", flag.told)
    assert set(named) <= OWN
    assert named or flag.kind != "ours" or flag.told.startswith("the variable ")


def test_no_flag_stands_there_twice() -> None:
    assert len(BY_NAME) == len(FLAGS) > 340
    assert set(ALIKE) <= OWN and len(set(ALIKE)) == len(ALIKE)


def test_what_people_copy_is_known() -> None:
    assert [name for name in USED if name not in BY_NAME and name not in OWN] == []
