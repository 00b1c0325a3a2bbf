"""Text to token ids and back: one tokenizer wrapper, one batch type, and what a person sees of each token.

1. `Tokenizer` wraps the `tokenizers` package (never transformers: importing it costs seconds) and keeps the rules that
   tokenizer.json does not hold: which token begins a text, which ends it, the chat template. Of what tokenizer.json puts
   around a text it keeps one token before (BOS, BERT's [CLS]) and one after (BERT's [SEP]).
2. `Tokens` (in tokenbatch.py) is a batch of ids with its mask.
3. `TokenView` is a token for display, cut from the bytes of the text: a character that several tokens share, a space or
   a control sign stays readable, and the joined texts are the prompt again. WordPiece drops spaces and may drop case, so
   there they are the prompt only if it is given, and otherwise what the tokenizer decodes.

Special tokens that stand in a text, such as `<|im_start|>`, become special tokens, as in transformers: chat templates
need it. A text from an untrusted source can therefore contain them; `TokenView.kind` shows them.
"""

import functools
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
import torch
from jaxtyping import Int
from tokenizers.processors import TemplateProcessing
from torch import Tensor

from interp import artifact
from interp.chat import Chatting
from interp.tokenbatch import Tokens
from interp.tokenrules import default_template, named_tokens, read_rules
from interp.tokenview import Spelling, TokenView, cut, step_types, token_views


