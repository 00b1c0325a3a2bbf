"""What tokenizer_config.json and the post-processor of tokenizer.json say: special tokens, and what stands around a text."""

from collections.abc import Mapping
from typing import Any

import tokenizers

NAMED_TOKENS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


def read_rules(backend: tokenizers.Tokenizer, config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """bos_id, eos_id, pad_id and special_ids by tokenizer_config.json; add_bos and closing_id by the template in
    tokenizer.json.

    As in transformers 5, `add_bos_token` in the configuration counts for nothing beside a tokenizer.json.
    """
    added = {token.content for token in backend.get_added_tokens_decoder().values()}
    found: dict[str, Any] = {"bos_id": None, "eos_id": None, "pad_id": None}
    for key in found:
        token = config.get(key.replace("_id", "_token"))
        content = token.get("content") if isinstance(token, Mapping) else token
        if content is None:
            continue
        found[key] = backend.token_to_id(content)
        if found[key] is None:
            raise ValueError(
                f"{where}: the special token {content!r} of tokenizer_config.json is not in the vocabulary"
            )
        if content not in added:  # so that it is one token in a text, too
            backend.add_special_tokens([content])
    special = {i for i, token in backend.get_added_tokens_decoder().items() if token.special}
    before, after = _around(backend, where)
    if before is not None and found["bos_id"] not in (None, before):
        raise ValueError(
            f"{where}: this tokenizer begins a text with {backend.id_to_token(before)!r}, which is not its BOS: name that "
            "token as bos_token in tokenizer_config.json, or correct its post_processor"
        )
    found["bos_id"] = before if before is not None else found["bos_id"]
    return {**found, "special_ids": special, "add_bos": before is not None, "closing_id": after}


def _around(backend: tokenizers.Tokenizer, where: str) -> tuple[int | None, int | None]:
    """The token that the post-processor puts before a text, and the one after it."""
    plain, full = backend.encode("a", add_special_tokens=False).ids, backend.encode("a").ids
    for before, after in ((0, 0), (1, 0), (0, 1), (1, 1)):
        if len(full) == before + len(plain) + after and full[before : before + len(plain)] == plain:
            return full[0] if before else None, full[-1] if after else None
    raise ValueError(
        f"{where}: this tokenizer puts more than one token before or after a text. No supported family does, and leaving "
        "them out would change every activation: correct its post_processor"
    )


def named_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens that transformers hands to a chat template by name."""
    more = config.get("extra_special_tokens")
    found: dict[str, Any] = {f"{key}_token": config.get(f"{key}_token") for key in NAMED_TOKENS}
    found |= more if isinstance(more, Mapping) else {}
    contents = {key: token.get("content") if isinstance(token, Mapping) else token for key, token in found.items()}
    return {key: content for key, content in contents.items() if content is not None}


def default_template(template: Any) -> str | None:
    """The default template where a configuration names several."""
    if isinstance(template, list):
        return next((entry["template"] for entry in template if entry.get("name") == "default"), None)
    return template
