"""How text is split before merging, by the name `tokenizer.ggml.pre` has for it.

The patterns are those of the published tokenizers. A name that is not here cannot be guessed: the
same text would become other tokens than those the model was trained on.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers

# The letters that DeepSeek-V2's published tokenizer takes for parts of a word: those that have
# two cases, script by script as its file lists them (of Armenian the capitals only).

# Inside a character class.
LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293"
    "\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c"
    "\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5"
    "\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59"
    "\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc"
    "\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107"
    "\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee"
    "\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e"
    "\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f"
    "\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
)


_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SINGLE_DIGITS = rf"{_ENDINGS}|{_WORDS}|\p{{N}}|{_SIGNS}|{_SPACES}"
# Words may change from lower to upper case in one piece only at its start (GPT-4o, gpt-oss).
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _cased(upper: str, lower: str) -> str:
    before = r"[^\r\n\p{L}\p{N}]?"
    return rf"{before}{upper}*{lower}+{_ENDINGS}?|{before}{upper}+{lower}*{_ENDINGS}?"


_GPT4O = rf"{_cased(_UPPER, _LOWER)}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
# Kimi-K2: the same, but Chinese characters are pieces of their own.
_NOT_HAN = [f"{each[:-1]}&&[^\\p{{Han}}]]" for each in (_UPPER, _LOWER)]
_KIMI2 = rf"\p{{Han}}+|{_cased(*_NOT_HAN)}|\p{{N}}{{1,3}}|{_SIGNS}|{_SPACES}"
# DeepSeek-V3: numbers, then Chinese and Japanese, then the rest.
_AFTER_SIGN = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    rf"{_AFTER_SIGN}|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
)
# DeepSeek's tokenizers before that one: line ends, words, signs, Chinese to Korean, digits.
_EASTERN = "[一-龥\u0800-一가-\ud7ff]+"
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _EASTERN, r"\p{N}")
_DEEPSEEK2 = (
    r"[\r\n]",
    rf"\s?[{LETTERS}]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    _EASTERN,
    r"\p{N}",
)
_THREE_DIGITS = rf"{_ENDINGS}|{_WORDS}|\p{{N}}{{1,3}}|{_SIGNS}|{_SPACES}"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    patterns: tuple[str, ...]  # one after the other, on what those before left; none: GPT-2's own
    composed: bool = False  # text is brought to Unicode's composed form first
    whole_words: bool = False  # a word that is a token is not built from merges
    adds_bos: bool = False  # where the file does not say

    def splitter(self) -> pre_tokenizers.PreTokenizer:
        if not self.patterns:
            return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        splits = [pre_tokenizers.Split(Regex(each), behavior="isolated") for each in self.patterns]
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*splits, to_bytes])

    def normalizer(self) -> normalizers.Normalizer | None:
        return normalizers.NFC() if self.composed else None


_QWEN = PreTokenizer((_SINGLE_DIGITS,), composed=True)
_LLAMA3 = PreTokenizer((_THREE_DIGITS,), whole_words=True, adds_bos=True)
_GLM = PreTokenizer((_THREE_DIGITS,))
_STARCODER = PreTokenizer((r"\p{N}", _GPT2))  # Granite's too

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "qwen2": _QWEN,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "glm4": _GLM,
    "chatglm-bpe": _GLM,
    "dbrx": _GLM,
    "olmo": PreTokenizer((), composed=True),
    "gpt-2": PreTokenizer(()),
    "gpt-4o": PreTokenizer((_GPT4O,), whole_words=True),
    "refact": _STARCODER,
    "starcoder": _STARCODER,
    "deepseek-llm": PreTokenizer(_DEEPSEEK2),
    "deepseek-coder": PreTokenizer(_DEEPSEEK_CODER),
    "deepseek-v3": PreTokenizer(_DEEPSEEK3),
    "kimi-k2": PreTokenizer((_KIMI2,), whole_words=True),
}
