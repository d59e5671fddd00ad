"""The page for those who come from elsewhere: each of MindIE's keys is told, and what is named there exists here."""

import re
from typing import get_args

from configs.settings import SETTINGS
from docs.mindie import FIELDS, KEYS, Counterpart
from server.http.routes.chat_completions import CompletionBody
from server.http.routes.completions import TextBody
from server.http.routes.native import KEYS as NATIVE
from server.http.routes.native import PARAMETERS
from server.http.routes.vllm_fields import FIELDS as VLLM_FIELDS
from tokenization.chat.parts import Kind

FLAGS = {setting.flag for setting in SETTINGS}
ROWS = [row for groups in (KEYS, FIELDS) for rows in groups.values() for row in rows]
READ = {*CompletionBody.model_fields, *TextBody.model_fields, *NATIVE, *PARAMETERS, *get_args(Kind), "text"}
READ |= {field.name for field in VLLM_FIELDS if field.treatment == "honoured"}
# Of MindIE's parameter page, release 2.3: whoever has such a file finds every key of it.
PUBLISHED = """
Version EnableDynamicAdjustTimeoutConfig ipAddress managementIpAddress port managementPort metricsPort
allowAllZeroIpListening maxLinkNum httpsEnabled fullTextEnabled tlsCaPath tlsCaFile tlsCert tlsPk tlsPkPwd tlsCrlPath
tlsCrlFiles managementTlsCaFile managementTlsCert managementTlsPk managementTlsPkPwd managementTlsCrlPath
managementTlsCrlFiles metricsTlsCaFile metricsTlsCert metricsTlsPk metricsTlsPkPwd metricsTlsCrlPath metricsTlsCrlFiles
kmcKsfMaster kmcKsfStandby inferMode interCommTLSEnabled interCommPort interCommTlsCaPath interCommTlsCaFiles
interCommTlsCert interCommPk interCommPkPwd interCommTlsCrlPath interCommTlsCrlFiles openAiSupport tokenTimeout
e2eTimeout maxRequestLength distDPServerEnabled HealthCheckConfig npuUsageThreshold backendName modelInstanceNumber
npuDeviceIds tokenizerProcessNumber multiNodesInferEnabled multiNodesInferPort interNodeTLSEnabled interNodeTlsCaPath
interNodeTlsCaFiles interNodeTlsCert interNodeTlsPk interNodeTlsPkPwd interNodeTlsCrlPath interNodeTlsCrlFiles
interNodeKmcKsfMaster maxSeqLen maxInputTokenLen truncation modelInstanceType modelName modelWeightPath worldSize
cpuMemSize npuMemSize backendType trustRemoteCode kv_trans_timeout kv_link_timeout templateType templateName
cacheBlockSize maxPrefillBatchSize maxPrefillTokens prefillTimeMsPerReq prefillPolicyType decodeTimeMsPerReq
decodePolicyType maxBatchSize maxIterTimes maxPreemptCount maxQueueDelayMicroseconds maxFirstTokenWaitTime maxN
dynamicLogLevelValidHours dynamicLogLevelValidTime plugin_params models kvPoolConfig supportSelectBatch
""".split()


def test_what_is_named_exists() -> None:
    wrong = {row.names[0]: missing for row in ROWS if (missing := missing_of(row))}
    assert not wrong and len(ROWS) > 70


def missing_of(row: Counterpart) -> set[str]:
    """What the row names and does not exist here."""
    flags, fields = set(re.findall(r"--[a-z-]+", row.told)), set(re.findall(r"`([^`]+)`", row.told))
    if row.told == "the same":
        fields |= {name.removeprefix("parameters.") for name in row.names}
    elif row.kind == "ours" and not flags | fields and not row.told.startswith("the variable "):
        return {"anything"}
    return (flags - FLAGS) | (fields - READ)


def test_every_key_of_its_page_is_told_once() -> None:
    names = [name for rows in KEYS.values() for row in rows for name in row.names]
    assert sorted(set(PUBLISHED) - set(names)) == [] and len(set(names)) == len(names)
