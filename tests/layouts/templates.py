"""Chat templates of our own that do what the published ones do; facts files name them by a mark such as "@vision"."""

_HEAD = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}<|im_start|>system\n"
    "You are a helpful assistant.<|im_end|>\n{% endif %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}<|im_end|>\n{% else %}"
    "{% for content in message['content'] %}"
)
_TAIL = (
    "{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VISION = (
    "{% set n_images = namespace(value=0) %}{% set n_videos = namespace(value=0) %}"
    + _HEAD
    + "{% if content['type'] == 'image' or 'image' in content or 'image_url' in content %}"
    "{% set n_images.value = n_images.value + 1 %}{% if add_vision_id %}Picture {{ n_images.value }}: {% endif %}"
    "<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif content['type'] == 'video' or 'video' in content %}"
    "{% set n_videos.value = n_videos.value + 1 %}{% if add_vision_id %}Video {{ n_videos.value }}: {% endif %}"
    "<|vision_start|><|video_pad|><|vision_end|>" + _TAIL
)
OMNI = (
    _HEAD + "{% if content['type'] == 'image' or 'image' in content or 'image_url' in content %}"
    "<|vision_bos|><|IMAGE|><|vision_eos|>"
    "{% elif content['type'] == 'audio' or 'audio' in content or 'audio_url' in content %}"
    "<|audio_bos|><|AUDIO|><|audio_eos|>"
    "{% elif content['type'] == 'video' or 'video' in content %}<|vision_bos|><|VIDEO|><|vision_eos|>" + _TAIL
)
AUDIO = (
    "{% set n_sounds = namespace(value=0) %}"
    + _HEAD
    + "{% if content['type'] == 'audio' or 'audio' in content or 'audio_url' in content %}"
    "{% set n_sounds.value = n_sounds.value + 1 %}Audio {{ n_sounds.value }}: <|audio_bos|><|AUDIO|><|audio_eos|>\n"
    + _TAIL
)
TEXT = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}<|im_start|>system\n"
    "You are a helpful assistant.<|im_end|>\n{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Of models that see and call tools: an answer of tools is a user's turn, a call is JSON between tags.
TOOLS = (
    "{% macro said(content) %}{% if content is string %}{{ content }}{% else %}{% for part in content %}"
    "{% if part.type in ('image', 'video') %}<|vision_start|><|{{ part.type }}_pad|><|vision_end|>"
    "{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}{% endmacro %}"
    "{% for message in messages %}"
    "{% if message.role == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}"
    "{{ '\n<tool_response>\n' + said(message.content) + '\n</tool_response>' }}"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}"
    "{% else %}{{ '<|im_start|>' + message.role + '\n' + said(message.content) }}"
    "{% for call in message.tool_calls or [] %}{% set function = call.function or call %}"
    '{{ \'\n<tool_call>\n{"name": "\' + function.name + \'", "arguments": \' + (function.arguments | tojson) }}'
    "{{ '}\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Qwen3-VL's: no system message of its own, tools behind the one that is there, calls and their answers as in TOOLS.
