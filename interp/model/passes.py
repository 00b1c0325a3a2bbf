"""One forward pass in parts: embedding, what the layers share (rotations, masks, cache), blocks, logits.

The modules are made here as well, so that this file says what a transformer is; `transformer.py` says how it is used.
"""

from collections.abc import Sequence
from itertools import islice
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from interp.hooks import HookPoint, RunState, Texts
from interp.model.attention import Angles, PassInputs
from interp.model.block import Block
from interp.model.cache import KVCache
from interp.model.config import ModelConfig
from interp.model.inputs import refuse_broken_scores, refuse_not_finite
from interp.model.kernels import products_of
from interp.model.linear import Embedding, Linear, blank
from interp.model.mask import Places, attention_mask
from interp.model.mlp import ACTIVATION
from interp.model.named_weights import NamedWeights
from interp.model.norm import Norm
from interp.model.position import Rope, alibi_bias, alibi_slopes, sinusoids
from interp.tokens import Tokenizer, Tokens

UNKNOWN = -1
"""Id of tokens that a pass was not told, since it begins from a stream."""


class MaskedHead(nn.Module):
    """What BERT's masked language model does before the unembedding: dense layer, activation, LayerNorm."""

    def __init__(self, cfg: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.dense = Linear(cfg.d_model, cfg.d_model, True, dtype)
        self.act = ACTIVATION[cfg.act_fn]
        self.norm = Norm(cfg.d_model, "layer", cfg.norm_eps, dtype)

    def forward(self, x: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows d_model"]:
        return self.norm(self.act(self.dense(x)))


class ForwardPass(NamedWeights):
    """The modules of a transformer and the steps of its pass. Steps read and write `self.run`, the state of the pass."""

    tokenizer: Tokenizer | None
    pos_embed: Embedding | None
    type_embed: Embedding | None
    embed_norm: Norm | None
    ln_final: Norm | None
    mlm: MaskedHead | None
    unembed: Embedding | None

    def __init__(self, cfg: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.cfg = cfg
        self.run = RunState()
        self.checkpoint_blocks = False
        """Keep no activations inside blocks for the backward pass, but compute them again: less memory, more time."""
        self.embed = Embedding(cfg.d_vocab, cfg.d_model, dtype)
        self.pos_embed = Embedding(cfg.n_ctx, cfg.d_model, dtype) if cfg.positional == "learned" else None
        self.type_embed = Embedding(cfg.n_token_types, cfg.d_model, dtype) if cfg.n_token_types else None
        self.embed_norm = None if cfg.embed_norm == "none" else Norm(cfg.d_model, "layer", cfg.norm_eps, dtype)
        self.blocks = nn.ModuleList(Block(cfg, layer, self.run, dtype) for layer in range(cfg.n_layers))
        options = {"offset": cfg.norm_offset, "name": "ln_final", "run": self.run}
        self.ln_final = Norm(cfg.d_model, cfg.norm, cfg.norm_eps, dtype, **options) if cfg.final_norm else None
        self.mlm = MaskedHead(cfg, dtype) if cfg.mlm_head else None
        self.unembed = None if cfg.tie_embeddings else Embedding(cfg.d_vocab, cfg.d_model, dtype)
        self.register_parameter("unembed_bias", blank(cfg.d_vocab, dtype=dtype) if cfg.unembed_bias else None)
        # What is not a weight and follows from the configuration.
        self.rope = Rope(cfg) if cfg.positional == "rope" else None
        own = self.rope is not None and cfg.rope_theta_local is not None
        self.rope_local = Rope(cfg, local=True) if own else self.rope
        self.sinusoids = sinusoids(cfg.n_ctx, cfg.d_model) if cfg.positional == "sinusoidal" else None
        self.slopes = alibi_slopes(cfg.n_heads) if cfg.positional == "alibi" else None
        self.hook_embed = HookPoint("hook_embed", self.run)
        self.hook_pos_embed = HookPoint("hook_pos_embed", self.run)
        self.hook_token_type_embed = HookPoint("hook_token_type_embed", self.run)
        self.hook_full_embed = HookPoint("hook_full_embed", self.run)

    def points(self) -> list[HookPoint]:
        """All sites in the order of computation."""
        found = [self.hook_embed]
        found += [self.hook_pos_embed] if self.pos_embed is not None or self.sinusoids is not None else []
        found += [self.hook_token_type_embed] if self.type_embed is not None else []
        found += [self.hook_full_embed] if self.cfg.embed_norm == "sum" else []
        found += [point for block in self.iter_blocks() for point in block.points()]
        return found + (self.ln_final.points() if self.ln_final is not None else [])

    @property
    def dtype(self) -> torch.dtype:
        """Of the parameters."""
        return self.embed.dtype

    @property
    def device(self) -> torch.device:
        """Of the parameters."""
        return self.embed.device

    # State of the pass --------------------------------------------------------------------------------------------

    def _stop(self, stop_at_layer: Any, name: str = "stop_at_layer") -> int | None:
        if stop_at_layer is None:
            return None
        if not isinstance(stop_at_layer, int) or isinstance(stop_at_layer, bool):
            raise ValueError(f"{name} must be a whole number, got {stop_at_layer!r}")
        stop = stop_at_layer + (self.cfg.n_layers if stop_at_layer < 0 else 0)
        if not 0 <= stop <= self.cfg.n_layers:
            raise ValueError(f"{name}={stop_at_layer}: the model has {self.cfg.n_layers} layers")
        return stop

    def _start(self, start_at_layer: Any, stop: int | None) -> int:
        start = self._stop(start_at_layer, "start_at_layer")
        assert start is not None
        if stop is not None and start > stop:
            raise ValueError(f"start_at_layer={start_at_layer} lies after stop_at_layer={stop}: nothing would run")
        return start

    def _given_stream(self, x: Any, tokens: Tokens | None) -> tuple[Tensor, Tokens]:
        if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim != 3 or x.shape[2] != self.cfg.d_model:
            got = f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(f"start_at_layer needs a stream [batch pos {self.cfg.d_model}] as x, got {got}")
        x = x.to(self.device, self.dtype)
        if tokens is None:
            ids = torch.full(x.shape[:2], UNKNOWN, dtype=torch.long, device=self.device)
            tokens = Tokens(ids, torch.ones_like(ids, dtype=torch.bool))
        if tokens.ids.shape != x.shape[:2]:
            raise ValueError(f"tokens {tuple(tokens.ids.shape)} do not fit a stream {tuple(x.shape)}")
        longest = int(tokens.positions.max()) + 1
        if longest > self.cfg.n_ctx:
            raise ValueError(f"the stream has {longest} tokens, the context holds {self.cfg.n_ctx}")
        return x, tokens.to(self.device)

    def _prompt_len(
        self, prompt_len: int | Sequence[int] | Tensor | None, tokens: Tokens
    ) -> Int[Tensor, " batch"] | None:
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
        run.sums = []
        run.begun += 1
        run.positions = tokens.positions if start is None else start[:, None] + tokens.positions

    def _end(self, stop: int | None, start: int = 0) -> None:
        self.run.last_stop, self.run.last_start = stop, start
        self.run.forwards += 1

    # Steps --------------------------------------------------------------------------------------------------------

    def _embedded(self, tokens: Tokens) -> Float[Tensor, "batch pos d_model"]:
        positions, embed = self.run.positions, self.embed(tokens.ids)
        assert positions is not None
        if self.cfg.embed_scale is not None:
            embed = embed * torch.tensor(self.cfg.embed_scale, dtype=self.dtype, device=embed.device)
        if self.embed_norm is not None and self.cfg.embed_norm == "token":
            embed = self.embed_norm(embed)
        resid = self.hook_embed(embed)
        if self.pos_embed is not None:
            resid = resid + self.hook_pos_embed(self.pos_embed(positions))
        if self.sinusoids is not None:
            self.sinusoids = self.sinusoids.to(self.device)
            resid = resid + self.hook_pos_embed(self.sinusoids[positions].to(self.dtype))
        if self.type_embed is not None:
            resid = resid + self.hook_token_type_embed(self.type_embed(torch.zeros_like(tokens.ids)))
        if self.embed_norm is not None and self.cfg.embed_norm == "sum":
            resid = self.hook_full_embed(self.embed_norm(resid))
        return resid

    def _stream(
        self, tokens: Tokens, stop: int | None, kv: KVCache | None, resid: Tensor | None = None, start: int = 0
    ) -> Float[Tensor, "batch pos d_model"]:
        """The stream after the blocks from `start` to before `stop`; from the tokens, or from a stream."""
        if kv is not None:
            assert self.run.positions is not None
            kv.extend(tokens.ids, tokens.mask, self.run.positions)
        self.run.texts = self._texts(tokens, kv, told=resid is None or bool((tokens.ids != UNKNOWN).any()))
        stream: Tensor = self._embedded(tokens) if resid is None else resid
        usual, local = self._shared(tokens, kv)
        recompute = self.checkpoint_blocks and torch.is_grad_enabled()
        for block in islice(self.iter_blocks(), start, stop):
            shared = local if block.local else usual
            if recompute:
                again = checkpoint(block, stream, shared, use_reentrant=False)
                assert isinstance(again, Tensor)
                stream = again
            else:
                stream = block(stream, shared)
        if self.run.sums:
            refuse_broken_scores(self.run.sums, stream, tokens)
        return stream

    def _texts(self, tokens: Tokens, kv: KVCache | None, *, told: bool) -> Texts:
        """The texts of this pass from their beginning."""
        of_token = None if self.tokenizer is None else self.tokenizer.token_bytes
        if kv is None:
            ids = tokens.ids if told else None
            return Texts(ids, tokens.mask, tokens.documents, tokens.parents, token_bytes=of_token)
        ids, real = kv.ids[:, : kv.length], kv.mask[:, : kv.length]
        return Texts(ids, real, copies=kv.copies, token_bytes=of_token, call=kv.memory)

    def _shared(self, tokens: Tokens, kv: KVCache | None) -> tuple[PassInputs, PassInputs]:
        """What layers share in this pass: (those that see everything, those with a window)."""
        if tokens.parents is not None and not self.cfg.causal:
            raise ValueError(
                f"{self.cfg.name} reads texts from both sides: texts that begin alike have nothing in common"
            )
        joined = tokens.documents is not None or tokens.parents is not None
        if joined and self.rope is not None and self.rope.by_length:
            raise ValueError(
                f"{self.cfg.name} turns tokens by the length of their text, which joined texts do not have: run them apart"
            )
        usual = self._inputs(tokens, kv, None)
        if self.cfg.window is None:
            return usual, usual
        return usual, self._inputs(tokens, kv, self.cfg.window)

    def _inputs(self, tokens: Tokens, kv: KVCache | None, window: int | None) -> PassInputs:
        positions, cfg = self.run.positions, self.cfg
        assert positions is not None
        n_queries = tokens.ids.shape[1]
        tree = tokens.parents is not None
        queries = Places(positions, tokens.mask, tokens.documents, tokens.ancestors if tree else None)
        keys = queries if kv is None else kv.keys(n_queries, local=window is not None)
        n_keys = keys.positions.shape[1]
        whole = (
            tokens.documents is None and not tree and bool(keys.real.all()) and (n_keys == n_queries or n_queries == 1)
        )
        plain = whole and (window is None or n_keys <= window)
        mask = None if plain else attention_mask(queries, keys, causal=cfg.causal, window=window)
        rope = self.rope if window is None else self.rope_local
        bias = angles = None
        if self.slopes is not None:
            bias = alibi_bias(self.slopes, keys.positions, self.dtype, rounded=cfg.alibi_scaled)
        if rope is not None:
            lengths = keys.positions.amax(1) + 1 if rope.by_length else None
            one = not rope.by_length and bool((positions == positions[:1]).all())
            angles = Angles(*rope.angles(positions[:1] if one else positions, self.dtype, lengths), rope.pairing)
        return PassInputs(angles, mask, plain and n_queries > 1 and cfg.causal, bias, kv)

    def _head(self, resid: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_vocab"]:
        return self._unembedded(resid if self.ln_final is None else self.ln_final(resid))

    def _unembedded(self, normed: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows d_vocab"]:
        if self.mlm is not None:
            normed = self.mlm(normed)
        logits = (self.embed if self.unembed is None else self.unembed).project(normed, self.unembed_bias)
        cap = self.cfg.final_softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def unembed_logits(self, resid: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows d_vocab"]:
        """Final norm (recomputed for these rows) and unembedding of any stream; fires no hooks."""
        return self._unembedded(resid if self.ln_final is None else self.ln_final.silent(resid))

    def _next(
        self,
        tokens: Tokens,
        kv: KVCache,
        phase: str,
        step: int,
        prompt_len: Int[Tensor, " batch"],
        start: Int[Tensor, " batch"] | None,
    ) -> Float[Tensor, "batch d_vocab"]:
        """One pass of a generation: the logits after the last place. `start` is each row's position of its first token.

        Where rotations depend on the length of the text and this token changes them, nothing in the cache holds any
        more: the pass runs over all tokens again.
        """
        if self.rope is not None and start is not None and self.rope.moves(start, start + tokens.lengths):
            tokens, start = kv.restart(tokens), None
        self._begin(tokens, phase, step, prompt_len, start)
        with products_of(tokens.ids.numel(), self.dtype, self.device):
            resid = self._stream(tokens, None, kv)
            refuse_not_finite(resid, tokens)
            return self._next_logits(resid)

    def _next_logits(self, resid: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch d_vocab"]:
        """Logits of the last place alone, unless a hook on the final norm must see them all."""
        if self.ln_final is None or not any(point.handles for point in self.ln_final.points()):
            resid = resid[:, -1:]
        logits = self._head(resid)[:, -1]
        self._end(None)
        return logits
