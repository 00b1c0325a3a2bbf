"""HookedTransformer: a decoder of our own with a hook at every place that a researcher asks for.

The forward pass in order: tokens -> embedding (+ positions) -> blocks -> final norm -> unembedding. Sites, names and
shapes stand in `interp/sites.py`. Weights are raw: logits equal the checkpoint's. Nothing touches the model but `with`
blocks (`hooks`, `intervene`), which put it back on the way out.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import pandas as pd
import torch
import xxhash
from torch import Tensor, nn

from interp import artifact, sites
from interp.hooks import Request, attached
from interp.model.activations import ActivationCache
from interp.model.config import ModelConfig
from interp.model.generation import Generating
from interp.model.gradients import gradients
from interp.model.inputs import Logits, refuse_encoder, refuse_not_finite, tokens_from_ids
from interp.model.linear import init_weights
from interp.model.moe import balance_loss
from interp.model.norm import accumulate
from interp.model.processed import processed
from interp.model.site_table import computed, missing_table, site_table, why_missing
from interp.model.splicing import Only, spliced
from interp.tokens import Tokenizer, Tokens


@runtime_checkable
class Intervention(Protocol):
    """Anything that `model.intervene` takes: it says which functions it puts where."""

    def hook_functions(self, model: "HookedTransformer") -> Sequence[tuple[str, Callable[..., Any]]]:
        """(full site name, fn(value, ctx)) pairs for this model."""
        ...


class HookedTransformer(Generating):
    """A transformer with named sites. See `interp.load` for pretrained weights.

    Args:
        cfg: the architecture.
        tokenizer: for text input and output; token ids work without.
        seed: initialise weights from N(0, 0.02), output projections scaled by 1/sqrt(2 n_layers). None sets them to NaN,
            so that a model that never got its weights says so.
        dtype: of the parameters.
        blank: with no seed, leave the memory untouched, for weights that are assigned next.
    """

    def __init__(
        self,
        cfg: ModelConfig,
        tokenizer: Tokenizer | None = None,
        *,
        seed: int | None = None,
        dtype: torch.dtype = torch.float32,
        blank: bool = False,
    ) -> None:
        super().__init__(cfg, dtype)
        self.tokenizer, self.note = tokenizer, ""
        self.hook_dict = {point.name: point for point in self.points()}
        """Every HookPoint by full name, in the order of computation."""
        if seed is not None:
            init_weights(self, seed)
        elif not blank:
            with torch.no_grad():
                for weight in self.parameters():
                    weight.fill_(torch.nan)
        self.eval()

    # Tokens -------------------------------------------------------------------------------------------------------

    def tokenize(self, x: Any, **options: Any) -> Tokens:
        """Text, texts, ids or Tokens -> checked Tokens on the model's device.

        Raises:
            ValueError: no tokenizer for text, an empty text, an id outside the vocabulary, or more tokens than n_ctx.
        """
        if isinstance(x, Tokens):
            tokens = x
        elif isinstance(x, str) or (isinstance(x, (list, tuple)) and x and isinstance(x[0], str)):
            if self.tokenizer is None:
                raise ValueError("this model has no tokenizer; pass token ids, or load it with one")
            tokens = self.tokenizer.tokenize(x if isinstance(x, str) else list(x), **options)
        else:
            tokens = tokens_from_ids(x)
        ids, n_ctx = tokens.ids, self.cfg.n_ctx
        if ids.numel() and (int(ids.max()) >= self.cfg.d_vocab or int(ids.min()) < 0):
            raise ValueError(f"token ids must lie in 0..{self.cfg.d_vocab - 1}, got {int(ids.min())}..{int(ids.max())}")
        empty = (~tokens.mask.any(1)).nonzero()[:, 0].tolist()
        if empty or not ids.numel():
            raise ValueError(f"text {empty[0] if empty else 0} is empty: there is no token to run the model on")
        longest = int(tokens.positions.max()) + 1  # of a text: a row may hold many
        if longest > n_ctx:
            raise ValueError(
                f"the text has {longest} tokens, the model's context holds {n_ctx}; shorten or split the text "
                "(interp.record(..., long='chunk') does it)"
            )
        return tokens.to(self.device)

    # Running ------------------------------------------------------------------------------------------------------

    def forward(
        self,
        x: Any,
        *,
        stop_at_layer: int | Any = None,
        start_at_layer: int | Any = None,
        tokens: Tokens | None = None,
        prompt_len: int | Sequence[int] | Tensor | None = None,
    ) -> Tensor:
        """Logits [batch pos d_vocab] of a text, texts, ids or Tokens.

        Args:
            x: what `tokenize` takes. Texts of unequal length are padded on the right; `.last` of the result gives
                each text's last real row. With start_at_layer: the stream [batch pos d_model] into that block.
            stop_at_layer: run blocks 0 to stop_at_layer - 1 only and return the stream [batch pos d_model].
                Negative counts from the end.
            start_at_layer: begin at this block, with x as its input. Negative counts from the end.
            tokens: with start_at_layer, the tokens that the stream belongs to, for mask and positions; None means one
                whole text a row.
            prompt_len: real tokens of the prompt, for interventions with `where="prompt"` or `"generated"`.

        Raises:
            ValueError: what cannot be tokenized, a layer that does not exist, or a stream of the wrong shape.
        """
        stop, start = self._stop(stop_at_layer), 0
        resid = None
        if start_at_layer is None:
            if tokens is not None:
                raise ValueError("tokens= goes with start_at_layer=, where x is a stream; pass the tokens as x")
            tokens = self.tokenize(x)
        else:
            start = self._start(start_at_layer, stop)
            resid, tokens = self._given_stream(x, tokens)
        self._begin(tokens, "forward", 0, self._prompt_len(prompt_len, tokens))
        resid = self._stream(tokens, stop, None, resid, start)
        if stop is not None:
            self._end(stop, start)
            return resid
        refuse_not_finite(resid, tokens)
        logits = self._head(resid).as_subclass(Logits)
        logits.tokens = tokens
        self._end(None, start)
        return logits

    def run_with_cache(
        self,
        x: Any,
        sites: Any = None,
        *,
        names_filter: Any = None,
        remove_batch_dim: bool = False,
        **options: Any,
    ) -> tuple[Tensor | None, ActivationCache]:
        """(logits, what was recorded). Gradients follow the caller: nothing is detached.

        Args:
            x: what `forward` takes.
            sites: names, shorthand or patterns; None for every site that is not large (`model.sites()` says which).
            names_filter: TransformerLens' word for `sites`: a name, names, or fn(name) -> bool.
            remove_batch_dim: leave the axis of size 1 out of the cached values.
            options: as in `forward`. With stop_at_layer the logits are None.

        Raises:
            ValueError: an unknown site, or one that lies beyond stop_at_layer or before start_at_layer.
        """
        if names_filter is not None and sites is not None:
            raise ValueError("sites and names_filter mean the same: give one of them")
        stop, given = self._stop(options.get("stop_at_layer")), options.get("start_at_layer") is not None
        start = self._stop(options.get("start_at_layer")) or 0
        reached = {name for name in self.hook_dict if computed(name, given, start, stop)}
        names, chosen = self._names(sites, names_filter)
        beyond = [name for name in names if name not in reached]
        if beyond and chosen:
            late = computed(beyond[0], given, start, None)
            where = f"beyond stop_at_layer={stop}" if late else f"before start_at_layer={start}"
            raise ValueError(f"{beyond[0]} lies {where}: it is never computed")
        values: dict[str, Tensor] = {}
        readers: list[tuple[str, Callable[..., Any], str]] = [
            (name, lambda value, ctx: values.__setitem__(ctx.name, value), "read")
            for name in names
            if name not in beyond
        ]
        if given:
            x, tokens = self._given_stream(x, options.pop("tokens", None))
            options["tokens"] = tokens
        else:
            x = tokens = self.tokenize(x)
        with attached(self.hook_dict, Request(readers), self.run):
            out = self(x, **options)
        cache = ActivationCache(values, tokens, self.site_names, self)
        return (out if stop is None else None), cache.remove_batch_dim() if remove_batch_dim else cache

    def _names(self, wanted: Any, names_filter: Any) -> tuple[list[str], bool]:
        """(full names to record, whether the caller named them)."""
        if callable(names_filter):
            names = [name for name in self.hook_dict if names_filter(name)]
            if not names:
                raise ValueError("names_filter selects no site of this model; model.sites() lists them")
            return names, False
        wanted = names_filter if wanted is None else wanted
        return (self.default_sites(), False) if wanted is None else (self.expand_sites(wanted), True)

    @contextmanager
    def hooks(
        self,
        hooks: Mapping[Any, Any] | None = None,
        *,
        fwd_hooks: Iterable[Any] = (),
        bwd_hooks: Iterable[Any] = (),
    ) -> Iterator["HookedTransformer"]:
        """Attach functions for the length of the block.

        Args:
            hooks: site -> fn(value, ctx), which returns the new value, or None to keep it (it may edit in place).
            fwd_hooks: TransformerLens-style (site name or predicate, fn(value, hook=HookPoint)).
            bwd_hooks: (site name or predicate, fn(gradient, hook=HookPoint)), called in the backward pass of what ran
                inside the block, with the new gradient or None as result. The weights may stay frozen.

        Raises:
            ValueError: an unknown site (at once); a function that never fired (on the way out, if a pass ran).
        """
        native = Request.native(hooks or {}, self.expand_sites)
        lens = Request.lens(fwd_hooks, self.expand_sites)
        backward = Request.lens(bwd_hooks, self.expand_sites, "grad")
        with attached(self.hook_dict, Request(native.entries + lens.entries + backward.entries), self.run):
            yield self

    def run_with_hooks(
        self,
        x: Any,
        fwd_hooks: Iterable[Any] = (),
        bwd_hooks: Iterable[Any] = (),
        **options: Any,
    ) -> Tensor:
        """One forward pass with TransformerLens-style hooks; `options` go to `forward`."""
        with self.hooks(fwd_hooks=fwd_hooks, bwd_hooks=bwd_hooks):
            return self(x, **options)

    def grad(
        self, metric: Callable[[Tensor], Tensor], x: Any, sites: Any, **options: Any
    ) -> tuple[Tensor, ActivationCache]:
        """The gradient of one number at the sites: how it would change if a value there did.

        Args:
            metric: logits [batch pos d_vocab] -> a number, for example `lambda logits: logits[0, -1, 7]`.
            x: what `forward` takes.
            sites: names, shorthand or patterns. The gradient at a place that the number does not depend on is zero.
            options: as in `forward`.

        Returns:
            The number, detached, and the gradients by site in an ActivationCache. The weights' own gradients are left as
            they are.

        Raises:
            ValueError: an unknown site, a site without a gradient (expert indices), or a metric that is no single number
                made from the logits.
        """
        return gradients(self, metric, x, sites, **options)

    @contextmanager
    def intervene(self, *interventions: Any) -> Iterator["HookedTransformer"]:
        """Apply interventions for the length of the block, in the order given.

        Raises:
            ValueError: something else than an intervention; on the way out, one that found no token to act on.
        """
        other = [each for each in interventions if not isinstance(each, Intervention)]
        if other:
            raise ValueError(f"intervene takes Steer, Ablate, Patch and their like, got {type(other[0]).__name__}")
        entries = [(name, fn, "native") for each in interventions for name, fn in each.hook_functions(self)]
        with attached(self.hook_dict, Request(entries), self.run):
            yield self

    @contextmanager
    def splice(
        self,
        saes: Any,
        *,
        error: bool = True,
        error_grad: bool = False,
        only: Only | None = None,
        site: str | Any = None,
        target: str | Any = None,
    ) -> Iterator["HookedTransformer"]:
        """Put SAEs into the model for the length of the block: their latents are sites in it; see `splicing.py`.

        Args:
            saes: an SAE, transcoder or crosscoder, or a list of them at different places.
            error: add what the SAE leaves out. Without edits the logits are then the bare model's, bit for bit, and an edit
                changes the value by decode(new) - decode(old). False: the reconstruction stands in at every token.
            error_grad: let gradients run through the error as well; those before the SAEs are then the bare model's.
            only: fn(ctx) -> [batch pos], True for the tokens at which the SAE stands; None for all.
            site: where one SAE reads, and without `target` writes, if not where its card says.
            target: where one transcoder writes.

        Raises:
            ValueError: no SAE, or another model's; a place that is unknown, taken, of another width or written before all is
                read; on the way out, an SAE that no pass came to.
        """
        with spliced(self, saes, site, target, error=error, error_grad=error_grad, only=only):
            yield self

    # Sites and weights --------------------------------------------------------------------------------------------

    @property
    def site_names(self) -> list[str]:
        """Full names of all sites in the order of computation."""
        return list(self.hook_dict)

    def default_sites(self) -> list[str]:
        """The sites that `run_with_cache` records when none are named."""
        return [name for name in self.hook_dict if not sites.kind_of(name).on_request]

    def expand_sites(self, wanted: Any) -> list[str]:
        """Shorthand, patterns and names -> full names of this model; ValueError says why it lacks a known kind."""
        if callable(wanted):
            raise ValueError("sites are names; a function that chooses names goes to names_filter=")
        with self._reasons():
            return sites.expand(wanted, self.site_names)

    def select_sites(self, site: Any) -> list[sites.Selector]:
        """One name, shorthand or pattern -> full names with the head or neuron that it names; errors as above."""
        with self._reasons():
            return sites.select(site, self.site_names)

    @contextmanager
    def _reasons(self) -> Iterator[None]:
        try:
            yield
        except sites.MissingSite as error:
            why = self.missing_site(error.name)
            raise ValueError(f"{self.cfg.name} has no {error.name!r}: {why}" if why else str(error)) from None

    def missing_site(self, name: str) -> str | None:
        """Why this model lacks a site that others have (full name or shorthand); None where it has it."""
        full = sites.full_name(name)
        layer = sites.layer_of(full)
        if layer is not None and layer >= self.cfg.n_layers:
            raise ValueError(f"{name!r}: the model has layers 0 to {self.cfg.n_layers - 1}")
        return None if full in self.hook_dict else why_missing(self.cfg, full)

    def sites(self, *, missing: bool = False) -> pd.DataFrame:
        """A table of all sites: site, shorthand, layer, shape, size, meaning, and which come only on request.

        Args:
            missing: the kinds of site that this model lacks instead: kind, layers, why.
        """
        if missing:
            return missing_table(self.cfg, self.site_names)
        return site_table(self.cfg, self.site_names, {name: point.sizes for name, point in self.hook_dict.items()})

    @property
    def fingerprint(self) -> str:
        """Hash of architecture and every weight, made anew at each call: weights may be written through views."""
        # Fields at their default are left out: a field that is added later must not change old fingerprints.
        default = {field.name: field.default for field in dataclasses.fields(self.cfg)}
        config = {
            key: value
            for key, value in self.cfg.to_dict().items()
            if key not in ("name", "family") and value != default[key]
        }
        digest = xxhash.xxh3_128(artifact.hash_json(config).encode())
        for name, weight in sorted(self.state_dict().items()):
            digest.update(f"{name} {weight.dtype}".encode())
            digest.update(memoryview(weight.detach().cpu().contiguous().view(torch.uint8).numpy()).cast("B"))
        return digest.hexdigest()

    def loss(self, x: Any, *, per_token: bool = False, balance: float = 0.0) -> Tensor:
        """Mean next-token loss in nats over real tokens; packed documents do not predict each other.

        Args:
            x: what `tokenize` takes.
            per_token: [batch, pos - 1] losses instead, 0 where there is none.
            balance: add this times the mean load-balancing loss of the layers with experts.
        """
        refuse_encoder(self.cfg, "a next-token loss")
        if balance and self.cfg.experts is None:
            raise ValueError(f"balance={balance}, but {self.cfg.name} has no experts")
        wanted = ["*.hook_expert_weights", "*.hook_expert_indices"] if balance else []
        logits, cache = self.run_with_cache(x, wanted)
        ids, mask, documents = cache.tokens.ids, cache.tokens.mask, cache.tokens.documents
        if cache.tokens.parents is not None:
            raise ValueError("in a tree of texts a token may have several next ones: give the texts one by one")
        assert logits is not None
        rows, targets = accumulate(logits[:, :-1].flatten(0, 1)), ids[:, 1:]
        losses = nn.functional.cross_entropy(rows, targets.flatten(), reduction="none").view(targets.shape)
        real = mask[:, 1:] & mask[:, :-1]
        if documents is not None:
            real &= documents[:, 1:] == documents[:, :-1]
        losses = losses.masked_fill(~real, 0.0)
        if per_token:
            return losses
        if not real.any():
            raise ValueError("the texts have one token each: there is no next token to predict")
        loss = losses.sum() / real.sum()
        if not balance:
            return loss
        layers = [layer for layer in range(self.cfg.n_layers) if self.cfg.has_experts(layer)]
        pairs = [(cache["expert_weights", layer], cache["expert_indices", layer]) for layer in layers]
        return loss + balance * torch.stack([balance_loss(*pair, mask) for pair in pairs]).mean()

    def processed(
        self,
        *,
        fold_ln: bool | None = None,
        center_writing: bool | None = None,
        center_unembed: bool | None = None,
        fold_value_biases: bool | None = None,
    ) -> "HookedTransformer":
        """A separate model with the same log-probabilities and simpler weights; see `interp/model/processed.py`.

        None does a step where it applies to the architecture; True refuses where it does not.
        """
        return processed(
            self,
            fold_ln=fold_ln,
            center_writing=center_writing,
            center_unembed=center_unembed,
            fold_value_biases=fold_value_biases,
        )

    @property
    def n_params(self) -> int:
        """Number of weights, the tied embedding counted once."""
        return sum(weight.numel() for weight in self.parameters())

    def __repr__(self) -> str:
        cfg, note = self.cfg, f"; {self.note}" if self.note else ""
        heads = f"{cfg.n_heads} heads" + (f" ({cfg.kv_heads} kv)" if cfg.kv_heads != cfg.n_heads else "")
        dtype = str(self.dtype).removeprefix("torch.")
        return (
            f"HookedTransformer({cfg.name!r}{note}: {cfg.n_layers} layers, d_model {cfg.d_model}, {heads}, "
            f"{self.n_params / 1e6:.1f}M parameters, {dtype})"
        )
