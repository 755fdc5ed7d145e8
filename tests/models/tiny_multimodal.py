"""Tiny models, with random weights, of every family that reads images or sound as well as text.

The configs are those of transformers with small sizes in place of their own: what a family is named, and which parts it
has, follow the library.
"""

import torch
from transformers import CONFIG_MAPPING, AutoModelForMultimodalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES

from heldin.models.reading import quiet_transformers

VOCABULARY, CONTEXT = 400, 64
FAMILIES = sorted(MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES)
# Those of which many checkpoints are fine-tuned.
COMMON = ("gemma3", "llama4", "llava", "mistral3", "qwen2_5_vl", "qwen2_vl", "qwen3_vl", "smolvlm")
MOST_NUMBERS = 30_000_000

# Where sizes of layers depend on each other.
_TWO_LAYERS = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}
_MADE_WITH = {family: {"text_config": _TWO_LAYERS} for family in ("gemma4", "gemma4_unified")}
_LARGEST = {
    **dict.fromkeys(("hidden_size", "embed_dim", "d_model", "out_hidden_size", "projection_dim", "n_embd"), 32),
    **dict.fromkeys(("vision_output_dim", "projector_input_dim", "projector_output_dim"), 32),
    **dict.fromkeys(("intermediate_size", "intermediate_size_mlp", "mlp_dim", "ffn_dim", "encoder_ffn_dim"), 32),
    **dict.fromkeys(("decoder_ffn_dim", "moe_intermediate_size", "shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "depth", "encoder_layers", "decoder_layers", "n_layer"), 2),
    **dict.fromkeys(("num_attention_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "n_head"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_experts_per_tok"), 2),
    **dict.fromkeys(("head_dim", "global_head_dim", "kv_lora_rank", "q_lora_rank", "qk_rope_head_dim"), 8),
    **dict.fromkeys(("qk_nope_head_dim", "v_head_dim", "hidden_size_per_layer_input"), 8),
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), VOCABULARY),
    "max_position_embeddings": CONTEXT,
    "image_size": 28,
    "patch_size": 14,
}


def tiny_multimodal(family, seed=0):
    """A model of a family in evaluation mode.

    Raises whatever the library raises for sizes that do not go together, and ValueError for a model that stays large.
    """
    config = CONFIG_MAPPING[family](**_MADE_WITH.get(family, {}))
    _shrink(config)
    with quiet_transformers():
        with torch.device("meta"):
            numbers = AutoModelForMultimodalLM.from_config(config).num_parameters()
        if numbers > MOST_NUMBERS:
            raise ValueError(f"{numbers:,} parameters")
        torch.manual_seed(seed)
        return AutoModelForMultimodalLM.from_config(config).eval()


def _shrink(config):
    for key, value in list(vars(config).items()):
        if hasattr(value, "to_dict"):
            _shrink(value)
        elif isinstance(value, bool) or not isinstance(value, int):
            continue
        elif key in _LARGEST:
            setattr(config, key, min(value, _LARGEST[key]))
        elif key.endswith(("token_id", "token_index")):
            # Of images and the like: the last ones, which no text of the tests has.
            setattr(config, key, VOCABULARY - 1 if key.startswith(("image", "video", "audio")) else 0)
    layers = getattr(config, "num_hidden_layers", 2)
    for key in ("layer_types", "mlp_layer_types"):
        if getattr(config, key, None):
            setattr(config, key, getattr(config, key)[-layers:])
    rope = getattr(config, "rope_parameters", None)
    if isinstance(rope, dict) and hasattr(config, "hidden_size"):
        # Of families with a rotary embedding in three parts, which are halves of a head's width together.
        width = vars(config).get("head_dim") or config.hidden_size // config.num_attention_heads
        half = int(width * rope.get("partial_rotary_factor", 1)) // 2
        rope["mrope_section"] = [half - 2 * (half // 3), half // 3, half // 3]