_QWEN3_SAID = (
    "{% macro said(content, seen) %}{% if content is string %}{{ content }}{% else %}{% for part in content %}"
    "{% if seen and (part.type == 'image' or 'image' in part or 'image_url' in part) %}"
    "{% set images.value = images.value + 1 %}{% if add_vision_id %}Picture {{ images.value }}: {% endif %}"
    "<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif seen and (part.type == 'video' or 'video' in part) %}"
    "{% set videos.value = videos.value + 1 %}{% if add_vision_id %}Video {{ videos.value }}: {% endif %}"
    "<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif 'text' in part %}{{ part.text }}{% endif %}{% endfor %}{% endif %}{% endmacro %}"
)
QWEN3_VL = (
    "{% set images = namespace(value=0) %}{% set videos = namespace(value=0) %}" + _QWEN3_SAID + "{% if tools %}"
    "{{ '<|im_start|>system\n' }}{% if messages[0].role == 'system' %}{{ said(messages[0].content, false) + '\n\n' }}"
    "{% endif %}{{ '# Tools\n\n<tools>' }}{% for tool in tools %}{{ '\n' }}{{ tool | tojson }}{% endfor %}"
    "{{ '\n</tools><|im_end|>\n' }}"
    "{% elif messages[0].role == 'system' %}"
    "{{ '<|im_start|>system\n' + said(messages[0].content, false) + '<|im_end|>\n' }}{% endif %}"
    "{% for message in messages %}{% if message.role == 'user' %}"
    "{{ '<|im_start|>user\n' + said(message.content, true) + '<|im_end|>\n' }}"
    "{% elif message.role == 'assistant' %}{{ '<|im_start|>assistant\n' + said(message.content, false) }}"
    "{% for call in message.tool_calls or [] %}{% set function = call.function or call %}"
    "{% if message.content or not loop.first %}{{ '\n' }}{% endif %}"
    '{{ \'<tool_call>\n{"name": "\' + function.name + \'", "arguments": \' }}'
    "{% if function.arguments is string %}{{ function.arguments }}"
    "{% else %}{{ function.arguments | tojson }}{% endif %}"
    "{{ '}\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}"
    "{% elif message.role == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}"
    "{{ '\n<tool_response>\n' + said(message.content, true) + '\n</tool_response>' }}"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# The Thinking models': it opens a thought; of earlier ones it shows those behind the last question.
QWEN3_VL_THINKING = (
    QWEN3_VL.replace(
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}",
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}",
    )
    .replace(
        "{% for message in messages %}{% if message.role == 'user' %}",
        "{% set asked = namespace(last=messages | length - 1, found=false) %}"
        "{% for message in messages[::-1] %}{% if not asked.found and message.role == 'user' %}"
        "{% set words = said(message.content, false) %}"
        "{% if not (words.startswith('<tool_response>') and words.endswith('</tool_response>')) %}"
        "{% set asked.found = true %}{% set asked.last = messages | length - 1 - loop.index0 %}"
        "{% endif %}{% endif %}{% endfor %}"
        "{% for message in messages %}{% if message.role == 'user' %}",
    )
    .replace(
        "{{ '<|im_start|>assistant\n' + said(message.content, false) }}",
        "{% set words = said(message.content, false) %}{% set thoughts = '' %}"
        "{% if message.reasoning_content is string %}{% set thoughts = message.reasoning_content %}"
        "{% elif '</think>' in words %}"
        "{% set thoughts = words.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}"
        "{% set words = words.split('</think>')[-1].lstrip('\n') %}{% endif %}"
        "{{ '<|im_start|>assistant\n' }}{% if loop.index0 > asked.last and (loop.last or thoughts) %}"
        "{{ '<think>\n' + thoughts.strip('\n') + '\n</think>\n\n' + words.lstrip('\n') }}"
        "{% else %}{{ words }}{% endif %}",
    )
    .replace("{% if message.content or not loop.first %}", "{% if words or not loop.first %}")
)
# Pictures before the words of a message, and no words of a content that is a plain string.
PICTURES_FIRST = (
    "{% for message in messages %}{{ '' if message.role == 'system' else message.role.upper() + ': ' }}"
    "{% for part in message.content | selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}{% endfor %}"
    "{% for part in message.content | selectattr('type', 'equalto', 'text') %}"
    "{% if message.role == 'assistant' %}{% generation %}{{ part.text + ' ' }}{% endgeneration %}"
    "{% else %}{{ part.text + ' ' }}{% endif %}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
# The turns of transformers' own example of ViP-LLaVA, pictures before the words of a message.
VIP_TURNS = (
    "{% for message in messages %}"
    "{{ {'system': '', 'user': '###Human: ', 'assistant': '###Assistant: '}[message.role] }}"
    "{% for part in message.content | selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}{% endfor %}"
    "{% for part in message.content | selectattr('type', 'equalto', 'text') %}{{ part.text }}{% endfor %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '###Assistant:' }}{% endif %}"
)
# Mistral Small 3.1's; of its own system message only what changes with the day, and one sentence.
DATED_SYSTEM = (
    "{%- set today = strftime_now('%Y-%m-%d') %}"
    "{%- set default_system_message = 'You are a helpful assistant. ' + today + '.' %}"
    "{{- bos_token }}"
    "{%- if messages[0]['role'] == 'system' %}"
    "{%- if messages[0]['content'] is string %}{%- set system_message = messages[0]['content'] %}"
    "{%- else %}{%- set system_message = messages[0]['content'][0]['text'] %}{%- endif %}"
    "{%- set loop_messages = messages[1:] %}"
    "{%- else %}{%- set system_message = default_system_message %}{%- set loop_messages = messages %}{%- endif %}"
    "{{- '[SYSTEM_PROMPT]' + system_message + '[/SYSTEM_PROMPT]' }}"
    "{%- for message in loop_messages %}"
    "{%- if message['role'] == 'user' %}"
    "{%- if message['content'] is string %}{{- '[INST]' + message['content'] + '[/INST]' }}"
    "{%- else %}{{- '[INST]' }}"
    "{%- for block in message['content'] %}"
    "{%- if block['type'] == 'text' %}{{- block['text'] }}"
    "{%- elif block['type'] in ['image', 'image_url'] %}{{- '[IMG]' }}"
    "{%- else %}{{- raise_exception('Only text and image blocks are supported in message content!') }}{%- endif %}"
    "{%- endfor %}{{- '[/INST]' }}{%- endif %}"
    "{%- elif message['role'] == 'system' %}"
    "{%- if message['content'] is string %}{{- '[SYSTEM_PROMPT]' + message['content'] + '[/SYSTEM_PROMPT]' }}"
    "{%- else %}{{- '[SYSTEM_PROMPT]' + message['content'][0]['text'] + '[/SYSTEM_PROMPT]' }}{%- endif %}"
    "{%- elif message['role'] == 'assistant' %}"
    "{%- if message['content'] is string %}{{- message['content'] + eos_token }}"
    "{%- else %}{{- message['content'][0]['text'] + eos_token }}{%- endif %}"
    "{%- else %}{{- raise_exception('Only user, system and assistant roles are supported!') }}{%- endif %}"
    "{%- endfor %}"
)
TEMPLATES = {
    "@vision": VISION, "@omni": OMNI, "@audio": AUDIO, "@text": TEXT, "@pictures_first": PICTURES_FIRST,
    "@vip_turns": VIP_TURNS, "@dated_system": DATED_SYSTEM,
    "@qwen3_vl": QWEN3_VL, "@qwen3_vl_thinking": QWEN3_VL_THINKING,
}  # fmt: skip
OF_PARTS = (PICTURES_FIRST, VIP_TURNS)  # these write no words of a content that is a plain string
