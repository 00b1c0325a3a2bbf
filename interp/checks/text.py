"""Text in and out: the tokenizer's round trip, one BOS and not two, the chat template, and whether the model speaks."""

import math
import unicodedata
from datetime import datetime

import torch

from interp.checks.patient import TEXT, Patient, bounded, judged, skipped
from interp.checks.report import Check
from interp.tokens import Tokenizer
from interp.weights import catalog

SAMPLES = (
    "Hello, world!",
    "  two  spaces,\ttabs\nand lines\n\n",
    "naïve café, Straße, Ωμέγα, Привет",
    "日本語の文章 and 한국어",
    "emoji 🙂👩‍👩‍👧 and é",
    "def f(x):\n    return x ** 2  # 0123456789",
)
MESSAGES = (
    {"role": "user", "content": "What is the capital of France?"},
    {"role": "assistant", "content": "Paris."},
    {"role": "user", "content": "And of Italy?"},
)
NOON = datetime(2024, 7, 1, 12)
"""The time that templates see which write the date."""
SPEAKS = 0.5
"""A trained model's loss on plain English, as a share of ln(d_vocab), is at most this; 0.3 is usual."""
ORDERED = 0.5
"""Nats by which plain English must be easier than its own tokens in random order."""
KNOWN_LOSS = {"smollm2-135m-instruct-q4": 3.2547}
"""Loss on the paragraph of catalogue models, whose logits were found equal to transformers' when it was written down. Dimensions
that turn in wrong pairs cost 1.5 nats, another base of the rotations 0.07."""
LOSS_OFF = {torch.float64: 0.02, torch.float32: 0.02}
"""How far the loss may be from the known one; 0.05 in lower precisions."""


def round_trip(patient: Patient) -> Check:
    """decode(encode(text)) is the text, or, where a normaliser changes it, the same once more through.

    A tokenizer that drops case, accents or spaces by its own rules cannot give a text back: the verdict is `info`.
    """
    name = "tokenizer round trip"
    compared = f"{len(SAMPLES)} texts (spaces, accents, scripts, emoji, code) with themselves, encoded and decoded"
    tokenizer = patient.model.tokenizer
    if tokenizer is None:
        return skipped(name, compared, "the model has no tokenizer")
    wrong, lossy, dropped = [], 0, 0
    for text in SAMPLES:
        ids = tokenizer.encode(text, bos=False, close=False)
        if not ids or max(ids) >= patient.model.cfg.d_vocab:
            wrong.append(f"{text!r} has ids outside the embedding")
            continue
        back = tokenizer.decode(ids)
        if back == text:
            continue
        lossy += 1
        if _drops(tokenizer, text):
            dropped += 1
            continue
        again = tokenizer.decode(tokenizer.encode(back, bos=False, close=False))
        if again != back or not _alike(text, back, tokenizer):
            wrong.append(f"{text!r} comes back as {back!r}")
    if dropped and not wrong:
        why = f"the tokenizer's own rules (case, accents, spaces) change {dropped} of {len(SAMPLES)} texts"
        return Check(name, compared, "info", float(dropped), None, why)
    note = f"{lossy} texts come back normalised, and stay so" if lossy else ""
    return judged(name, compared, wrong, note)


def _drops(tokenizer: Tokenizer, text: str) -> bool:
    """Whether the tokenizer drops what no decoder brings back: letters that its normaliser replaces (an equivalent
    spelling of one, or a sign for spaces, is no loss), or spaces, as WordPiece does."""
    if tokenizer.drops_spaces:
        return True
    normalizer = tokenizer.backend.normalizer
    if normalizer is None:
        return False

    def letters(value: str) -> str:
        return "".join(c for c in unicodedata.normalize("NFKC", value) if not c.isspace() and c != "\u2581")

    return letters(normalizer.normalize_str(text)) != letters(text)


def _alike(text: str, back: str, tokenizer: Tokenizer) -> bool:
    """Whether the difference is one that a tokenizer's own rules make: case, accents, spaces, unknown characters."""

    def bare(value: str) -> str:
        plain = unicodedata.normalize("NFKD", value).casefold()
        return "".join(char for char in plain if not char.isspace() and not unicodedata.combining(char))

    unknown = [piece for piece in ("[UNK]", "<unk>") if tokenizer.backend.token_to_id(piece) is not None]
    return bare(back) == bare(text) or any(piece in back for piece in unknown)