class Tokenizer(Chatting):
    """Encodes and decodes with the `tokenizers` backend; immutable by convention.

    Args:
        backend: the tokenizer; its own padding, truncation and special-token template are not used.
        bos_id: token that begins a text, None where there is none.
        eos_id: token that ends a text.
        pad_id: what fills padded places; masked everywhere, so None (eos, else 0) is safe.
        special_ids: tokens that stand for no text.
        add_bos: the tokenizer's own rule, used where `bos=None`.
        closing_id: token that the tokenizer's own rule puts after a text, such as BERT's [SEP]; None for no such rule.
        chat_template: Jinja source, None for a model without one.
        named_tokens: special tokens as chat templates see them, `{"bos_token": "<s>", ...}`; None for those of bos_id,
            eos_id and pad_id that are given.
        name: for messages and cards.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        bos_id: int | None = None,
        eos_id: int | None = None,
        pad_id: int | None = None,
        special_ids: Sequence[int] | set[int] | frozenset[int] = (),
        add_bos: bool = False,
        closing_id: int | None = None,
        chat_template: str | None = None,
        named_tokens: Mapping[str, str] | None = None,
        name: str = "tokenizer",
    ) -> None:
        if add_bos and bos_id is None:
            raise ValueError(f"{name}: add_bos=True needs a bos_id")
        if closing_id is not None and backend.id_to_token(closing_id) is None:
            raise ValueError(f"{name}: closing_id={closing_id} is not in the vocabulary")
        backend.no_padding()
        backend.no_truncation()
        self.backend = backend
        self.bos_id = bos_id
        self.eos_id = eos_id
        self.pad_id = pad_id if pad_id is not None else (eos_id if eos_id is not None else 0)
        named = (bos_id, eos_id, pad_id, closing_id)
        self.special_ids = frozenset(special_ids) | {i for i in named if i is not None}
        self.add_bos = add_bos
        self.closing_id = closing_id
        self.chat_template = chat_template
        given = {"bos_token": bos_id, "eos_token": eos_id, "pad_token": pad_id}
        own = {
            key: token for key, i in given.items() if i is not None and (token := backend.id_to_token(i)) is not None
        }
        self.named_tokens = dict(own if named_tokens is None else named_tokens)
        self.name = name

    # ------------------------------------------------------------------------------------------- from and to disk

    @classmethod
    def from_folder(cls, path: str | os.PathLike[str]) -> "Tokenizer":
        """Read tokenizer.json, with tokenizer_config.json and chat_template.jinja where they are there."""
        return cls.from_file(Path(path) / "tokenizer.json")

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> "Tokenizer":
        """Read one tokenizer.json and the files that belong to it in the same folder.

        Raises:
            ValueError: no such file, damaged, a special token that the vocabulary lacks, or a rule other than
                "at most one token before the text, and at most one after it".
        """
        path = Path(path)
        if not path.is_file():
            raise ValueError(
                f"there is no {path.name} in {path.parent}: make one with transformers, "
                "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
            )
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the backend raises a bare Exception
            raise ValueError(f"{path} is not a usable tokenizer.json ({error})") from None
        # Before its rules are read off an encoding: sentence encoders' files have both switched on.
        backend.no_padding()
        backend.no_truncation()
        config_file, template_file = path.parent / "tokenizer_config.json", path.parent / "chat_template.jinja"
        config = artifact.read_json(config_file) if config_file.is_file() else {}
        template = template_file.read_text("utf-8") if template_file.is_file() else config.get("chat_template")
        return cls(
            backend,
            **read_rules(backend, config, str(path)),
            chat_template=default_template(template),
            named_tokens=named_tokens(config),
            name=path.parent.name,
        )

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write tokenizer.json and tokenizer_config.json, which `from_folder` and transformers read."""
        names = {"bos_token": self.bos_id, "eos_token": self.eos_id, "pad_token": self.pad_id}
        config: dict[str, Any] = dict(self.named_tokens)
        config |= {key: self.backend.id_to_token(i) for key, i in names.items() if i is not None}
        config |= {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        config |= {"chat_template": self.chat_template} if self.chat_template is not None else {}
        backend = tokenizers.Tokenizer.from_str(self.backend.to_str())
        before, after = self.bos_id if self.add_bos else None, self.closing_id
        around = {i: backend.id_to_token(i) for i in (before, after) if i is not None}
        single = [
            *(around[i] for i in (before,) if i is not None),
            "$A",
            *(around[i] for i in (after,) if i is not None),
        ]
        # In the post-processor, where every reader looks for the rule.
        backend.post_processor = (
            TemplateProcessing(single=single, special_tokens=[(token, i) for i, token in around.items()])
            if around
            else None
        )
        artifact.atomic_write(Path(folder) / "tokenizer.json", backend.to_str())
        artifact.write_json(Path(folder) / "tokenizer_config.json", config)

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included; a model's embedding may have more rows."""
        return self.backend.get_vocab_size()

    @property
    def drops_spaces(self) -> bool:
        """Whether ids do not say where a text has spaces (WordPiece)."""
        return "WordPiece" in step_types(self._spec["decoder"])

    @functools.cached_property
    def hash(self) -> str:
        """Hash of everything that decides the ids of a text: equal hashes encode alike."""
        parts = ("added_tokens", "normalizer", "pre_tokenizer", "model", "decoder")
        rules = [self.bos_id, self.eos_id, self.add_bos, sorted(self.special_ids)]
        rules += [] if self.closing_id is None else [{"closing_id": self.closing_id}]
        return artifact.hash_json([[self._spec[part] for part in parts], rules])

    def __repr__(self) -> str:
        closing = "" if self.closing_id is None else f", closing_id={self.closing_id}"
        return f"Tokenizer({self.name!r}, vocab_size={self.vocab_size}, add_bos={self.add_bos}{closing})"

    # -------------------------------------------------------------------------------------------- encode and decode

    def tokenize(
        self,
        text: str | Sequence[str],
        bos: bool | None = None,
        pad: str = "right",
        max_length: int | None = None,
        close: bool | None = None,
    ) -> Tokens:
        """Encode one text or several into a padded batch.

        Args:
            text: a text, or several.
            bos: put a BOS before each text; None follows the tokenizer's own rule. A text that begins with one keeps it
                and gets no second. It governs the beginning alone.
            pad: side of the pads, "right" or "left".
            max_length: most tokens that a text may have, BOS and closing token included; None for no limit. Nothing is
                ever cut off.
            close: put the closing token (BERT's [SEP]) after each text; None follows the tokenizer's own rule, also with
                `bos=False`. A text that ends with one gets no second.

        Raises:
            ValueError: no text, an empty text with nothing around it, a text over `max_length`, or a BOS or closing token
                that does not exist.
        """
        texts = [text] if isinstance(text, str) else list(text)
        if not texts:
            raise ValueError("there is no text to tokenize: the list is empty")
        if pad not in ("right", "left"):
            raise ValueError(f"pad must be 'right' or 'left', got {pad!r}")
        plain = self._encode_batch(texts)
        opened = [self._with_bos(ids, bos) for ids in plain]
        rows = [ids + self._closing(own, close) for ids, own in zip(opened, plain)]
        for index, ids in enumerate(rows):
            if not ids:
                raise ValueError(
                    f"text {index} is empty ({texts[index]!r}) and no BOS is added: drop it, or pass bos=True"
                )
            if max_length is not None and len(ids) > max_length:
                raise ValueError(
                    f"text {index} has {len(ids)} tokens, more than the {max_length} that fit: "
                    f"shorten it or split it into several texts (it begins {texts[index][:40]!r})"
                )
        width = max(map(len, rows))
        ids = torch.full((len(rows), width), self.pad_id)
        mask = torch.zeros((len(rows), width), dtype=torch.bool)
        for index, row in enumerate(rows):
            place = slice(0, len(row)) if pad == "right" else slice(width - len(row), width)
            ids[index, place] = torch.tensor(row)
            mask[index, place] = True
        return Tokens(ids, mask, bos_added=any(len(a) > len(b) for a, b in zip(opened, plain)), texts=texts)

    def encode(self, text: str, bos: bool | None = None, close: bool | None = None) -> list[int]:
        """Token ids of one text, `bos` and `close` as in `tokenize`; an empty text has none but the BOS and the closing
        token."""
        plain = self._encode_batch([text])[0]
        return self._with_bos(plain, bos) + self._closing(plain, close)

    def decode(self, ids: Sequence[int] | Int[Tensor, "..."], skip_special: bool = False) -> str:
        """Text of token ids; a character that is cut off shows as U+FFFD."""
        return self.backend.decode(_as_list(ids), skip_special_tokens=skip_special)

    def to_single_token(self, text: str) -> int:
        """The id of a text that is exactly one token. Mind the space: " Paris" and "Paris" are two different tokens."""
        ids = self._encode_batch([text])[0]
        if len(ids) != 1:
            pieces = [view.display for view in self.views(ids)]
            raise ValueError(f"{text!r} is {len(ids)} tokens {pieces}, not one: give a text that is a single token")
        return ids[0]

    def to_str_tokens(self, x: str | Sequence[int] | Int[Tensor, "..."], bos: bool | None = None) -> list[str]:
        """Each token decoded alone, for labels; `bos` as in `tokenize` where `x` is a text. WordPiece keeps its "##"."""
        ids = self.encode(x, bos) if isinstance(x, str) else _as_list(x)
        if self._spelling.words:
            return [self.backend.id_to_token(i) or "" for i in ids]
        return [self.token_bytes(i).decode("utf-8", "replace") for i in ids]

    def _encode_batch(self, texts: list[str]) -> list[list[int]]:
        for index, text in enumerate(texts):
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise ValueError(f"text {index} holds a lone surrogate, which is no character ({error})") from None
        return [encoding.ids for encoding in self.backend.encode_batch_fast(texts, add_special_tokens=False)]

    def _with_bos(self, ids: list[int], bos: bool | None) -> list[int]:
        if not (self.add_bos if bos is None else bos):
            return ids
        if self.bos_id is None:
            raise ValueError(f"bos=True, but the tokenizer of {self.name} has no BOS token: leave bos out")
        return ids if ids[:1] == [self.bos_id] else [self.bos_id, *ids]

    def _closing(self, ids: list[int], close: bool | None) -> list[int]:
        """What comes after a text of these ids: the closing token, or nothing."""
        if close and self.closing_id is None:
            raise ValueError(f"close=True, but the tokenizer of {self.name} closes no text: leave close out")
        if self.closing_id is None or close is False or ids[-1:] == [self.closing_id]:
            return []
        return [self.closing_id]

    # ---------------------------------------------------------------------------------------------------- display

    def views(
        self, ids: Sequence[int] | Int[Tensor, "..."], *, bos_added: bool = False, text: str | None = None
    ) -> list[TokenView]:
        """Each token for display.

        Args:
            ids: token ids of one text, without pads.
            bos_added: the first id is a BOS that the text does not hold: its text is empty, so that the joined texts
                are the prompt.
            text: the prompt that was encoded. Only WordPiece needs it: its ids hold neither spaces nor, with most
                vocabularies, case and accents, so that the joined texts are the prompt where it is given (each token is
                cut out of it, with the spaces before it), and the decoded text where it is not.

        A character belongs to the token in which it begins. Bytes that are no UTF-8 (a generation that stopped inside
        a character) become U+FFFD. What the tokenizer's own normaliser changed stays changed.

        Raises:
            ValueError: a spelling that is not known, a negative id, or, for WordPiece, a `text` of other ids.
        """
        sequence = _as_list(ids)
        pieces = [self.backend.id_to_token(i) for i in sequence]
        special = [i in self.special_ids or piece is None for i, piece in zip(sequence, pieces)]
        labels = [f"⟨id {i}⟩" if piece is None else piece for i, piece in zip(sequence, pieces)]
        added = [i in self._added for i in sequence]
        if self._spelling.words and text is not None:
            parts = self._cut(text, sequence)
        else:
            parts = self._spelling.in_text([self.token_bytes(i) for i in sequence], added, bos_added)
        return token_views(sequence, labels, parts, special, spelled=self._spelling.words)

    def _cut(self, text: str, ids: list[int]) -> list[bytes]:
        """The bytes of the text that each token stands for, by the offsets of its encoding; none for the tokens that
        encoding put around it."""
        encoding = self.backend.encode(text, add_special_tokens=False)
        plain = encoding.ids
        around = ((k, ids[:k], ids[k + len(plain) :]) for k in (0, 1) if ids[k : k + len(plain)] == plain)
        begin = next((k for k, a, b in around if a in ([], [self.bos_id]) and b in ([], [self.closing_id])), None)
        if begin is None:
            raise ValueError(f"these ids are not those of the text {text[:40]!r}: pass the text that was encoded")
        parts = cut(text, [end for _, end in encoding.offsets])
        return [*([b""] * begin), *parts, *([b""] * (len(ids) - begin - len(parts)))]

    @functools.cached_property
    def _spec(self) -> dict[str, Any]:
        return json.loads(self.backend.to_str())

    @functools.cached_property
    def _added(self) -> dict[int, str]:
        return {i: token.content for i, token in self.backend.get_added_tokens_decoder().items()}

    @functools.cached_property
    def _spelling(self) -> Spelling:
        return Spelling.of(self._spec, self.name)

    def token_bytes(self, i: int) -> bytes:
        """The bytes that one token stands for; none for an id that the vocabulary lacks."""
        piece = self.backend.id_to_token(i)
        if self._spelling.words and piece is not None:
            # As after another word: with the space between them, without the space before a full stop.
            return self.backend.decoder.decode(["a", piece]).removeprefix("a").encode()
        if i in self._added:
            return self._added[i].encode()
        return b"" if piece is None else self._spelling.to_bytes(piece)


def _as_list(ids: Sequence[int] | Tensor) -> list[int]:
    if isinstance(ids, Tensor):
        if ids.ndim == 2 and ids.shape[0] == 1:
            ids = ids[0]
        if ids.ndim != 1:
            raise ValueError(f"expected the ids of one text, got a tensor of shape {tuple(ids.shape)}: take one row")
        return [int(i) for i in ids.tolist()]
    bad = [i for i in ids if i < 0]
    if bad:
        raise ValueError(f"token ids must be 0 or more, got {bad[0]}")
    return [int(i) for i in ids]
