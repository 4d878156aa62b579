"""A model with two stacks of blocks side by side, which no inspection can map, and its map.

Use:

    loaded = pb.load_model(TwinStack(TwinStackConfig(vocab_size=64)))
"""

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from patchbench.adapters import HookMap, HookPoint


class TwinStackConfig(PreTrainedConfig):
    """Sizes of `TwinStack`."""

    model_type = "twin_stack"

    def __init__(self, vocab_size=64, hidden_size=16, num_hidden_layers=2, **kwargs):
        self.vocab_size, self.hidden_size = vocab_size, hidden_size
        self.num_hidden_layers = num_hidden_layers
        super().__init__(**kwargs)


class _Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gru = nn.GRU(width, width, batch_first=True)

    def forward(self, x):
        return x + self.gru(x)[0]


class TwinStack(PreTrainedModel):
    """The sum of a stack of GRU blocks and one of Linears."""

    config_class = TwinStackConfig

    def __init__(self, config):
        super().__init__(config)
        width, layers = config.hidden_size, config.num_hidden_layers
        self.embed = nn.Embedding(config.vocab_size, width)
        self.over_time = nn.ModuleList(_Block(width) for _ in range(layers))
        self.at_once = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.head = nn.Linear(width, config.vocab_size)
        self.post_init()

    def get_input_embeddings(self):
        """Return the embedding."""
        return self.embed

    def get_output_embeddings(self):
        """Return the head."""
        return self.head

    def forward(self, input_ids, logits_to_keep=0, **kwargs):
        """Return the logits."""
        left = right = self.embed(input_ids)  # b t d
        for block, linear in zip(self.over_time, self.at_once, strict=True):
            left, right = block(left), right + linear(right).tanh()
        return CausalLMOutput(logits=self.head(left + right)[:, -logits_to_keep:])


def map_twin_stack(model):
    """Return the map of a `TwinStack`: the stack over time."""
    points = {}
    for layer in range(model.config.num_hidden_layers):
        path = f"over_time.{layer}"
        for component, io, inside in (
            ("block_input", "input", ""),
            ("mixer_input", "input", ".gru"),
            ("block_output", "output", ""),
        ):
            points[layer, component] = HookPoint(
                component=component, path=path + inside, io=io, layer=layer
            )
    points[None, "embed"] = HookPoint(component="embed", path="embed", io="output", layer=None)
    return HookMap(
        model_type="twin_stack",
        origin="user",
        num_layers=model.config.num_hidden_layers,
        blocks="over_time",
        points=points,
        head="head",
    )
