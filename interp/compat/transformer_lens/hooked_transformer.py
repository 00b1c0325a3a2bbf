"""HookedTransformer with TransformerLens' calling conventions, around our own model.

`model.native` is the model itself, for everything in `interp`; this class holds no weights of its own. What differs
from a native model is what notebooks rely on:

- a text begins with a BOS unless `prepend_bos=False`;
- `stop_at_layer` returns the residual stream, `return_type` chooses logits, loss, both or nothing;
- hooks may stay (`add_hook`), and the parameters take gradients;
- `from_pretrained` folds and centres the weights, `from_pretrained_no_processing` does not.

It departs from TransformerLens on purpose where that would be silently wrong: an unknown site name is an error with the
nearest names; so are a named hook that no pass of its `hooks` block reached, and backward hooks that `run_with_hooks`
would take off before a backward pass; the pads of a list of texts are masked and not in the loss; a text that begins with
the BOS gets no second; `cache.logit_attrs` counts the gain of the final norm where it is not folded.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from interp.compat.transformer_lens import utils
from interp.compat.transformer_lens.absent import MODEL, message
from interp.compat.transformer_lens.config import HookedTransformerConfig, architecture, lens_config
from interp.compat.transformer_lens.convert import lens_tokenizer
from interp.compat.transformer_lens.generating import Generating
from interp.compat.transformer_lens.hook_points import Hooks, LensPoint
from interp.compat.transformer_lens.hooking import Hooking
from interp.compat.transformer_lens.parts import BlockPart, Embed, NormPart, PosEmbed, Unembed
from interp.compat.transformer_lens.pretrained import load_pretrained
from interp.compat.transformer_lens.state import read_state, write_state
from interp.compat.transformer_lens.tokenizing import Tokenizing
from interp.model import HookedTransformer as NativeTransformer
from interp.model.factored import FactoredMatrix
from interp.tokens import Tokenizer, Tokens
from interp.weights.load import usable_device

RETURN_TYPES = ("logits", "loss", "both", None)
FROM_NATIVE = frozenset({"W_E", "W_U", "b_U", "W_pos", "W_E_pos", "W_Q", "W_O", "b_Q", "b_O"})
FROM_NATIVE |= {"W_in", "W_gate", "W_out", "b_in", "b_out", "accumulated_bias", "all_composition_scores"}
FROM_NATIVE |= {"all_head_labels", "to_string", "to_single_token", "to_single_str_token"}
"""What the native model already has by TransformerLens' name and meaning."""


