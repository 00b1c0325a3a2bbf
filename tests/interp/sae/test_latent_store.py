"""A store read through an SAE: against `sae.encode` on the store's own rows, and inside the spliced model."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from interp.dataset import Example
from interp.intervene import Steer
from interp.model import HookedTransformer
from interp.probe import fit_probe, probe_sweep
from interp.probe.live import watch_probe
from interp.probe.reading import TokenRows, expand_places, read_place
from interp.probe.value import Probe, load_probe
from interp.recording import record
from interp.sae import SAE
from interp.sae.latent_store import LatentStore, latent_store, latents_to_stream, widened_probe
from interp.steering import steering_vector
from interp.store import Store

SITE = "blocks.1.hook_resid_post"
LATENTS = f"{SITE}.hook_sae_acts_post"


@pytest.fixture(scope="module")
def labelled(tiny_llama: HookedTransformer, texts: list[str]) -> Store:
    """The label says whether a text names Paris; five texts a group."""
    examples = [Example(text, int("Paris" in text), f"group {i // 5}") for i, text in enumerate(texts)]
    return record(tiny_llama, examples, sites="resid_post:1", dtype="float32", progress=False)


@pytest.fixture(scope="module")
def latents(labelled: Store, sae: SAE) -> LatentStore:
    return latent_store(labelled, sae)


def test_columns_are_the_latents_that_fire(latents: LatentStore, labelled: Store, sae: SAE) -> None:
    every = sae.encode(labelled.rows(SITE, None))
    assert latents.latents.tolist() == (every > 0).any(0).nonzero()[:, 0].tolist()
    assert 0 < len(latents.latents) < sae.n_latents
    torch.testing.assert_close(latents.rows(LATENTS, None), every[:, latents.latents.tolist()])
    torch.testing.assert_close(latents.rows(None, [7, 3, 3]), every[[7, 3, 3]][:, latents.latents.tolist()])
    assert latents.shapes == {LATENTS: (len(latents.latents),)}
    assert latents.card["sae"]["latents"] == latents.latents.tolist()
    assert (latents.typical() == labelled.typical(SITE)).all()
    assert "latents fire" in repr(latents)


@pytest.mark.parametrize("tokens", ["last", "first", "mean"])
def test_pooled_rows_are_those_of_the_latents(latents: LatentStore, labelled: Store, sae: SAE, tokens: str) -> None:
    every, text = sae.encode(labelled.rows(SITE, None)), labelled.tokens["text"].to_numpy()
    chosen = labelled.typical(SITE) if tokens == "mean" else np.ones(len(text), dtype=bool)
    wanted = []
    for number in range(labelled.n_texts):
        rows = every[np.flatnonzero(chosen & (text == number))]
        wanted.append({"last": rows[-1], "first": rows[0], "mean": rows.mean(0)}[tokens])
    found, frame = latents.pooled(LATENTS, tokens)
    torch.testing.assert_close(found, torch.stack(wanted)[:, latents.latents.tolist()], rtol=1e-4, atol=1e-5)
    assert frame["text"].tolist() == labelled.examples["text"].tolist()


def test_it_is_a_place_like_any_other(latents: LatentStore, labelled: Store, sae: SAE) -> None:
    assert expand_places("resid_post.sae_acts_post:1", latents) == [LATENTS]
    rows, frame = read_place(latents, LATENTS, "every")
    x, wanted = read_place(labelled, SITE, "every")
    assert isinstance(x, torch.Tensor)
    torch.testing.assert_close(rows, sae.encode(x)[:, latents.latents.tolist()])
    assert frame["position"].tolist() == wanted["position"].tolist()
    together, _ = read_place(latents, LATENTS, reads="tokens")
    assert isinstance(together, TokenRows)
    torch.testing.assert_close(together.X, rows)


def test_a_sweep_fits_probes_on_latents(latents: LatentStore) -> None:
    report = probe_sweep(latents, kinds="logistic", tokens="mean", n_boot=100, n_controls=2)
    assert report.selected["logistic"].site == LATENTS
    assert report.selected["logistic"].auroc > 0.8
    assert report.probe("logistic").width == len(latents.latents)


def fitted(latents: LatentStore, kind: str = "logistic") -> Probe:
    X, frame = latents.pooled(LATENTS, "mean")
    probe = fit_probe(X, list(frame["label"]), kind, C=0.1 if kind == "logistic" else None, site=LATENTS)
    return replace(probe, card=probe.card | {"store": {"sae": latents.card["sae"]}})


def test_a_probe_of_latents_reads_the_spliced_model(
    latents: LatentStore, tiny_llama: HookedTransformer, sae: SAE, tmp_path: Any
) -> None:
    probe = load_probe(fitted(latents).save(tmp_path / "probe.safetensors"))
    whole = widened_probe(sae, probe)
    x, frame = latents.store.pooled(SITE, "last")
    torch.testing.assert_close(
        whole.score(sae.encode(x)), probe.score(latents.pooled(LATENTS)[0]), rtol=1e-4, atol=1e-5
    )
    with tiny_llama.splice(sae), watch_probe(tiny_llama, whole) as watch:
        tiny_llama(list(frame["text"]))
    last = watch.to_frame().groupby("row").tail(1)
    np.testing.assert_allclose(last["score"], whole.score(sae.encode(x)), rtol=1e-3, atol=1e-4)
    for latents_of in (latents, latents.latents, latents.latents.tolist()):
        bare = replace(probe, card={})
        torch.testing.assert_close(widened_probe(sae, bare, latents_of).direction, whole.direction)
    with pytest.raises(ValueError, match=r"inside `with model\.splice"), watch_probe(tiny_llama, whole):
        pass  # latents are sites of a spliced model alone


def test_networks_are_widened_too(latents: LatentStore, sae: SAE) -> None:
    d, generator = len(latents.latents), torch.Generator().manual_seed(0)
    parts = {
        name: torch.randn(shape, generator=generator) for name, shape in (("hidden", (d, d)), ("hidden_bias", (d,)))
    }
    parts["output"] = torch.randn(d, generator=generator)
    mean, scale = torch.rand(d, generator=generator), 1 + torch.rand(d, generator=generator)
    probe = Probe(None, 0.3, "mlp", mean, scale, tensors=parts)
    x = latents.store.pooled(SITE, "last")[0]
    wide = widened_probe(sae, probe, latents)
    torch.testing.assert_close(wide(sae.encode(x)), probe(latents.pooled(LATENTS)[0]), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="'mlp' has no direction"):
        latents_to_stream(sae, probe, latents)


def test_a_direction_of_latents_becomes_one_of_the_stream(
    latents: LatentStore, tiny_llama: HookedTransformer, sae: SAE
) -> None:
    probe = fitted(latents)
    found = latents_to_stream(sae, probe)
    assert probe.direction is not None
    change = torch.zeros(sae.n_latents)
    change[torch.from_numpy(latents.latents)] = probe.direction
    base = torch.rand(sae.n_latents)
    decoded = sae.decode(base + change) - sae.decode(base)
    torch.testing.assert_close(found.direction * found.raw_norm, decoded, rtol=1e-3, atol=1e-5)
    assert found.site == SITE
    assert float(found.direction.norm()) == pytest.approx(1)
    assert found.typical_norm == sae.card["typical_norm"]
    _, before = tiny_llama.run_with_cache("stone", sites=SITE)
    with tiny_llama.intervene(Steer(found, strength=2.0, raw=True)):
        _, after = tiny_llama.run_with_cache("stone", sites=SITE)
    pushed = (after[SITE] - before[SITE])[0, -1]
    torch.testing.assert_close(pushed, 2 * decoded, rtol=1e-2, atol=1e-3)


def test_what_does_not_belong_together_is_refused(
    latents: LatentStore, labelled: Store, tiny_llama: HookedTransformer, sae: SAE, texts: list[str]
) -> None:
    def other(card: dict[str, Any] | None = None, scale: float = 1.0) -> SAE:
        given = (tensor.detach() for tensor in (sae.W_enc * scale, sae.b_enc, sae.W_dec, sae.b_dec))
        return SAE(*given, k=sae.k, card={**sae.card, **(card or {})})

    for changed, message in (
        ({"model": "0" * 32}, "trained on a model with the fingerprint 000"),
        ({"typical_norm": 1e6, "typical_norms": {SITE: 1e6}}, "typical norm of 1e.06.*were scaled or normed otherwise"),
        ({"site": None, "sites": [], "targets": [], "widths": {}}, "does not say its site"),
        ({"site": SITE.replace("1", "0"), "sites": [SITE.replace("1", "0")]}, "which the store does not hold"),
        ({"sites": [SITE, "blocks.0.hook_resid_post"]}, "reads 2 sites"),
        ({"imported": {"row_norm": "layer norm"}}, "normalised one by one"),
    ):
        with pytest.raises(ValueError, match=message):
            latent_store(labelled, other(changed))
    for pair, message in (
        ((labelled, None), "needs a SAE, got NoneType"),
        ((None, sae), "needs a Store, got NoneType"),
    ):
        with pytest.raises(ValueError, match=message):
            latent_store(*pair)
    with pytest.raises(ValueError, match=r"interp.latents_to_stream\(sae, probe\)"):
        steering_vector(fitted(latents), model=tiny_llama)
    dead = SAE(sae.W_enc.detach(), sae.b_enc.detach() - 1e9, sae.W_dec.detach(), sae.b_dec.detach(), k=4, card=sae.card)
    with pytest.raises(ValueError, match="no latent of this SAE fires"):
        latent_store(labelled, dead)
    averages = record(tiny_llama, texts[:5], sites="resid_post:1", tokens="mean", progress=False)
    with pytest.raises(ValueError, match="averages over tokens"):
        latent_store(averages, sae)
    with pytest.raises(ValueError, match="one site"):
        latents.pooled("resid_post:1")
    both = record(tiny_llama, texts[:5], sites="resid_post:1", tokens=["all", "mean"], progress=False)
    with pytest.raises(ValueError, match="5 of the rows are averages"):
        latent_store(both, sae).rows(None, None)
    # The mean of the latents, also where the mean of the activations was recorded.
    torch.testing.assert_close(
        latent_store(both, sae).pooled(None, "mean")[0],
        latent_store(record(tiny_llama, texts[:5], sites="resid_post:1", progress=False), sae).pooled(None, "mean")[0],
    )


def test_a_probe_of_unknown_latents_is_refused(latents: LatentStore, sae: SAE) -> None:
    probe = fitted(latents)
    bare = replace(probe, card={})
    with pytest.raises(ValueError, match="its card does not say which"):
        widened_probe(sae, bare)
    with pytest.raises(ValueError, match="latents= names 2"):
        latents_to_stream(sae, bare, [0, 1])
    with pytest.raises(ValueError, match="does not exist"):
        latents_to_stream(sae, bare, [*latents.latents[1:].tolist(), sae.n_latents])
    shifted = SAE(
        sae.W_enc.detach() * 2, sae.b_enc.detach(), sae.W_dec.detach(), sae.b_dec.detach(), k=4, card=sae.card
    )
    with pytest.raises(ValueError, match="another SAE"):
        widened_probe(shifted, probe)
    without = SAE(
        *(tensor.detach() for tensor in (sae.W_enc, sae.b_enc, sae.W_dec, sae.b_dec)),
        k=4,
        card={"site": SITE, "widths": {SITE: sae.d_in}},
    )
    with pytest.raises(ValueError, match="no typical norm"):
        latents_to_stream(without, probe)
