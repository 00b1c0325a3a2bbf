"""The tuned lens: an affine translator for each layer, trained so that the end of the model reads what the whole model
says (Belrose et al. 2023, arXiv 2303.08112).

The logit lens is brittle: directions drift from layer to layer, and early layers look as if they knew nothing. A
translator x -> x + W x + b undoes the drift before the final norm and the unembedding. W = 0, b = 0 is the logit lens, where
training begins (`interp.lens.tuning`); what a lens says is what a *trained reader* finds in the stream, not what the model
uses of it.

A lens is one safetensors file. `export` and `import_tuned_lens` speak the layout of the tuned-lens library: a folder with
config.json and the parameters `{i}.weight` and `{i}.bias`, where translator i reads the stream into block i: 0 the embedding,
i the end of block i - 1. That library keeps the parameters as a pickle, params.pt, which is never read here, for a pickle
can run code.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd
import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from interp import artifact
from interp import sites as site_names
from interp.lens.places import EMBED, end_kind
from interp.model import HookedTransformer
from interp.model.norm import accumulate
from interp.plot.lenses import lens_comparison

KIND = "tuned_lens"
PARAMETERS = "params.safetensors"
_PICKLE = "params.pt"


@dataclass(frozen=True, eq=False)
class TunedLens:
    """Translators x -> x + W x + b of some places; `logit_lens(model, x, lens=lens)` reads through them."""

    sites: tuple[str, ...]
    """Full names of the places, in the model's order; the end of the last block needs no translator."""
    weight: Float[Tensor, "site d_model d_model"]
    """W of each place, [out, in]; fp32."""
    bias: Float[Tensor, "site d_model"]
    """b of each place; fp32."""
    table: pd.DataFrame
    """A row for each place, on texts that training did not see: site, layer, kl, kl_low, kl_high and logit_lens_kl, its
    _low and _high (KL(final || lens), nats), gain, gain_low, gain_high (logit lens less this one, paired), n (rows),
    n_texts. Intervals hold 95 % of a bootstrap over texts. Empty for an imported lens."""
    card: dict[str, Any]
    """Provenance: model, fingerprint, configuration, the texts with hashes of those trained on, and how many rows were left
    out as not typical."""

    @property
    def name(self) -> str:
        """For tables and charts."""
        return "tuned"

    def translate(self, rows: Float[Tensor, "row d_model"], site: str) -> Float[Tensor, "row d_model"]:
        """Rows of the stream at a place, as the final norm and the unembedding then read them; in the rows' own dtype."""
        full = site_names.full_name(site)
        if full not in self.sites:
            have = ", ".join(map(site_names.short_name, self.sites))
            raise ValueError(f"the tuned lens has no translator of {site_names.short_name(full)}; it has {have}")
        index, wide = self.sites.index(full), accumulate(rows)
        weight, bias = (value[index].to(wide.device, wide.dtype) for value in (self.weight, self.bias))
        return (wide + torch.nn.functional.linear(wide, weight, bias)).to(rows.dtype)

    def check_model(self, model: HookedTransformer) -> None:
        """Refuse a model that the lens was not trained for. ValueError names both."""
        ours = self.card["provenance"]
        if model.fingerprint != ours["fingerprint"]:
            raise ValueError(
                f"this tuned lens was made for {ours['model']} ({ours['fingerprint']}), not for {model.cfg.name} "
                f"({model.fingerprint}): train one on a store of this model"
            )

    def to_frame(self) -> pd.DataFrame:
        """The table."""
        return self.table.copy()

    def plot(self) -> alt.LayerChart:
        """KL to the final layer by layer, of this lens and of the logit lens, with intervals."""
        if self.table.empty:
            raise ValueError("an imported lens has no table: compare lenses on a store of your own")
        drawn = {"layer": self.table["layer"], "n": self.table["n"]}
        parts = [
            pd.DataFrame(
                drawn | {"kl": self.table[name], "low": self.table[f"{name}_low"], "high": self.table[f"{name}_high"]}
            )
            for name in ("logit_lens_kl", "kl")
        ]
        both = [part.assign(lens=lens) for part, lens in zip(parts, ("logit", "tuned"))]
        return lens_comparison(pd.concat(both, ignore_index=True))

    def save(self, path: str | Path) -> Path:
        """One safetensors file with a card; `load_tuned_lens` reads it."""
        # NaN, the interval of a single text, has no form in JSON.
        lines = self.table.astype(object).where(self.table.notna(), None)
        table = {"columns": list(self.table), "lines": lines.to_numpy().tolist()}
        card = self.card | {"sites": list(self.sites), "table": table}
        return artifact.save_artifact(path, KIND, {"weight": self.weight, "bias": self.bias}, card)

    def export(self, folder: str | Path, *, fill: bool = False) -> Path:
        """Write the folder that the tuned-lens library reads, once its parameters are a pickle:
        `torch.save(safetensors.torch.load_file("params.safetensors"), "params.pt")`.

        Args:
            folder: where; it must not exist.
            fill: write W = 0, b = 0, the logit lens, for layers that have no translator.

        Raises:
            ValueError: a layer without a translator and no `fill`; places that the layout does not know, such as the middle
                of a block; a folder that is there.
        """
        layout = _layout(self.card["n_layers"], self.card["end_kind"])
        odd = [site_names.short_name(site) for site in self.sites if site not in layout]
        missing = [site_names.short_name(site) for site in layout if site not in self.sites]
        if odd or (missing and not fill):
            what = (
                f"knows no {', '.join(odd)}"
                if odd
                else f"needs {', '.join(missing)} too: train them, or pass fill=True"
            )
            raise ValueError(f"the layout of the tuned-lens library {what}")
        d_model = self.weight.shape[-1]
        tensors: dict[str, Tensor] = {}
        for index, site in enumerate(layout):
            at = self.sites.index(site) if site in self.sites else None
            tensors[f"{index}.weight"] = torch.zeros(d_model, d_model) if at is None else self.weight[at].clone()
            tensors[f"{index}.bias"] = torch.zeros(d_model) if at is None else self.bias[at].clone()
        config = {
            "base_model_name_or_path": self.card["provenance"]["model"],
            "base_model_revision": None,
            "bias": True,
            "d_model": d_model,
            "lens_type": "linear_tuned_lens",
            "num_hidden_layers": len(layout),
            "unembed_hash": None,
        }
        with artifact.atomic_folder(folder) as building:
            artifact.write_json(building / "config.json", config)
            artifact.atomic_write(building / PARAMETERS, save(tensors))
        return Path(folder)


