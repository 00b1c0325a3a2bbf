"""The model against transformers, from the same folder: logits, every layer's stream, token ids and the chat template.

transformers is never needed; where it is not installed, or the folder is not known, the checks say so and the others
stand. Its eager implementation in fp32 is the reference (but for Falcon with ALiBi, see `_attention`): 2e-4 on logits,
2e-5 of each row's own norm on the stream (its eager and its fused attention differ by 4e-5 and 3e-6 themselves).
"""

import contextlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from interp.checks.patient import Patient, bounded, judged, row_error, skipped
from interp.checks.report import Check
from interp.checks.text import MESSAGES, SAMPLES

LOGITS = 2e-4
ROWS = 2e-5


def parity(patient: Patient) -> list[Check]:
    """Logits, streams and tokenizer, or one line that says why not."""
    what = f"logits, every layer's stream and token ids with transformers' {_attention(patient)} implementation"
    why = _why_not(patient)
    if why:
        return [skipped("parity with transformers", what, why)]
    assert patient.folder is not None
    with _quiet(), torch.random.fork_rng(devices=[]):
        reference = _load(patient, patient.folder)
        with torch.no_grad():
            out = reference(patient.ids[None].cpu(), output_hidden_states=True)
        checks = [_logits(patient, out.logits[0]), _streams(patient, out.hidden_states)]
        del reference
        if patient.model.tokenizer is not None:
            checks.append(_tokenizer(patient, patient.folder))
    return checks


def _why_not(patient: Patient) -> str:
    if not patient.transformers:
        return "left out by the caller"
    if importlib.util.find_spec("transformers") is None:
        return "transformers is not installed: pip install 'interp-workbench[hf]'"
    if patient.folder is None:
        return "the checkpoint's folder is not known: pass folder="
    if not (patient.folder / "config.json").is_file():
        return f"{patient.folder} is no Hugging Face folder"
    return ""


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """transformers without its progress bars and its advice."""
    from transformers.utils import logging

    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _load(patient: Patient, folder: Path) -> Any:
    """transformers' model in fp32 on the CPU; only files of the folder, and no code from it."""
    import transformers

    kind = transformers.AutoModelForMaskedLM if patient.model.cfg.mlm_head else transformers.AutoModelForCausalLM
    options = {"local_files_only": True, "trust_remote_code": False, "use_safetensors": True}
    return kind.from_pretrained(folder, attn_implementation=_attention(patient), dtype=torch.float32, **options).eval()


def _attention(patient: Patient) -> str:
    """transformers' attention to compare with. Its eager Falcon adds ALiBi to the mask and once more to the scores (5.24),
    its SDPA, the default, adds it once."""
    cfg = patient.model.cfg
    return "sdpa" if cfg.family == "falcon" and cfg.positional == "alibi" else "eager"


def _note(patient: Patient) -> str:
    return "" if _attention(patient) == "eager" else "compared with sdpa: transformers' eager Falcon adds ALiBi twice"


def _logits(patient: Patient, theirs: Tensor) -> Check:
    error = float((patient.logits[0].cpu().double() - theirs.double()).abs().max())
    # A random model's logits may be far larger than a trained one's, and rounding with them.
    size = max(1.0, float(theirs.abs().max()) / 50)
    bound = LOGITS * size if patient.model.dtype == torch.float32 else patient.drift * float(theirs.abs().max())
    compared = f"logits of {len(theirs)} tokens with transformers ({_attention(patient)}, fp32)"
    return bounded("parity: logits", compared, error, bound, _note(patient))


def _streams(patient: Patient, theirs: Any) -> Check:
    """transformers' hidden_states[i + 1] is resid_post:i, but for the last, which is normed."""
    worst, where, n_layers = 0.0, "", patient.model.cfg.n_layers
    normed = patient.has(f"blocks.{n_layers - 1}.hook_normalized_resid_post")
    for layer in range(n_layers if normed else n_layers - 1):
        site = f"blocks.{layer}.hook_{'normalized_' if normed else ''}resid_post"
        error = row_error(patient.cache[site][0].cpu(), theirs[layer + 1][0])
        if not error <= worst:
            worst, where = error, site
    bound = ROWS if patient.model.dtype == torch.float32 else patient.drift
    compared = f"each row of {n_layers if normed else n_layers - 1} layers' streams with transformers, by its own norm"
    return bounded(
        "parity: every layer", compared, worst, bound, _note(patient) if worst <= bound else f"worst at {where}"
    )


def _tokenizer(patient: Patient, folder: Path) -> Check:
    from transformers import AutoTokenizer

    ours = patient.model.tokenizer
    assert ours is not None
    theirs: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    wrong = []
    for text in SAMPLES:
        expected = theirs(text)["input_ids"]
        for call, found in (("encode", ours.encode(text)), ("tokenize", ours.tokenize(text).ids[0].tolist())):
            if list(expected) != found:
                wrong.append(f"{call}({text!r}) gives {found[:6]}..., transformers {list(expected)[:6]}...")
    if ours.chat_template is not None and theirs.chat_template is not None:
        rendered = theirs.apply_chat_template(list(MESSAGES), tokenize=False, add_generation_prompt=True)
        if ours.apply_chat(MESSAGES) != rendered:
            wrong.append("the chat template renders another text")
        ids = theirs(rendered, add_special_tokens=False)["input_ids"]
        if ours.encode(ours.apply_chat(MESSAGES)) != list(ids):
            wrong.append("the rendered chat has other token ids")
    return judged("parity: tokenizer", f"token ids of {len(SAMPLES)} texts and the chat with transformers' own", wrong)
