"""Cached decoding equals the pass over the whole text, token by token, also while a vector is added to the stream."""

import contextlib
from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.checks.patient import Patient, bounded, judged, skipped
from interp.checks.report import Check
from interp.intervene import Steer
from interp.model import HookedTransformer
from interp.steering import SteeringVector

N_NEW = 6


def plain(patient: Patient) -> Check:
    """Greedy continuations of three prompts in one batch against one pass over each whole text."""
    return _decoded(patient, "KV cache = none", None)


def steered(patient: Patient) -> Check:
    """The same while the stream is pushed, over all tokens and over the generated ones alone."""
    cfg = patient.model.cfg
    if not cfg.causal:
        return _decoded(patient, "KV cache = none, steering", None)
    generator = torch.Generator().manual_seed(patient.seed)
    direction = torch.randn(cfg.d_model, generator=generator)
    layer = cfg.n_layers // 2
    stream = patient.cache["resid_post", layer][0].float()
    norm = float(stream.norm(dim=-1).median())
    site = f"blocks.{layer}.hook_resid_post"
    vector = SteeringVector((direction / direction.norm()).to(patient.model.device), site, norm)
    checks = [_decoded(patient, "KV cache = none, steering", Steer(vector, 0.5, where=w)) for w in ("all", "generated")]
    return next((check for check in checks if check.verdict == "FAILED"), checks[0])


def _decoded(patient: Patient, name: str, steer: Steer | None) -> Check:
    model = patient.model
    compared = f"log-probabilities of {N_NEW} greedy tokens, decoded with the cache and without it"
    compared += "" if steer is None else "; the stream is pushed at all tokens, and at generated ones alone"
    if not model.cfg.causal:
        return skipped(name, compared, "an encoder does not generate")
    room = model.cfg.n_ctx - N_NEW
    if room < 1:
        return skipped(name, compared, f"a context of {model.cfg.n_ctx} tokens has no room for {N_NEW} new ones")
    bound = patient.nats
    prompts = [row[:room] for row in patient.rows]
    with _ids_only(model), model.intervene(steer) if steer is not None else contextlib.nullcontext():
        out = model.generate(patient.padded(prompts, "left"), N_NEW, stop_at_eos=False)
        worst, where, wrong = 0.0, "", []
        for index, prompt in enumerate(prompts):
            new, logprobs = out.tokens[index], out.logprobs[index]
            text = torch.cat([prompt, torch.tensor(new, device=prompt.device)])
            whole = _teacher_forced(patient, text, len(prompt)).float().log_softmax(-1)
            picked = whole.gather(-1, torch.tensor(new, device=whole.device)[:, None])[:, 0].cpu()
            behind = (whole.amax(-1).cpu() - picked) > 2 * bound
            if behind.any():
                wrong.append(f"token {int(behind.nonzero()[0])} of prompt {index} is not the whole pass's best")
            error = float((picked - torch.tensor(logprobs)).abs().max())
            if not error <= worst:
                worst, where = error, f"prompt {index}"
    if wrong:
        return judged(name, compared, wrong)
    return bounded(name, compared, worst, bound, patient.unreached if worst <= bound else where)


@contextlib.contextmanager
def _ids_only(model: HookedTransformer) -> Iterator[None]:
    """The model without its tokenizer, so that the check says nothing about text: a vocabulary that cannot be shown is no
    fault of the cache."""
    tokenizer, model.tokenizer = model.tokenizer, None
    try:
        yield
    finally:
        model.tokenizer = tokenizer


def _teacher_forced(patient: Patient, text: Int[Tensor, "pos"], n_prompt: int) -> Float[Tensor, "new d_vocab"]:
    """The logits that each new token was chosen from, without a cache: in one pass over the text, or, where rotations
    depend on how long the text is, in a pass over what stood before each token."""
    with torch.no_grad():
        if patient.turning_point is None:
            return patient.model(text[None], prompt_len=n_prompt).as_subclass(Tensor)[0, n_prompt - 1 : -1]
        parts = [text[None, :end] for end in range(n_prompt, len(text))]
        return torch.cat([patient.model(part, prompt_len=n_prompt).as_subclass(Tensor)[0, -1:] for part in parts])
