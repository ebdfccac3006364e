"""Chat templates in the style of model families, written for tests: what they write, drop, move and
refuse is what templates of these families do."""

from __future__ import annotations

import json
from typing import Any, NamedTuple


class Family(NamedTuple):
    template: str
    special: tuple[str, ...]  # special tokens
    ends: tuple[str, ...]  # those of them that end an answer, the usual one first
    added: tuple[str, ...] = ()  # other tokens of their own


_CHATML_TOOLS = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- '# Tools' }}
{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
"""

_CHATML_RESULT = """\
{%- elif message.role == 'tool' %}
{%- if messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
"""

# System messages stay in their place; thoughts before the user's last question are left out.
_QWEN3 = f"""\
{_CHATML_TOOLS}
{{%- set ns = namespace(last=-1) %}}
{{%- for message in messages %}}
{{%- if message.role == 'user' %}}{{%- set ns.last = loop.index0 %}}{{%- endif %}}
{{%- endfor %}}
{{%- for message in messages %}}
{{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}}
{{{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}}}
{{%- elif message.role == 'assistant' %}}
{{{{- '<|im_start|>assistant\\n' }}}}
{{%- if loop.index0 > ns.last and message.reasoning_content %}}
{{{{- '<think>\\n' + message.reasoning_content.strip('\\n') + '\\n</think>\\n\\n' }}}}
{{%- endif %}}
{{{{- message.content }}}}
{{%- for call in message.tool_calls or [] %}}
{{%- if not loop.first or message.content %}}{{{{- '\\n' }}}}{{%- endif %}}
{{{{- '<tool_call>\\n{{"name": "' + call.function.name + '", "arguments": ' }}}}
{{{{- call.function.arguments | tojson }}}}{{{{- '}}\\n</tool_call>' }}}}
{{%- endfor %}}
{{{{- '<|im_end|>\\n' }}}}
{_CHATML_RESULT}
{{%- endif %}}
{{%- endfor %}}
{{%- if add_generation_prompt %}}{{{{- '<|im_start|>assistant\\n' }}}}{{%- endif %}}
"""

# A system message is refused but for the first; calls are XML; thoughts are kept always, and the
# prompt opens them.
_QWEN35 = f"""\
{_CHATML_TOOLS}
{{%- for message in messages %}}
{{%- if message.role == 'system' %}}
{{%- if not loop.first %}}{{{{- raise_exception('a system message comes first') }}}}{{%- endif %}}
{{%- elif message.role == 'user' %}}
{{{{- '<|im_start|>user\\n' + message.content + '<|im_end|>\\n' }}}}
{{%- elif message.role == 'assistant' %}}
{{{{- '<|im_start|>assistant\\n<think>\\n' + (message.reasoning_content or '') }}}}
{{{{- '\\n</think>\\n\\n' + message.content }}}}
{{%- for call in message.tool_calls or [] %}}
{{%- if not loop.first or message.content %}}{{{{- '\\n' }}}}{{%- endif %}}
{{{{- '<tool_call>\\n<function=' + call.function.name + '>\\n' }}}}
{{%- for name, value in call.function.arguments.items() %}}
{{{{- '<parameter=' + name + '>\\n' }}}}
{{{{- value if value is string else value | tojson }}}}{{{{- '\\n</parameter>\\n' }}}}
{{%- endfor %}}
{{{{- '</function>\\n</tool_call>' }}}}
{{%- endfor %}}
{{{{- '<|im_end|>\\n' }}}}
{_CHATML_RESULT}
{{%- endif %}}
{{%- endfor %}}
{{%- if add_generation_prompt %}}{{{{- '<|im_start|>assistant\\n<think>\\n' }}}}{{%- endif %}}
"""

# One message of instructions, one call per message, thoughts or text beside it but not both.
_HARMONY = """\
{{- '<|start|>system<|message|>Reasoning: ' + (reasoning_effort or 'medium') + '<|end|>' }}
{%- set ns = namespace(name=none) %}
{%- set first = messages[0].role in ('system', 'developer') %}
{%- if first or tools %}
{{- '<|start|>developer<|message|>' }}
{%- if first %}{{- messages[0].content }}{%- endif %}
{%- for tool in tools or [] %}{{- '\\n' }}{{- tool.function | tojson }}{%- endfor %}
{{- '<|end|>' }}
{%- endif %}
{%- set rest = messages[1:] if first else messages %}
{%- for message in rest %}
{%- if message.role == 'user' %}
{{- '<|start|>user<|message|>' + message.content + '<|end|>' }}
{%- elif message.role == 'assistant' and message.tool_calls %}
{%- if message.content and message.thinking %}
{{- raise_exception('content and thinking in one message with calls') }}
{%- endif %}
{%- set thought = message.content or message.thinking %}
{%- if thought %}
{{- '<|start|>assistant<|channel|>analysis<|message|>' + thought + '<|end|>' }}
{%- endif %}
{%- set ns.name = message.tool_calls[0].function.name %}
{{- '<|start|>assistant<|channel|>commentary to=functions.' + ns.name }}
{{- ' <|constrain|>json<|message|>' }}
{{- message.tool_calls[0].function.arguments | tojson }}{{- '<|call|>' }}
{%- elif message.role == 'assistant' %}
{{- '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|end|>' }}
{%- set ns.name = none %}
{%- elif message.role == 'tool' %}
{%- if ns.name is none %}{{- raise_exception('a result without a call') }}{%- endif %}
{{- '<|start|>functions.' + ns.name + ' to=assistant<|channel|>commentary<|message|>' }}
{{- message.content | tojson }}{{- '<|end|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %}
"""

# System messages move to the top; arguments are text; a message that calls has no content; thoughts
# are not written.
_DEEPSEEK = """\
{%- set ns = namespace(system='', results=false) %}
{%- for message in messages %}
{%- if message.role == 'system' %}{%- set ns.system = ns.system + message.content %}{%- endif %}
{%- endfor %}
{{- ns.system }}
{%- for tool in tools or [] %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
{%- for message in messages %}
{%- if message.role == 'user' %}
{%- set ns.results = false %}
{{- '<｜User｜>' + message.content + '<｜Assistant｜>' }}
{%- elif message.role == 'assistant' and message.content is none %}
{%- for call in message.tool_calls %}
{{- '<｜tool▁calls▁begin｜>' if loop.first else '\\n' }}
{{- '<｜tool▁call▁begin｜>function<｜tool▁sep｜>' + call.function.name + '\\n```json\\n' }}
{{- call.function.arguments + '\\n```<｜tool▁call▁end｜>' }}
{%- endfor %}
{{- '<｜tool▁calls▁end｜><｜end▁of▁sentence｜>' }}
{%- elif message.role == 'assistant' %}
{{- message.content + '<｜end▁of▁sentence｜>' }}
{%- elif message.role == 'tool' %}
{{- '<｜tool▁output▁begin｜>' + message.content }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt and messages[-1].role == 'tool' %}{{- '<｜Assistant｜>' }}{%- endif %}
"""

# Users and assistants take turns, also after a result; ids have nine characters.
_MISTRAL = """\
{%- set first = messages[0].role == 'system' %}
{%- if first %}{{- '[SYSTEM_PROMPT]' + messages[0].content + '[/SYSTEM_PROMPT]' }}{%- endif %}
{%- if tools %}{{- '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{%- endif %}
{%- set ns = namespace(turn=0) %}
{%- set rest = messages[1:] if first else messages %}
{%- for message in rest %}
{%- if message.role == 'user' or (message.role == 'assistant' and not message.tool_calls) %}
{%- if (message.role == 'user') != (ns.turn % 2 == 0) %}
{{- raise_exception('roles must alternate user/assistant') }}
{%- endif %}
{%- set ns.turn = ns.turn + 1 %}
{%- endif %}
{%- if message.role == 'user' %}
{{- '[INST]' + message.content + '[/INST]' }}
{%- elif message.role == 'assistant' %}
{{- message.content }}
{%- for call in message.tool_calls or [] %}
{%- if call.id | length != 9 %}{{- raise_exception('ids have length 9') }}{%- endif %}
{{- '[TOOL_CALLS]' + call.function.name + '[ARGS]' + (call.function.arguments | tojson) }}
{%- endfor %}
{{- '</s>' }}
{%- elif message.role == 'tool' %}
{{- '[TOOL_RESULTS]' + message.content + '[/TOOL_RESULTS]' }}
{%- else %}{{- raise_exception('only user, assistant and tool') }}
{%- endif %}
{%- endfor %}
"""

_IM = ("<|im_end|>", "<|im_start|>")
_TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>")
_CHANNELS = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>")
_DEEP = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>")
_DEEPER = ("<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "<｜end▁of▁sentence｜>", "<｜Assistant｜>")

FAMILIES: dict[str, Family] = {
    "qwen3": Family(_QWEN3, _IM, _IM[:1], _TAGS),
    "qwen3.5": Family(_QWEN35, _IM, _IM[:1], _TAGS),
    "harmony": Family(_HARMONY, (*_CHANNELS, "<|return|>", "<|call|>"), ("<|return|>", "<|call|>")),
    "deepseek": Family(_DEEPSEEK, (*_DEEP, *_DEEPER), _DEEPER[2:3]),
    "mistral": Family(_MISTRAL, ("</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[ARGS]"), ("</s>",)),
}


def answer(family: str, thought: str, text: str, *calls: tuple[str, dict[str, Any]]) -> str:
    """What a model of this family writes. Some write no thoughts."""
    written = "\n".join(_call(family, name, arguments) for name, arguments in calls)
    match family:
        case "qwen3" | "qwen3.5":
            opened = f"{thought}\n</think>\n\n"
            begin = opened if family == "qwen3.5" else f"<think>\n{opened}"
            return begin + "\n".join(each for each in (text, written) if each)
        case "harmony":
            begin = f"<|channel|>analysis<|message|>{thought}<|end|><|start|>assistant"
            said = f"<|channel|>final<|message|>{text}"
            if not calls:
                return begin + said
            said = f"<|channel|>commentary<|message|>{text}<|end|><|start|>assistant"
            return begin + (said if text else "") + written
        case "deepseek" if calls:
            return f"{text}<｜tool▁calls▁begin｜>{written}<｜tool▁calls▁end｜>"
        case "mistral":
            return text + "".join(_call(family, *call) for call in calls)
    return text


def _call(family: str, name: str, arguments: dict[str, Any]) -> str:
    written = json.dumps(arguments, ensure_ascii=False)
    match family:
        case "qwen3":
            return f'<tool_call>\n{{"name": "{name}", "arguments": {written}}}\n</tool_call>'
        case "qwen3.5":
            tags = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in arguments.items())
            return f"<tool_call>\n<function={name}>\n{tags}</function>\n</tool_call>"
        case "harmony":
            head = f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
            return f"{head}{written}<|call|>"
        case "deepseek":
            head = f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}"
            return f"{head}\n```json\n{written}\n```<｜tool▁call▁end｜>"
    return f"[TOOL_CALLS]{name}[ARGS]{written}"