class HookedTransformer(Tokenizing, Generating, Hooking, nn.Module):
    """A model with TransformerLens 3.9's HookedTransformer API.

    Args:
        cfg: the architecture; weights are drawn from N(0, initializer_range).
        tokenizer: ours, or a fast tokenizer of transformers; None for token ids alone.
        move_to_device: put the model on cfg.device.
        default_padding_side: "right" or "left".
    """

    def __init__(
        self,
        cfg: HookedTransformerConfig | dict[str, Any],
        tokenizer: Any = None,
        move_to_device: bool = True,
        default_padding_side: str | None = None,
    ) -> None:
        cfg = HookedTransformerConfig.from_dict(cfg) if isinstance(cfg, dict) else cfg
        if tokenizer is None and cfg.tokenizer_name is not None:
            tokenizer = Tokenizer.from_folder(cfg.tokenizer_name)
        ours = lens_tokenizer(tokenizer, cfg.model_name)
        if cfg.d_vocab == -1:
            if ours is None:
                raise ValueError("d_vocab is missing; pass it, or a tokenizer")
            cfg.d_vocab = cfg.d_vocab_out = ours.vocab_size
        native = NativeTransformer(architecture(cfg), ours, seed=cfg.seed or 0, dtype=cfg.dtype)
        if cfg.init_weights:
            _draw(native, cfg)
        native = native.to(usable_device(str(cfg.device))) if move_to_device else native
        self._wrap(native, cfg, default_padding_side)

    @classmethod
    def from_native(cls, native: NativeTransformer, cfg: HookedTransformerConfig | None = None) -> "HookedTransformer":
        """A model around one of ours. The weights are shared; their parameters take gradients from now on."""
        model = cls.__new__(cls)
        model._wrap(native, cfg or lens_config(native), None)
        return model

    @classmethod
    def from_pretrained(cls, model_name: str, **options: Any) -> "HookedTransformer":
        """Load a model and fold and centre its weights; see `pretrained.load_pretrained` for the options."""
        return cls._loaded(*load_pretrained(model_name, **options))

    @classmethod
    def from_pretrained_no_processing(cls, model_name: str, **options: Any) -> "HookedTransformer":
        """Load a model as its checkpoint is."""
        off = dict.fromkeys(("fold_ln", "center_writing_weights", "center_unembed", "fold_value_biases"), False)
        return cls._loaded(*load_pretrained(model_name, **{**off, **options}))

    @classmethod
    def _loaded(cls, native: NativeTransformer, default_prepend_bos: bool, padding: str | None) -> "HookedTransformer":
        cfg = lens_config(native)
        cfg.default_prepend_bos = default_prepend_bos
        model = cls.__new__(cls)
        model._wrap(native, cfg, padding)
        return model

    def _wrap(self, native: NativeTransformer, cfg: HookedTransformerConfig, padding: str | None) -> None:
        nn.Module.__init__(self)
        self.native = native
        for weight in native.parameters():
            weight.requires_grad_(weight.is_floating_point())
        self.cfg = cfg
        self.padding_side = padding or "right"
        self.hooks_attached = Hooks(native, self._active_sites)
        self.training = native.training

    # Parts ---------------------------------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        if name in FROM_NATIVE:
            return getattr(self.native, name)
        if name.startswith("hook_") and name in self.native.hook_dict:
            return LensPoint(self.native.hook_dict[name], self.hooks_attached)
        if name in MODEL:
            raise AttributeError(message(name, MODEL))
        return super().__getattr__(name)

    @cached_property
    def blocks(self) -> list[BlockPart]:
        """The blocks' weights and hooks."""
        return [BlockPart(self.native, self.hooks_attached, layer) for layer in range(self.cfg.n_layers)]

    @cached_property
    def embed(self) -> Embed:
        """Token embedding."""
        return Embed(self.native, self.hooks_attached, "")

    @cached_property
    def pos_embed(self) -> PosEmbed:
        """Learned positions."""
        return PosEmbed(self.native, self.hooks_attached, "")

    @cached_property
    def unembed(self) -> Unembed:
        """Unembedding."""
        return Unembed(self.native, self.hooks_attached, "")

    @cached_property
    def ln_final(self) -> NormPart:
        """The norm before the unembedding."""
        return NormPart(self.native, self.hooks_attached, "ln_final", self.native.ln_final)

    @property
    def W_K(self) -> Float[Tensor, "layer head d_model d_head"]:
        """Key weights for every query head."""
        return torch.stack([block.attn.W_K for block in self.blocks])

    @property
    def W_V(self) -> Float[Tensor, "layer head d_model d_head"]:
        """Value weights for every query head."""
        return torch.stack([block.attn.W_V for block in self.blocks])

    @property
    def b_K(self) -> Float[Tensor, "layer head d_head"]:
        """Key biases for every query head."""
        return torch.stack([block.attn.b_K for block in self.blocks])

    @property
    def b_V(self) -> Float[Tensor, "layer head d_head"]:
        """Value biases for every query head."""
        return torch.stack([block.attn.b_V for block in self.blocks])

    @property
    def OV(self) -> FactoredMatrix:
        """W_V W_O over [layer head]."""
        return self.native.OV()

    @property
    def QK(self) -> FactoredMatrix:
        """W_Q W_K^T over [layer head]."""
        return self.native.QK()

    @property
    def n_params_total(self) -> int:
        """All parameters, embeddings included."""
        return sum(weight.numel() for weight in self.parameters())

    def to(self, *args: Any, print_details: bool = True, **kwargs: Any) -> "HookedTransformer":
        """Move or cast, as nn.Module does. Nothing is printed.

        Raises:
            ValueError: a device that cannot be used here.
        """
        del print_details
        for place in (*args[:1], kwargs.get("device")):
            if isinstance(place, str | torch.device):
                usable_device(place)
        return super().to(*args, **kwargs)

    def cuda(self, device: int | str | torch.device | None = None) -> "HookedTransformer":
        """Move to a CUDA device; None for the current one."""
        return self.to(torch.device("cuda") if device is None else torch.device(device))

    def _apply(self, *args: Any, **kwargs: Any) -> "HookedTransformer":
        """What `to`, `cuda`, `cpu`, `half` ... have in common; the configuration follows."""
        super()._apply(*args, **kwargs)
        self.cfg.device, self.cfg.dtype = str(self.native.device), self.native.dtype
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Weights by TransformerLens' names, [head d_model d_head]; with arguments, as nn.Module has it."""
        return super().state_dict(*args, **kwargs) if args or kwargs else read_state(self)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Copy in weights by TransformerLens' names; see `state.write_state`."""
        if assign:
            raise ValueError("assign=True is not offered: weights are turned into another layout, and so copied")
        return nn.modules.module._IncompatibleKeys(*write_state(self, state_dict, strict))

    def set_use_attn_result(self, use_attn_result: bool) -> None:
        """Record `hook_result` when no site is named. A hook on it works either way."""
        self.cfg.use_attn_result = use_attn_result

    def set_use_split_qkv_input(self, use_split_qkv_input: bool) -> None:
        """Record `hook_q_input`, `hook_k_input` and `hook_v_input` when no site is named."""
        self.cfg.use_split_qkv_input = use_split_qkv_input

    def set_use_hook_mlp_in(self, use_hook_mlp_in: bool) -> None:
        """Record `hook_mlp_in` when no site is named."""
        self.cfg.use_hook_mlp_in = use_hook_mlp_in

    def set_use_attn_in(self, use_attn_in: bool) -> None:
        """Record `hook_attn_in` when no site is named."""
        self.cfg.use_attn_in = use_attn_in

    # Running -------------------------------------------------------------------------------------------------------

    def forward(
        self,
        input: Any,
        return_type: str | None = "logits",
        loss_per_token: bool = False,
        prepend_bos: bool | None = None,
        padding_side: str | None = None,
        start_at_layer: int | None = None,
        tokens: Int[Tensor, "batch pos"] | None = None,
        *,
        attention_mask: Tensor | None = None,
        stop_at_layer: int | None = None,
    ) -> Any:
        """One pass.

        Args:
            input: text, texts, ids [pos] or [batch pos], or with `start_at_layer` the stream [batch pos d_model].
            return_type: "logits" [batch pos d_vocab], "loss" (nats, a scalar), "both" as (logits, loss), or None.
            loss_per_token: the loss as [batch pos-1].
            prepend_bos: None follows cfg.default_prepend_bos.
            padding_side: for several texts; None follows the tokenizer's.
            start_at_layer: run from this block on; negative counts from the end.
            tokens: ids of the texts, for a loss with `start_at_layer`.
            attention_mask: 1 for real tokens [batch pos]; None takes ids as real.
            stop_at_layer: return the stream before this block; negative counts from the end.
        """
        if return_type not in RETURN_TYPES:
            raise ValueError(f"return_type must be one of {', '.join(map(str, RETURN_TYPES))}, got {return_type!r}")
        if start_at_layer is None:
            batch = self.batch(input, prepend_bos, padding_side, attention_mask)
            out = self.native(batch, stop_at_layer=stop_at_layer)
        else:
            batch = self._batch_of_stream(tokens, attention_mask)
            out = self.native(input, start_at_layer=start_at_layer, stop_at_layer=stop_at_layer, tokens=batch)
        out = out.as_subclass(Tensor)
        if stop_at_layer is not None or return_type == "logits":
            return out
        if return_type is None:
            return None
        if batch is None or (start_at_layer is not None and tokens is None):
            raise ValueError("a loss with start_at_layer needs tokens=")
        loss = self.loss_fn(out, batch.ids, None if bool(batch.mask.all()) else batch.mask, loss_per_token)
        return loss if return_type == "loss" else utils.Output(out, loss)

    def batch(
        self, input: Any, prepend_bos: bool | None, padding_side: str | None, attention_mask: Tensor | None
    ) -> Tokens:
        """Input as ids with their mask."""
        if isinstance(input, Tokens):
            return input
        if isinstance(input, str) or (isinstance(input, list) and input and isinstance(input[0], str)):
            batch = self.padded(input, prepend_bos, padding_side)
        else:
            ids = torch.as_tensor(input).to(self.native.device)
            ids = ids[None] if ids.ndim == 1 else ids
            batch = Tokens(ids.long(), self.real_tokens(ids, prepend_bos))
        if attention_mask is None:
            return batch
        return Tokens(batch.ids, attention_mask.to(batch.ids.device).bool(), batch.bos_added, batch.texts)

    @staticmethod
    def _batch_of_stream(tokens: Tensor | None, mask: Tensor | None) -> Tokens | None:
        """Ids and mask of a pass that starts inside the model; where only the mask is known, the ids are zeros."""
        like = mask if tokens is None else tokens
        if like is None:
            return None
        ids = torch.zeros_like(like, dtype=torch.long) if tokens is None else tokens.long()
        return Tokens(ids, torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool())

    def loss_fn(
        self,
        logits: Float[Tensor, "batch pos d_vocab"],
        tokens: Int[Tensor, "batch pos"],
        attention_mask: Tensor | None = None,
        per_token: bool = False,
    ) -> Tensor:
        """Next-token loss; see `utils.lm_cross_entropy_loss`."""
        return utils.lm_cross_entropy_loss(logits, tokens.to(logits.device), attention_mask, per_token)

    def __repr__(self) -> str:
        return f"transformer_lens {self.native!r}"


@torch.no_grad()
def _draw(native: NativeTransformer, cfg: HookedTransformerConfig) -> None:
    """Matrices from N(0, initializer_range); biases are 0 and gains 1 already."""
    generator = torch.Generator().manual_seed(cfg.seed or 0)
    for weight in native.parameters():
        if weight.ndim == 2:
            drawn = torch.randn(weight.shape, generator=generator) * cfg.initializer_range
            weight.copy_(drawn)
