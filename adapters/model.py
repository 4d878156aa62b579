"""MixerLM: one causal language model whose layers each mix over time in their own way.

A `transformers` model like any other (Trainer, generate, save_pretrained, Auto classes), with two
habits of its own: with `labels` the head is computed only where a label is set, and inner values
of the mixers pass through hook points.

Use:

    config = MixerLMConfig.preset("mamba", width=64, layers=2, vocab_size=8196)
    model = MixerLMForCausalLM(config)
    model(input_ids, labels=labels).loss.backward()
    model(input_ids, logits_to_keep=1).logits            # (batch, 1, vocabulary)
    model.save_pretrained("m"); AutoModelForCausalLM.from_pretrained("m")

Glossary: b batch, t time, d width, v vocabulary, n labelled positions.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
from transformers.cache_utils import Cache
from transformers.generation.utils import GenerationMixin
from transformers.modeling_utils import PreTrainedModel

from patchbench.adapters.block import MixerBlock, build_norm
from patchbench.adapters.cache import MixerLMCache, check_cache
from patchbench.adapters.config import MixerLMConfig
from patchbench.adapters.initialisation import initialise
from patchbench.adapters.mixers import Mixer
from patchbench.adapters.model_io import (
    MixerLMCausalOutput,
    MixerLMOutput,
    check_arguments,
    check_mask,
    has_padding,
    kept,
    labelled,
    loss_items,
)
from patchbench.common import UserError


class MixerLMPreTrainedModel(PreTrainedModel):
    """What the two models share: config, initial weights, which parameters stay fp32."""

    config_class = MixerLMConfig
    config: MixerLMConfig
    base_model_prefix = "backbone"
    supports_gradient_checkpointing = True
    _no_split_modules = ["MixerBlock"]  # noqa: RUF012
    _is_stateful = True  # generation strategies that take tokens back are refused by transformers

    def _init_weights(self, module: nn.Module) -> None:
        initialise(module, self.config)

    def _initialize_weights(self, module: nn.Module, is_custom_code: bool = False) -> None:
        # For classes outside its own package transformers skips every module without parameters
        # of its own, such as a mixer made of Linears. Ours draws only what was not loaded.
        super()._initialize_weights(module, is_custom_code=False)


class MixerLMModel(MixerLMPreTrainedModel):
    """Embedding, blocks and final norm, without the head.

    Args:
        config: the model's config.
    """

    def __init__(self, config: MixerLMConfig) -> None:
        super().__init__(config)
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.pos_embed = None
        if config.positions == "learned":
            self.pos_embed = nn.Embedding(config.max_position_embeddings or 1, config.hidden_size)
        self.layers = nn.ModuleList(
            MixerBlock(config, layer) for layer in range(config.num_hidden_layers or 0)
        )
        self.norm = build_norm(config.final_norm, config.hidden_size, config.norm_eps)
        mixers = [cast(Mixer, cast(MixerBlock, block).mixer) for block in self.layers]
        limits = [mixer.max_length for mixer in mixers if mixer.max_length is not None]
        if self.pos_embed is not None:
            limits.append(self.pos_embed.num_embeddings)
        self.max_length: int | None = min(limits, default=None)
        for mixer in mixers:
            mixer.keep_float32()
        self.gradient_checkpointing = False
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """Return the token embedding."""
        return self.embed

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the token embedding."""
        self.embed = cast(nn.Embedding, value)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        cache: MixerLMCache | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> MixerLMOutput | tuple[Any, ...]:
        """Run the layers.

        Args:
            input_ids: (b, t); or `inputs_embeds`.
            attention_mask: (b, t), or (b, past + t) with a cache; 0 at padding, which may only
                follow the real tokens, and of which no cache may be made.
            inputs_embeds: (b, t, d), in place of the token embedding.
            cache: what an earlier call returned; it is continued in place.
            use_cache: whether to return the states; by default the config's `use_cache` in
                evaluation mode, but not with padding, and never under gradient checkpointing.
            output_hidden_states: whether to return the residual stream between blocks.
            return_dict: False for a tuple.
            kwargs: further arguments of transformers' callers. One that would change the result
                and is not known here is refused.

        Raises:
            UserError: padding on the left or in a cache, an unknown argument or one of another
                type, a token that is not in the vocabulary, embeddings of another width, a cache
                of other rows or layers, another number of dimensions, no token at all, or more
                positions than the model has learned.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise UserError("the model needs input_ids or inputs_embeds", "give exactly one")
        check_arguments(kwargs, use_cache, inputs_embeds, self.embed.weight)
        padded = attention_mask is not None and has_padding(attention_mask)  # pyright: ignore[reportArgumentType]
        x = inputs_embeds if input_ids is None else self._embed(input_ids)  # b t d
        assert x is not None
        if x.ndim != 3:
            given = tuple(x.shape if input_ids is None else input_ids.shape)
            raise UserError(f"the input has shape {given}", "give one row per document: ids[None]")
        if 0 in x.shape[:2]:
            raise UserError("the input has no tokens", "give at least one row of at least one")
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training and not padded
        if self.gradient_checkpointing and self.training and torch.is_grad_enabled():
            if cache is not None and cache.length:
                raise UserError(
                    "gradient checkpointing cannot continue from a cache",
                    "run the whole sequence, or switch one of the two off",
                )
            use_cache, cache = False, None
        if use_cache and cache is None:
            cache = MixerLMCache(len(self.layers))
        if cache is not None:
            if padded:
                raise UserError(
                    "padding would enter the states of the cache",
                    "batch sequences of equal length, or pass use_cache=False",
                )
            check_cache(cache, layers=len(self.layers), rows=x.shape[0])
        past = 0 if cache is None else cache.length
        total = past + x.shape[1]
        if attention_mask is not None:
            check_mask(attention_mask, rows=x.shape[0], time=x.shape[1], past=past)
        if self.max_length is not None and total > self.max_length:
            raise UserError(
                f"{total} tokens, but the model has learned {self.max_length} positions",
                "shorten the input, or train with a larger max_position_embeddings",
            )
        if self.pos_embed is not None:
            x = x + self.pos_embed(torch.arange(past, total, device=x.device))

        wanted = (
            self.config.output_hidden_states
            if output_hidden_states is None
            else output_hidden_states
        )
        hidden_states = (x,)
        # The layers fill a draft, so that an exception among them leaves the cache as it was.
        draft = None if cache is None else cache.draft()
        for block in self.layers:
            x = block(x, cache=draft)
            hidden_states += (x,) if wanted else ()
        x = self.norm(x)
        if cache is not None and draft is not None:
            cache.states, cache.length = draft.states, total
        output = MixerLMOutput(
            last_hidden_state=x,
            cache=cache,
            hidden_states=(*hidden_states[:-1], x) if wanted else None,
        )
        return output.to_tuple() if return_dict is False else output

    def _embed(self, input_ids: Tensor) -> Tensor:
        if not isinstance(input_ids, Tensor) or input_ids.dtype not in (torch.int64, torch.int32):
            kind = input_ids.dtype if isinstance(input_ids, Tensor) else type(input_ids).__name__
            raise UserError(f"input_ids are {kind}", "give a tensor of token ids, torch.long")
        try:
            return self.embed(input_ids)
        except IndexError:
            low, high, size = int(input_ids.min()), int(input_ids.max()), self.embed.num_embeddings
            raise UserError(
                f"token ids from {low} to {high}, but the vocabulary has {size}",
                f"give ids from 0 to {size - 1}",
            ) from None


class MixerLMForCausalLM(MixerLMPreTrainedModel, GenerationMixin):
    """`MixerLMModel` with a language model head, tied to the embedding unless the config says no.

    Args:
        config: the model's config.
    """

    _tied_weights_keys = {"lm_head.weight": "backbone.embed.weight"}  # noqa: RUF012

    def __init__(self, config: MixerLMConfig) -> None:
        super().__init__(config)
        self.backbone = MixerLMModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.loss_type = "ForCausalLM"
        self.post_init()

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # transformers' caches hold other states; the first call makes a MixerLMCache

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        next_sequence_length: int | None = None,
        cache: Cache | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Return what `forward` gets at a step of `generate`; see `GenerationMixin`.

        Raises:
            UserError: the cache has seen all of the prompt, which would run once more.
        """
        if cache is not None and next_sequence_length is not None and next_sequence_length < 1:
            raise UserError(
                f"the cache has seen {cache.get_seq_length()} tokens, the prompt has "
                f"{input_ids.shape[1]}",
                "give the whole sequence, with a token at least that the cache has not seen",
            )
        parent: Any = super()  # typed for a class that has a quantizer, an encoder and so on
        return parent.prepare_inputs_for_generation(
            input_ids, next_sequence_length, cache, *args, **kwargs
        )

    def get_input_embeddings(self) -> nn.Module:
        """Return the token embedding."""
        return self.backbone.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the token embedding."""
        self.backbone.set_input_embeddings(value)

    def get_output_embeddings(self) -> nn.Module:
        """Return the head."""
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replace the head."""
        self.lm_head = cast(nn.Linear, new_embeddings)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        cache: MixerLMCache | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        logits_to_keep: int | Tensor | None = None,
        **kwargs: Any,
    ) -> MixerLMCausalOutput | tuple[Any, ...]:
        """Predict the next token.

        Args:
            input_ids: (b, t).
            attention_mask: see `MixerLMModel.forward`.
            inputs_embeds: see `MixerLMModel.forward`.
            labels: (b, t), aligned with `input_ids` and shifted here: position i predicts label
                i + 1; −100 where there is none.
            cache: see `MixerLMModel.forward`.
            use_cache: see `MixerLMModel.forward`; with labels a cache is made only when asked for.
            output_hidden_states: see `MixerLMModel.forward`.
            return_dict: False for a tuple.
            logits_to_keep: a number: the logits of that many last positions (0: all), (b, number,
                v); positions (i,) or per row (b, i): the logits there; a boolean mask (b, t): the
                logits where it holds, (n, v). When left out: all positions, or with labels only
                the n that predict one, (n, v) row by row, so that a head over a large vocabulary
                costs nothing elsewhere.
            kwargs: `num_items_in_batch`: divide the summed loss by it (gradient accumulation).

        Returns:
            `MixerLMCausalOutput`.

        Raises:
            UserError: see `MixerLMModel.forward`; or labels that are no tokens, or logits asked for
                where there are none.
        """
        if labels is not None and use_cache is None:
            use_cache = False
        base = self.backbone(
            input_ids,
            attention_mask=attention_mask,
            inputs_embeds=inputs_embeds,
            cache=cache,
            use_cache=use_cache,
            output_hidden_states=output_hidden_states,
            **kwargs,
        )
        hidden = base.last_hidden_state  # b t d
        loss = logits = None
        if labels is not None:
            if labels.shape != hidden.shape[:2]:
                raise UserError(
                    f"labels have shape {tuple(labels.shape)}, tokens {tuple(hidden.shape[:2])}",
                    "give one label per token; the shift is made here",
                )
            # The decorator that keeps the compiler out is typed as taking one argument.
            select: Any = labelled
            size = self.lm_head.out_features
            selected, targets = select(hidden, labels.to(hidden.device), size)  # n d, n
            logits = self.lm_head(selected)  # n v
            loss = self.loss_function(
                logits, None, self.config.vocab_size, shift_labels=targets, **loss_items(kwargs)
            )
        if labels is None or logits_to_keep is not None:
            logits = self.lm_head(kept(hidden, 0 if logits_to_keep is None else logits_to_keep))
        output = MixerLMCausalOutput(
            loss=loss, logits=logits, cache=base.cache, hidden_states=base.hidden_states
        )
        return output.to_tuple() if return_dict is False else output


def register_auto_classes() -> None:
    """Make AutoConfig, AutoModel and AutoModelForCausalLM know the model type "mixer_lm"."""
    AutoConfig.register("mixer_lm", MixerLMConfig, exist_ok=True)
    AutoModel.register(MixerLMConfig, MixerLMModel, exist_ok=True)
    AutoModelForCausalLM.register(MixerLMConfig, MixerLMForCausalLM, exist_ok=True)


register_auto_classes()
