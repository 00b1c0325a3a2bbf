"""HookedTransformer: a decoder of our own with a hook at every place that a researcher asks for.

The forward pass in order: tokens -> embedding (+ positions) -> blocks -> final norm -> unembedding. Sites, names and
shapes stand in `interp/sites.py`. Weights are raw: logits equal the checkpoint's. Nothing touches the model but `with`
blocks (`hooks`, `intervene`), which put it back on the way out.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import pandas as pd
import torch
import xxhash
from jaxtyping import Float, Int
from torch import Tensor, nn

from interp import artifact, sites
from interp.hooks import HookPoint, Request, RunState, attached
from interp.model.activations import ActivationCache
from interp.model.attention import PassInputs
from interp.model.block import Block
from interp.model.cache import KVCache
from interp.model.config import ModelConfig
from interp.model.generate import Generation, Sampling, generate_loop, result
from interp.model.inputs import Logits, left_padded, refuse_not_finite, tokens_from_ids
from interp.model.linear import Embedding, init_weights
from interp.model.mask import attention_mask
from interp.model.named_weights import NamedWeights
from interp.model.norm import Norm
from interp.model.position import rope_angles, rope_frequencies
from interp.tokens import Tokenizer, Tokens


@runtime_checkable
class Intervention(Protocol):
    """Anything that `model.intervene` takes: it says which functions it puts where."""

    def hook_functions(self, model: "HookedTransformer") -> Sequence[tuple[str, Callable[..., Any]]]:
        """(full site name, fn(value, ctx)) pairs for this model."""
        ...


class HookedTransformer(NamedWeights):
    """A decoder-only transformer with named sites. See `interp.load` for pretrained weights.

    Args:
        cfg: the architecture.
        tokenizer: for text input and output; token ids work without.
        seed: initialise weights from N(0, 0.02), output projections scaled by 1/sqrt(2 n_layers). None leaves the
            memory as it is, for weights that are assigned next.
        dtype: of the parameters.
    """

    unembed: Embedding | None
    pos_embed: Embedding | None

    def __init__(
        self,
        cfg: ModelConfig,
        tokenizer: Tokenizer | None = None,
        *,
        seed: int | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.cfg, self.tokenizer, self.note = cfg, tokenizer, ""
        self.run = RunState()
        self.embed = Embedding(cfg.d_vocab, cfg.d_model, dtype)
        self.pos_embed = Embedding(cfg.n_ctx, cfg.d_model, dtype) if cfg.positional == "learned" else None
        self.blocks = nn.ModuleList(Block(cfg, layer, self.run, dtype) for layer in range(cfg.n_layers))
        self.ln_final = Norm(cfg, "ln_final", self.run, dtype)
        self.unembed = None if cfg.tie_embeddings else Embedding(cfg.d_vocab, cfg.d_model, dtype)
        self.frequencies = rope_frequencies(cfg) if cfg.positional == "rope" else None
        self.hook_embed = HookPoint("hook_embed", self.run)
        self.hook_pos_embed = HookPoint("hook_pos_embed", self.run)
        embeds = [self.hook_embed, *([self.hook_pos_embed] if self.pos_embed is not None else [])]
        inner = [point for block in self.iter_blocks() for point in block.points()]
        self.hook_dict = {point.name: point for point in (*embeds, *inner, *self.ln_final.points())}
        """Every HookPoint by full name, in the order of computation."""
        if seed is not None:
            init_weights(self, seed)
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
        longest = int(tokens.mask.sum(1).max())
        if longest > n_ctx:
            raise ValueError(
                f"the text has {longest} tokens, the model's context holds {n_ctx}; shorten or split the text "
                "(interp.record(..., long='chunk') does it)"
            )
        return tokens.to(self.device)

    # Running ------------------------------------------------------------------------------------------------------

    def forward(
        self, x: Any, *, stop_at_layer: int | None = None, prompt_len: int | Sequence[int] | None = None
    ) -> Tensor:
        """Logits [batch pos d_vocab] of a text, texts, ids or Tokens.

        Args:
            x: what `tokenize` takes. Texts of unequal length are padded on the right; `.last` of the result gives
                each text's last real row.
            stop_at_layer: run blocks 0 to stop_at_layer - 1 only and return the stream [batch pos d_model].
                Negative counts from the end.
            prompt_len: real tokens of the prompt, for interventions with `where="prompt"` or `"generated"`.
        """
        tokens = self.tokenize(x)
        stop = self._stop(stop_at_layer)
        self._begin(tokens, "forward", 0, self._prompt_len(prompt_len, tokens))
        resid = self._stream(tokens, stop, None)
        if stop is not None:
            self._end(stop)
            return resid
        refuse_not_finite(resid, tokens)
        logits = self._head(resid).as_subclass(Logits)
        logits.tokens = tokens
        self._end(None)
        return logits

    def run_with_cache(
        self,
        x: Any,
        sites: Any = None,
        *,
        stop_at_layer: int | None = None,
        prompt_len: int | Sequence[int] | None = None,
    ) -> tuple[Tensor | None, ActivationCache]:
        """(logits, what was recorded). Gradients follow the caller: nothing is detached.

        Args:
            x: what `tokenize` takes.
            sites: names, shorthand or patterns; None for every site that is not large (`model.sites()` says which).
            stop_at_layer: as in `forward`; logits are then None.
            prompt_len: as in `forward`.

        Raises:
            ValueError: an unknown site, or one that lies beyond stop_at_layer.
        """
        stop = self._stop(stop_at_layer)
        reached = [name for name in self.hook_dict if _before(name, stop)]
        names = self.default_sites() if sites is None else self.expand_sites(sites)
        beyond = [name for name in names if name not in set(reached)]
        if beyond and sites is not None:
            raise ValueError(f"{beyond[0]} lies beyond stop_at_layer={stop_at_layer}: it is never computed")
        values: dict[str, Tensor] = {}
        readers: list[tuple[str, Callable[..., Any], str]] = [
            (name, lambda value, ctx: values.__setitem__(ctx.name, value), "read")
            for name in names
            if name not in beyond
        ]
        tokens = self.tokenize(x)
        with attached(self.hook_dict, Request(readers), self.run):
            out = self(tokens, stop_at_layer=stop_at_layer, prompt_len=prompt_len)
        return (out if stop is None else None), ActivationCache(values, tokens, self.site_names)

    @contextmanager
    def hooks(
        self,
        hooks: Mapping[Any, Callable[..., Any]] | None = None,
        *,
        fwd_hooks: Iterable[tuple[Any, Callable[..., Any]]] = (),
    ) -> Iterator["HookedTransformer"]:
        """Attach functions for the length of the block.

        Args:
            hooks: site -> fn(value, ctx), which returns the new value, or None to keep it (it may edit in place).
            fwd_hooks: TransformerLens-style (site name or predicate, fn(value, hook=HookPoint)).

        Raises:
            ValueError: an unknown site (at once); a function that never fired (on the way out, if a pass ran).
        """
        native = Request.native(hooks or {}, self.site_names)
        lens = Request.lens(fwd_hooks, self.site_names)
        with attached(self.hook_dict, Request(native.entries + lens.entries), self.run):
            yield self

    def run_with_hooks(
        self, x: Any, fwd_hooks: Iterable[tuple[Any, Callable[..., Any]]] = (), **options: Any
    ) -> Tensor:
        """One forward pass with TransformerLens-style hooks; `options` go to `forward`."""
        with self.hooks(fwd_hooks=fwd_hooks):
            return self(x, **options)

    @contextmanager
    def intervene(self, *interventions: Intervention) -> Iterator["HookedTransformer"]:
        """Apply interventions for the length of the block, in the order given."""
        entries = [(name, fn, "native") for each in interventions for name, fn in each.hook_functions(self)]
        with attached(self.hook_dict, Request(entries), self.run):
            yield self

    @torch.inference_mode()
    def generate(
        self,
        prompt: Any,
        max_new_tokens: int = 20,
        *,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        stop_at_eos: bool = True,
    ) -> Generation:
        """Continue a prompt, or each of a list of prompts, with a KV cache.

        Args:
            prompt: text, texts, ids or Tokens. Rows are padded on the left and do not see each other.
            max_new_tokens: the limit for every row.
            temperature: 0 is greedy.
            top_k: draw from the k most probable tokens.
            top_p: draw from the smallest set with this probability.
            seed: of the draws; a row's draws do not depend on the other rows.
            stop_at_eos: end a row at the tokenizer's end-of-text token.

        Raises:
            ValueError: prompt and new tokens do not fit the context, or an empty prompt.
        """
        sampling = Sampling(temperature, top_k, top_p, seed)
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, got {max_new_tokens}")
        tokens = left_padded(self.tokenize(prompt))
        n_rows, width = tokens.ids.shape
        if int(tokens.lengths.max()) + max_new_tokens > self.cfg.n_ctx:
            raise ValueError(
                f"{int(tokens.lengths.max())} prompt tokens and {max_new_tokens} new ones do not fit the context of "
                f"{self.cfg.n_ctx}; shorten the prompt or lower max_new_tokens"
            )
        kv = KVCache(self.cfg, n_rows, width + max_new_tokens, self.dtype, self.device)
        lengths = tokens.lengths

        def forward(new: Int[Tensor, "batch pos"] | None, step: int) -> Float[Tensor, "batch d_vocab"]:
            now = tokens if new is None else Tokens(new, torch.ones_like(new, dtype=torch.bool), False, None)
            start = None if new is None else lengths + step - 1
            self._begin(now, "prefill" if new is None else "decode", step, lengths, start)
            resid = self._stream(now, None, kv)
            refuse_not_finite(resid, now)
            return self._next_logits(resid)

        eos = self.tokenizer.eos_id if self.tokenizer is not None else None
        stop_ids = frozenset() if eos is None or not stop_at_eos else frozenset((eos,))
        rows, timing = generate_loop(forward, n_rows, max_new_tokens, sampling, stop_ids)
        texts = [self.tokenizer.decode(row.ids) if self.tokenizer is not None else "" for row in rows]
        one = isinstance(prompt, str) or (not isinstance(prompt, Tokens) and tokens.texts is None and n_rows == 1)
        return result(prompt if one and isinstance(prompt, str) else tokens.texts, texts, rows, timing, one)

    # Sites and weights --------------------------------------------------------------------------------------------

    @property
    def site_names(self) -> list[str]:
        """Full names of all sites in the order of computation."""
        return list(self.hook_dict)

    def default_sites(self) -> list[str]:
        """The sites that `run_with_cache` records when none are named."""
        return [name for name in self.hook_dict if not sites.kind_of(name).on_request]

    def expand_sites(self, wanted: Any) -> list[str]:
        """Shorthand, patterns and names -> full names of this model."""
        return sites.expand(wanted, self.site_names)

    def sites(self) -> pd.DataFrame:
        """A table of all sites: name, shorthand, layer, shape, size, meaning, and which come only on request."""
        cfg = self.cfg
        size = {
            "d_model": cfg.d_model,
            "head": cfg.n_heads,
            "kv_head": cfg.kv_heads,
            "d_head": cfg.d_head,
            "d_mlp": cfg.d_mlp,
        }
        rows = []
        for name in self.hook_dict:
            kind = sites.kind_of(name)
            sizes = " ".join(str(size.get(axis, axis)) for axis in kind.shape.split())
            rows.append(
                (name, sites.short_name(name), sites.layer_of(name), kind.shape, sizes, kind.meaning, kind.on_request)
            )
        columns = ["site", "shorthand", "layer", "shape", "size", "meaning", "on_request"]
        return pd.DataFrame(rows, columns=pd.Index(columns)).astype({"layer": "Int64"})

    @property
    def dtype(self) -> torch.dtype:
        """Of the parameters."""
        return self.embed.weight.dtype

    @property
    def device(self) -> torch.device:
        """Of the parameters."""
        return self.embed.weight.device

    @property
    def fingerprint(self) -> str:
        """Hash of architecture and every weight, made anew at each call: weights may be written through views."""
        config = {key: value for key, value in self.cfg.to_dict().items() if key not in ("name", "family")}
        digest = xxhash.xxh3_128(artifact.hash_json(config).encode())
        for name, weight in sorted(self.state_dict().items()):
            digest.update(f"{name} {weight.dtype}".encode())
            digest.update(memoryview(weight.detach().cpu().contiguous().view(torch.uint8).numpy()).cast("B"))
        return digest.hexdigest()

    def unembed_logits(self, resid: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows d_vocab"]:
        """Final norm (recomputed for these rows) and unembedding of any stream; fires no hooks."""
        return nn.functional.linear(self.ln_final.silent(resid), self.unembedding())

    def loss(self, x: Any, *, per_token: bool = False) -> Tensor:
        """Mean next-token loss in nats over real tokens; `per_token` gives [batch, pos - 1], 0 where there is none."""
        logits = self(x)
        assert isinstance(logits, Logits)
        ids, mask = logits.tokens.ids, logits.tokens.mask
        losses = nn.functional.cross_entropy(logits[:, :-1].transpose(1, 2).float(), ids[:, 1:], reduction="none")
        real = mask[:, 1:] & mask[:, :-1]
        losses = losses.masked_fill(~real, 0.0)
        return losses if per_token else losses.sum() / real.sum().clamp(min=1)

    def __repr__(self) -> str:
        cfg, note = self.cfg, f"; {self.note}" if self.note else ""
        heads = f"{cfg.n_heads} heads" + (f" ({cfg.kv_heads} kv)" if cfg.kv_heads != cfg.n_heads else "")
        dtype = str(self.dtype).removeprefix("torch.")
        return (
            f"HookedTransformer({cfg.name!r}{note}: {cfg.n_layers} layers, d_model {cfg.d_model}, {heads}, "
            f"{cfg.n_params / 1e6:.1f}M parameters, {dtype})"
        )

    # The pass, in parts -------------------------------------------------------------------------------------------

    def _stop(self, stop_at_layer: int | None) -> int | None:
        if stop_at_layer is None:
            return None
        stop = stop_at_layer + (self.cfg.n_layers if stop_at_layer < 0 else 0)
        if not 0 <= stop <= self.cfg.n_layers:
            raise ValueError(f"stop_at_layer={stop_at_layer}: the model has {self.cfg.n_layers} layers")
        return stop

    def _prompt_len(self, prompt_len: int | Sequence[int] | None, tokens: Tokens) -> Int[Tensor, "batch"] | None:
        if prompt_len is None:
            return None
        batch = tokens.ids.shape[0]
        lengths = torch.as_tensor(prompt_len, device=self.device).long().reshape(-1)
        lengths = lengths.expand(batch) if lengths.numel() == 1 else lengths
        if lengths.shape != (batch,) or (lengths < 1).any() or (lengths > tokens.lengths).any():
            raise ValueError(
                f"prompt_len={prompt_len!r} does not fit {batch} texts of {tokens.lengths.tolist()} tokens"
            )
        return lengths

    def _begin(
        self, tokens: Tokens, phase: str, step: int, prompt_len: Tensor | None, start: Tensor | None = None
    ) -> None:
        run = self.run
        run.phase, run.step, run.mask, run.prompt_len = phase, step, tokens.mask, prompt_len
        run.positions = tokens.positions if start is None else start[:, None] + tokens.positions

    def _end(self, stop: int | None) -> None:
        self.run.last_stop = stop
        self.run.forwards += 1

    def _stream(self, tokens: Tokens, stop: int | None, kv: KVCache | None) -> Float[Tensor, "batch pos d_model"]:
        positions = self.run.positions
        assert positions is not None
        resid = self.hook_embed(self.embed(tokens.ids))
        if self.pos_embed is not None:
            resid = resid + self.hook_pos_embed(self.pos_embed(positions))
        shared = self._shared(tokens, positions, kv)
        for block in self.blocks[:stop]:
            resid = block(resid, shared)
        return resid

    def _shared(self, tokens: Tokens, positions: Int[Tensor, "batch pos"], kv: KVCache | None) -> PassInputs:
        n_queries = tokens.ids.shape[1]
        key_mask = tokens.mask if kv is None else kv.extend(tokens.mask)
        plain = bool(key_mask.all()) and (key_mask.shape[1] == n_queries or n_queries == 1)
        mask = None if plain else attention_mask(key_mask, n_queries)
        cos, sin = None, None
        if self.frequencies is not None:
            cos, sin = rope_angles(self.frequencies, positions[:1] if plain else positions, self.dtype)
        return PassInputs(cos, sin, mask, plain and n_queries > 1, kv)

    def _head(self, resid: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_vocab"]:
        return nn.functional.linear(self.ln_final(resid), self.unembedding())

    def _next_logits(self, resid: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch d_vocab"]:
        """Logits of the last place alone, unless a hook on the final norm must see them all."""
        if not any(point.handles for point in self.ln_final.points()):
            resid = resid[:, -1:]
        logits = self._head(resid)[:, -1]
        self._end(None)
        return logits


def _before(name: str, stop: int | None) -> bool:
    layer = sites.layer_of(name)
    if stop is None:
        return True
    return layer < stop if layer is not None else not name.startswith("ln_final")