def _layout(n_layers: int, end: str) -> list[str]:
    """The place of each translator in the tuned-lens library: the streams into the blocks."""
    return [EMBED, *(site_names.full_name(f"{end}:{layer}") for layer in range(n_layers - 1))]


def load_tuned_lens(path: str | Path) -> TunedLens:
    """Read what `TunedLens.save` wrote. ValueError where it is something else, or damaged."""
    tensors, card = artifact.load_artifact(path, KIND)
    sites, saved = tuple(card.pop("sites")), card.pop("table")
    table = pd.DataFrame(saved["lines"], columns=saved["columns"])
    measured = [name for name in table if name not in ("site", "layer", "n", "n_texts")]
    return TunedLens(sites, tensors["weight"], tensors["bias"], table.astype(dict.fromkeys(measured, float)), card)


def import_tuned_lens(model: HookedTransformer, folder: str | Path) -> TunedLens:
    """Read a lens in the layout of the tuned-lens library, for this model.

    The folder does not say which weights it was trained on, so that is up to the caller: compare on a store.

    Args:
        model: what it is for.
        folder: with config.json and params.safetensors. Where there is only params.pt, which is a pickle and can run code,
            make it one yourself, if you trust it:
            `safetensors.torch.save_file(torch.load("params.pt", weights_only=True), "params.safetensors")`.

    Raises:
        ValueError: no such files, another width or number of layers than the model's, missing parameters, or NaN.
    """
    folder = Path(folder)
    path = folder / PARAMETERS
    if not path.is_file():
        pickled = (folder / _PICKLE).is_file()
        raise ValueError(
            f"{folder} has no {PARAMETERS}"
            + (
                f", but {_PICKLE}, a pickle, which can run code and is not read: if you trust it, write "
                f'safetensors.torch.save_file(torch.load("{_PICKLE}", weights_only=True), "{PARAMETERS}")'
                if pickled
                else ""
            )
        )
    config, cfg = artifact.read_json(folder / "config.json"), model.cfg
    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is not a whole safetensors file ({error}): make it again") from None
    sizes = {"d_model": cfg.d_model, "num_hidden_layers": cfg.n_layers}
    differs = [
        f"{name} is {config.get(name)} there, {own} here" for name, own in sizes.items() if config.get(name) != own
    ]
    if differs:
        raise ValueError(f"the lens in {folder} does not fit {cfg.name}: {', '.join(differs)}")
    weights, biases = [], []
    for index in range(cfg.n_layers):
        weight = _parameter(tensors, f"{index}.weight", (cfg.d_model, cfg.d_model), path)
        weights.append(weight)
        biases.append(
            _parameter(tensors, f"{index}.bias", (cfg.d_model,), path)
            if config.get("bias", True)
            else weight.new_zeros(cfg.d_model)
        )
    card = lens_card(model) | {"imported": {"config": config, "sha256": artifact.sha256_file(path)}}
    sites = tuple(_layout(cfg.n_layers, end_kind(cfg)))
    return TunedLens(sites, torch.stack(weights), torch.stack(biases), pd.DataFrame(), card)


def lens_card(model: HookedTransformer, **extra: Any) -> dict[str, Any]:
    """What every lens of a model says about it."""
    made = artifact.provenance(model=model.cfg.name, fingerprint=model.fingerprint, **extra)
    return {"lens": "tuned", "n_layers": model.cfg.n_layers, "end_kind": end_kind(model.cfg), "provenance": made}


def _parameter(tensors: dict[str, Tensor], name: str, shape: tuple[int, ...], path: Path) -> Tensor:
    found = tensors.get(name)
    if found is None or found.shape != shape:
        what = "is missing" if found is None else f"has shape {list(found.shape)}"
        raise ValueError(f"{name} {what} in {path}; the model needs {list(shape)}")
    if not bool(torch.isfinite(found).all()):
        raise ValueError(f"{name} in {path} holds NaN or infinite values")
    return found.float()
