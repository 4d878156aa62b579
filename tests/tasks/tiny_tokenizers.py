"""Tokenizers of every common make, trained on the spot on a hundred words of two syllables."""

import json
from functools import cache
from itertools import product

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

SYLLABLES = ("ba", "de", "fi", "go", "lu", "mi", "ne", "po", "ra", "su")
KINDS = ("parent", "child", "sibling")
WORDS = tuple(a + b for a, b in product(SYLLABLES, SYLLABLES))
SPECIAL = ["<s>", "</s>", "<unk>"]
ENDS = {"word_level": ";"}  # what ends a line where there is no line break

# Each word often, in varying company; separators too seldom to be merged with a word.
_WORDS = [*WORDS, *KINDS]
_PROSE = [" ".join(_WORDS[i:] + _WORDS[:i]) for i in range(len(_WORDS))]
_SEPARATED = ["bade: figo\n lumi -> nepo\n\n rasu; bade. figo, lumi"]


def _bos(document="<s> $A"):
    return processors.TemplateProcessing(single=document, special_tokens=[("<s>", 0), ("</s>", 1)])


def _byte_bpe():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(
        vocab_size=900, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(_PROSE, trainer)
    return tokenizer


def _with_metaspace(tokenizer, document):
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = _bos(document)
    return tokenizer


def _metaspace_bpe():
    tokenizer = _with_metaspace(Tokenizer(models.BPE(unk_token="<unk>")), "<s> $A")
    trainer = BpeTrainer(
        vocab_size=900, special_tokens=SPECIAL, min_frequency=20, show_progress=False
    )
    tokenizer.train_from_iterator([*_PROSE, *_SEPARATED], trainer)
    return tokenizer


def _unigram():
    characters = sorted({*"".join(_WORDS), *":;.,>-", "\n", "▁"})
    pieces = [*((text, 0.0) for text in SPECIAL), *((f"▁{word}", -5.0) for word in _WORDS)]
    model = models.Unigram([*pieces, *((text, -9.0) for text in characters)], unk_id=2)
    return _with_metaspace(Tokenizer(model), "<s> $A </s>")


def llama_like(*joined):
    """As Llama 2: no pre-tokenizer, line breaks as bytes; `joined` pairs of tokens are merged."""
    model = json.loads(_metaspace_bpe().to_str())["model"]
    vocabulary = dict(model["vocab"])
    for text in [f"<0x{byte:02X}>" for byte in range(256)] + [a + b for a, b in joined]:
        vocabulary[text] = len(vocabulary)
    del vocabulary["\n"]
    merges = [tuple(merge) for merge in model["merges"]] + list(joined)
    tokenizer = Tokenizer(
        models.BPE(vocabulary, merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>")
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
         decoders.Strip(" ", 1, 0)]
    )  # fmt: skip
    tokenizer.post_processor = _bos()
    return wrap(tokenizer)


def word_level(*words):
    """As the oldest ones: no marks of spaces, no line breaks."""
    vocabulary = {text: i for i, text in enumerate([*SPECIAL, *":;.,>-", "->", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return wrap(tokenizer)


def wrap(tokenizer):
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


@cache
def tiny_tokenizer(make):
    """Return the tokenizer of a make; see `MAKES`."""
    if make == "llama_like":
        return llama_like()
    if make == "word_level":
        return word_level(*WORDS, *KINDS)
    if make.startswith("byte_bpe"):
        tokenizer = _byte_bpe()
        if make != "byte_bpe":
            tokenizer.post_processor = _bos(
                "<s> <s> $A" if make.endswith("double_bos") else "<s> $A"
            )
        return wrap(tokenizer)
    return wrap({"metaspace_bpe": _metaspace_bpe, "unigram": _unigram}[make]())


PREFIX = {  # what it puts before a text
    "byte_bpe": [],
    "byte_bpe_bos": [0],
    "byte_bpe_double_bos": [0],  # kept once
    "metaspace_bpe": [0],
    "llama_like": [0],
    "unigram": [0],
    "word_level": [],
}
MAKES = tuple(PREFIX)