def one_bos(patient: Patient) -> Check:
    """A text has one BOS where the tokenizer's rule or the caller asks for it, also if it begins with one itself."""
    name, compared = "one BOS", "BOS tokens at the beginning of texts, of texts that begin with one, and of chats"
    tokenizer = patient.model.tokenizer
    if tokenizer is None or tokenizer.bos_id is None:
        return skipped(
            name, compared, "the model has no tokenizer" if tokenizer is None else "the tokenizer has no BOS"
        )
    bos = tokenizer.backend.id_to_token(tokenizer.bos_id)
    assert bos is not None
    wrong = []
    texts = {"a text": SAMPLES[0], "a text that begins with one": bos + SAMPLES[0]}
    if tokenizer.chat_template is not None:
        texts["a chat"] = tokenizer.apply_chat(MESSAGES)
    for what, text in texts.items():
        written = 1 if text.startswith(bos) else 0
        for asked, least in ((None, int(tokenizer.add_bos)), (True, 1), (False, 0)):
            expected = max(least, written)
            for call, ids in (
                ("encode", tokenizer.encode(text, bos=asked)),
                ("tokenize", tokenizer.tokenize(text, bos=asked).ids[0].tolist()),
            ):
                found = _leading(ids, tokenizer.bos_id)
                if found != expected:
                    wrong.append(f"{call}({what}, bos={asked}) begins with {found} BOS, not {expected}")
                if tokenizer.closing_id is not None and _leading(ids[::-1], tokenizer.closing_id) != 1:
                    wrong.append(f"{call}({what}, bos={asked}) does not end with one closing token")
    return judged(name, compared, wrong)


def _leading(ids: list[int], bos: int) -> int:
    n = 0
    while n < len(ids) and ids[n] == bos:
        n += 1
    return n


def chat(patient: Patient) -> Check:
    """The template renders a conversation and ends with the opening of the assistant's turn."""
    name, compared = (
        "chat template",
        "a rendered conversation: every message in it, and the assistant's turn opened last",
    )
    tokenizer = patient.model.tokenizer
    if tokenizer is None or tokenizer.chat_template is None:
        return skipped(name, compared, "the model has no chat template")
    closed = tokenizer.apply_chat(MESSAGES, add_generation_prompt=False, now=NOON)
    opened = tokenizer.apply_chat(MESSAGES, add_generation_prompt=True, now=NOON)
    wrong = [f"{message['content']!r} is not in the text" for message in MESSAGES if message["content"] not in opened]
    opening = opened.removeprefix(closed)
    if not opened.startswith(closed) or not opening.strip():
        wrong.append("the generation prompt does not come last")
    if opened != tokenizer.apply_chat(MESSAGES, now=NOON):
        wrong.append("two renderings differ")
    lone = [piece for piece in _markers(tokenizer, opened) if len(tokenizer.encode(piece, bos=False, close=False)) != 1]
    wrong += [f"{piece!r} is a special token that is encoded as several" for piece in lone]
    return judged(name, compared, wrong, f"the assistant's turn opens with {opening!r}")


def _markers(tokenizer: Tokenizer, text: str) -> list[str]:
    """Special tokens that stand in a text."""
    pieces = [tokenizer.backend.id_to_token(i) for i in sorted(tokenizer.special_ids)]
    return [piece for piece in pieces if piece is not None and piece in text]


def speaks(patient: Patient) -> Check:
    """Loss on a plain English paragraph, against chance and against the same tokens in random order."""
    model, name = patient.model, "speaks"
    compared = "loss on a plain English paragraph with ln(d_vocab), and with the same tokens in random order"
    if model.tokenizer is None or not model.cfg.causal:
        why = "the model has no tokenizer" if model.tokenizer is None else "an encoder predicts no next token"
        return skipped(name, compared, why)
    if model.cfg.n_ctx < 2:
        return skipped(name, compared, f"a context of {model.cfg.n_ctx} token has no next one")
    ids = torch.tensor(model.tokenizer.encode(TEXT), device=model.device)[: min(128, model.cfg.n_ctx)]
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(patient.seed)).to(ids.device)
    with torch.no_grad():
        loss, shuffled = (float(model.loss(text[None])) for text in (ids, ids[order]))
    chance = math.log(model.cfg.d_vocab)
    note = f"{loss:.2f} nats a token, {shuffled:.2f} in random order, chance is {chance:.2f}"
    if catalog.find(model.cfg.name) is None:
        return Check(name, compared, "info", loss / chance, None, note)
    known = KNOWN_LOSS.get(model.cfg.name)
    if known is not None:
        off = LOSS_OFF.get(patient.precision, 0.05)
        return bounded(
            name, f"{compared}; and with its known value", abs(loss - known), off, f"{note}, known is {known}"
        )
    good = loss / chance <= SPEAKS and shuffled - loss >= ORDERED
    return Check(name, compared, "ok" if good else "FAILED", loss / chance, SPEAKS, note)
