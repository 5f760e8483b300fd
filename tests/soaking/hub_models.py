"""Every backbone of KerasHub, small.

Most take their sizes from `SMALL`, by the names of their arguments; `OWN` has
what a backbone needs beside or instead.
"""

import inspect

import keras
import numpy as np

from tests.backends import BACKEND
from tests.soaking import build
from tests.soaking.lifecycle import Case

IMAGE = (32, 32, 3)
LENGTH = 5
BATCH = 2
VOCABULARY = 10

SMALL = {
    "vocabulary_size": VOCABULARY,
    "vocab_size": VOCABULARY,
    "num_layers": 2,
    "num_heads": 2,
    "num_attention_heads": 2,
    "num_query_heads": 2,
    "num_key_value_heads": 1,
    "hidden_dim": 8,
    "hidden_size": 8,
    "embedding_dim": 8,
    "intermediate_dim": 12,
    "mlp_dim": 12,
    "head_dim": 4,
    "head_size": 4,
    "max_sequence_length": 12,
    "projection_dim": 4,
    "patch_size": 8,
    "image_shape": IMAGE,
    "image_size": 32,
    "num_experts": 2,
    "top_k": 1,
    "moe_intermediate_dim": 6,
    "shared_expert_intermediate_dim": 6,
    "shared_expert_intermediate_size": 6,
    "bucket_size": 4,
    "num_layers_enc": 1,
    "num_layers_dec": 1,
    "dropout": 0.0,
    "dropout_rate": 0.0,
}
# How long free axes are where it matters: by backbone and input.
FREE = {
    "MoonshineBackbone": {
        "encoder_input_values": 900,
        "encoder_padding_mask": 900,
    },
    "SAMBackbone": {"masks": 16},
}

_GEMMA_PAIR = {
    **{
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in {
            "hidden_dim": 8,
            "intermediate_dim": 12,
            "num_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 4,
            "layer_types": ["full_attention", "sliding_attention"],
        }.items()
    },
    "sliding_window": 4,
}
_CLIP = {"image_shape": IMAGE, "num_layers": 1, "max_sequence_length": 12}
_QWEN_LINEAR = {
    "num_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 4,
    "linear_value_head_dim": 4,
    "partial_rotary_factor": 0.5,
}
_SMOL = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "rope_layer_enabled_list": [True, False],
    "layer_types": ["full_attention", "full_attention"],
    "mlp_bias": False,
    "layer_norm_epsilon": 1e-5,
    "max_position_embeddings": 16,
    "rope_theta": 10000.0,
    "partial_rotary_factor": 1.0,
}


def _mit():
    return {
        "layerwise_depths": [1, 1],
        "num_layers": 2,
        "layerwise_num_heads": [1, 2],
        "layerwise_sr_ratios": [2, 1],
        "max_drop_path_rate": 0.0,
        "layerwise_patch_sizes": [7, 3],
        "layerwise_strides": [4, 2],
        "hidden_dims": [4, 8],
        "image_shape": IMAGE,
    }


def _resnet(stages=3):
    return {
        "input_conv_filters": [64],
        "input_conv_kernel_sizes": [3],
        # The first must be 64.
        "stackwise_num_filters": [64, 8, 8, 8][:stages],
        "stackwise_num_blocks": [1] * stages,
        "stackwise_num_strides": [1, 2, 2, 2][:stages],
        "block_type": "basic_block",
        "image_shape": IMAGE,
    }


def _hgnet(stages=2):
    filters = [[6, 4, 8, 1, 1, 3], [8, 4, 12, 1, 2, 3]]
    filters += [[12, 4, 16, 1, 1, 3], [16, 4, 20, 1, 1, 3]]
    return {
        "embedding_size": 6,
        "stem_channels": [3, 4, 6],
        "hidden_act": "relu",
        "use_learnable_affine_block": True,
        "image_shape": IMAGE,
        "depths": [1] * stages,
        "hidden_sizes": [f[2] for f in filters[:stages]],
        "stackwise_stage_filters": filters[:stages],
        "apply_downsample": [False, True, True, True][:stages],
        "use_lightweight_conv_block": [False, True, True, True][:stages],
        "out_features": [f"stage{stages - 1}", f"stage{stages}"],
    }


def _clip_text(hub, prefix="CLIP", **more):
    arguments = {
        "vocabulary_size": VOCABULARY,
        "embedding_dim": 8,
        "hidden_dim": 8,
        "num_layers": 1,
        "num_heads": 2,
        "intermediate_dim": 12,
        "max_sequence_length": 12,
        **more,
    }
    return getattr(hub.models, f"{prefix}TextEncoder")(**arguments)


def _pair(prefix):
    """A vision and a text encoder."""

    def arguments(hub):
        vision = getattr(hub.models, f"{prefix}VisionEncoder")(
            patch_size=8,
            hidden_dim=8,
            num_layers=1,
            num_heads=2,
            intermediate_dim=12,
            image_shape=IMAGE,
        )
        # SigLIP's text encoder projects to the width of the vision encoder.
        more = {}
        if prefix == "SigLIP":
            more = {"projection_dim": 8, "max_sequence_length": LENGTH}
        return {
            "vision_encoder": vision,
            "text_encoder": _clip_text(hub, prefix, **more),
        }

    return arguments


def _vae(hub):
    from keras_hub.src.models.vae.vae_backbone import VAEBackbone

    return VAEBackbone(
        [32] * 4, [1] * 4, [32] * 4, [1] * 4, sampler_method="mode", name="vae"
    )


def _stable_diffusion(hub):
    return {
        "mmdit_patch_size": 2,
        "mmdit_hidden_dim": 8,
        "mmdit_num_layers": 1,
        "mmdit_num_heads": 2,
        "mmdit_position_size": 16,
        "mmdit_qk_norm": None,
        "mmdit_dual_attention_indices": None,
        "vae": _vae(hub),
        "clip_l": _clip_text(hub, intermediate_output_index=-1, name="clip_l"),
        "clip_g": _clip_text(hub, intermediate_output_index=-1, name="clip_g"),
        "image_shape": (16, 16, 3),
    }


def _blip2(hub):
    from keras_hub.src.models.blip2 import blip2_custom_opt
    from keras_hub.src.models.blip2 import blip2_qformer
    from keras_hub.src.models.blip2 import blip2_vision_encoder

    return {
        "vision_encoder": _class(blip2_vision_encoder, "VisionEncoder")(
            image_size=32,
            patch_size=8,
            num_layers=1,
            num_heads=2,
            hidden_dim=8,
            intermediate_dim=12,
            use_patch_bias=True,
            use_class_token=True,
            use_mha_bias=True,
            use_mlp_bias=True,
            dropout_rate=0.0,
            layer_norm_epsilon=1e-6,
            initializer_range=0.02,
        ),
        "qformer": _class(blip2_qformer, "QFormer")(
            num_query_tokens=2,
            num_layers=1,
            num_heads=2,
            hidden_dim=4,
            intermediate_dim=8,
            vision_dim=8,
            cross_attention_frequency=1,
            dropout=0.0,
            layer_norm_epsilon=1e-6,
        ),
        "language_model": _class(blip2_custom_opt, "CustomOPT")(
            vocabulary_size=VOCABULARY,
            num_layers=1,
            num_heads=2,
            hidden_dim=4,
            intermediate_dim=8,
            num_query_tokens=2,
            qformer_hidden_dim=4,
            max_sequence_length=12,
            dropout=0.0,
            language_projection=None,
        ),
    }


def _class(module, ending):
    return next(
        value
        for name, value in vars(module).items()
        if name.endswith(ending) and value.__module__ == module.__name__
    )


def _vit_det():
    return {
        "hidden_size": 8,
        "num_layers": 2,
        "intermediate_dim": 12,
        "num_heads": 2,
        "global_attention_layer_indices": [1],
        "patch_size": 8,
        "num_output_channels": 4,
        "window_size": 2,
        "image_shape": IMAGE,
    }


def _sam(hub):
    from keras_hub.src.models.sam import sam_mask_decoder
    from keras_hub.src.models.sam import sam_prompt_encoder

    return {
        "image_encoder": hub.models.ViTDetBackbone(
            **{**_vit_det(), "num_output_channels": 16}
        ),
        "prompt_encoder": sam_prompt_encoder.SAMPromptEncoder(
            hidden_size=16,
            image_embedding_size=(4, 4),
            input_image_size=(32, 32),
            mask_in_channels=16,
        ),
        "mask_decoder": sam_mask_decoder.SAMMaskDecoder(
            num_layers=1,
            hidden_size=16,
            intermediate_dim=8,
            num_heads=2,
            embedding_dim=16,
            num_multimask_outputs=2,
            iou_head_depth=2,
            iou_head_hidden_dim=8,
        ),
    }


def _sam3(hub):
    sizes = {"hidden_dim": 8, "intermediate_dim": 12, "num_heads": 2}
    image = {"image_shape": IMAGE, "patch_size": 4}
    parts = {
        "vision_encoder": {
            **sizes,
            **image,
            "num_layers": 2,
            "fpn_hidden_dim": 8,
            "fpn_scale_factors": [4.0, 2.0, 1.0, 0.5],
            "pretrain_image_shape": (16, 16, 3),
            "window_size": 2,
            "global_attn_indexes": [1],
        },
        "text_encoder": {
            **sizes,
            "vocabulary_size": VOCABULARY,
            "embedding_dim": 8,
            "num_layers": 1,
            "max_sequence_length": LENGTH,
        },
        "geometry_encoder": {**sizes, "num_layers": 1, "roi_size": 2},
        "detr_encoder": {**sizes, "num_layers": 1},
        "detr_decoder": {**sizes, **image, "num_layers": 1, "num_queries": 3},
        "mask_decoder": {
            "hidden_dim": 8,
            "num_heads": 2,
            "num_upsampling_stages": 3,
        },
    }
    return {
        name: getattr(hub.layers, f"SAM3{name.title().replace('_', '')}")(
            **arguments
        )
        for name, arguments in parts.items()
    }


def _d_fine(hub):
    return {
        "backbone": hub.models.HGNetV2Backbone(
            **{**_hgnet(4), "image_shape": (64, 64, 3)}
        ),
        "decoder_in_channels": [8, 8],
        "encoder_hidden_dim": 8,
        "num_labels": 4,
        "num_denoising": 0,
        "learn_initial_query": False,
        "num_queries": 3,
        "anchor_image_size": (64, 64),
        "feat_strides": [16, 32],
        "num_feature_levels": 2,
        "hidden_dim": 8,
        "encoder_in_channels": [16, 20],
        "encode_proj_layers": [1],
        "num_attention_heads": 2,
        "encoder_ffn_dim": 8,
        "num_encoder_layers": 1,
        "hidden_expansion": 0.5,
        "depth_multiplier": 0.5,
        "eval_idx": -1,
        "num_decoder_layers": 1,
        "decoder_attention_heads": 2,
        "decoder_ffn_dim": 8,
        "decoder_n_points": [2, 2],
        "lqe_hidden_dim": 4,
        "num_lqe_layers": 1,
        "out_features": ["stage3", "stage4"],
        "image_shape": (64, 64, 3),
        "seed": 0,
    }


def _mobilenet():
    return {
        "stackwise_expansion": [[8], [12, 12]],
        "stackwise_num_blocks": [1, 2],
        "stackwise_num_filters": [[4], [6, 6]],
        "stackwise_kernel_size": [[3], [3, 3]],
        "stackwise_num_strides": [[2], [2, 1]],
        "stackwise_se_ratio": [[0.25], [None, 0.25]],
        "stackwise_activation": [["relu"], ["relu", "hard_swish"]],
        "stackwise_padding": [[1], [1, 1]],
        "output_num_filters": 12,
        "input_num_filters": 4,
        "depthwise_filters": 4,
        "depthwise_stride": 2,
        "depthwise_residual": False,
        "last_layer_filter": 8,
        "squeeze_and_excite": 0.5,
        "image_shape": IMAGE,
    }


def _mobilenet_v5():
    pairs = {
        "stackwise_block_types": ("er", "uir"),
        "stackwise_num_filters": (4, 6),
        "stackwise_strides": (2, 2),
        "stackwise_act_layers": ("relu", "relu"),
        "stackwise_exp_ratios": (2.0, 2.0),
        "stackwise_se_ratios": (0.0, 0.0),
        "stackwise_dw_kernel_sizes": (0, 3),
        "stackwise_dw_start_kernel_sizes": (0, 0),
        "stackwise_dw_end_kernel_sizes": (0, 0),
        "stackwise_exp_kernel_sizes": (3, 0),
        "stackwise_pw_kernel_sizes": (1, 0),
        "stackwise_num_heads": (0, 0),
        "stackwise_key_dims": (0, 0),
        "stackwise_value_dims": (0, 0),
        "stackwise_kv_strides": (0, 0),
        "stackwise_use_cpe": (False, False),
    }
    return {
        **{name: [[one], [two]] for name, (one, two) in pairs.items()},
        "stackwise_num_blocks": [1, 1],
        "stem_size": 4,
        "use_msfa": False,
        "image_shape": IMAGE,
    }


def _efficientnet():
    return {
        "stackwise_width_coefficients": [1.0, 1.0],
        "stackwise_depth_coefficients": [1.0, 1.0],
        "stackwise_kernel_sizes": [3, 3],
        "stackwise_num_repeats": [1, 2],
        "stackwise_input_filters": [4, 4],
        "stackwise_output_filters": [4, 6],
        "stackwise_expansion_ratios": [1, 2],
        "stackwise_squeeze_and_excite_ratios": [0.0, 0.25],
        "stackwise_strides": [1, 2],
        "stackwise_block_types": ["fused", "unfused"],
        "stackwise_force_input_filters": [0, 0],
        "stackwise_nores_option": [False, False],
        "min_depth": 4,
        "depth_divisor": 2,
        "dropout": 0.0,
        "num_features": 8,
        "input_shape": IMAGE,
    }


def _gemma3n():
    return {
        "text_vocab_size": VOCABULARY,
        "text_hidden_size": 8,
        "num_hidden_layers": 1,
        "pad_token_id": 0,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "intermediate_size": [12],
        "hidden_activation": "gelu_approximate",
        "layer_types": ["full_attention"],
        "sliding_window": 4,
        "rope_theta": 10000.0,
        "max_position_embeddings": 16,
        "vocab_size_per_layer_input": VOCABULARY,
        "hidden_size_per_layer_input": 2,
        "altup_num_inputs": 2,
        "laurel_rank": 1,
    }


def _flux():
    return {
        "input_channels": 8,
        "hidden_size": 16,
        "mlp_ratio": 2.0,
        "num_heads": 2,
        "depth": 1,
        "depth_single_blocks": 1,
        "axes_dim": [2, 2, 4],
        "theta": 10000,
        "use_bias": True,
        "guidance_embed": True,
        "image_shape": (4, 8),
        "text_shape": (4, 8),
        "image_ids_shape": (4, 3),
        "text_ids_shape": (4, 3),
        "y_shape": (8,),
    }


# By backbone: arguments, or a function that makes them.
OWN = {
    "BLIP2Backbone": _blip2,
    "CLIPBackbone": _pair("CLIP"),
    "CLIPTextEncoder": {"num_layers": 1},
    "CLIPVisionEncoder": _CLIP,
    "CSPNetBackbone": {
        "stem_filters": 4,
        "stem_kernel_size": 3,
        "stem_strides": 1,
        "stackwise_depth": [1, 1],
        "stackwise_strides": [2, 2],
        "stackwise_num_filters": [4, 6],
        "block_type": "dark_block",
        "stage_type": "dark",
        "image_shape": (64, 64, 3),
    },
    "DFineBackbone": _d_fine,
    "DINOV2Backbone": {"position_embedding_shape": IMAGE},
    "DeepLabV3Backbone": lambda hub: {
        "image_encoder": hub.models.ResNetBackbone(**_resnet()),
        "low_level_feature_key": "P2",
        "spatial_pyramid_pooling_key": "P4",
        "dilation_rates": [1, 2],
        "upsampling_size": 4,
        "projection_filters": 4,
    },
    "DenseNetBackbone": {"stackwise_num_repeats": [1, 1], "growth_rate": 4},
    "DepthAnythingBackbone": lambda hub: {
        "image_encoder": hub.models.DINOV2Backbone(
            patch_size=8,
            num_layers=4,
            hidden_dim=8,
            num_heads=2,
            intermediate_dim=12,
            image_shape=(72, 72, 3),
            position_embedding_shape=(72, 72, 3),
            apply_layernorm=True,
        ),
        "reassemble_factors": [4, 2, 1, 0.5],
        "neck_hidden_dims": [4, 4, 4, 4],
        "fusion_hidden_dim": 4,
        "head_hidden_dim": 4,
        "head_in_index": -1,
        "feature_keys": ["stage1", "stage2", "stage3", "stage4"],
    },
    "EfficientNetBackbone": _efficientnet(),
    "FluxBackbone": _flux(),
    "Gemma3Backbone": {"image_size": 16},
    "Gemma3nBackbone": _gemma3n(),
    "Gemma4Backbone": {"image_size": 16},
    "GPTNeoXBackbone": {"rotary_percentage": 1.0},
    "HGNetV2Backbone": _hgnet(),
    "MetaCLIP2Backbone": _pair("MetaCLIP2"),
    "MetaCLIP2VisionEncoder": _CLIP,
    "MiTBackbone": _mit(),
    "MobileNetBackbone": _mobilenet(),
    "MobileNetV5Backbone": _mobilenet_v5(),
    "MoonshineBackbone": {
        "filter_dim": 8,
        "encoder_num_layers": 1,
        "decoder_num_layers": 1,
        "encoder_num_heads": 2,
        "decoder_num_heads": 2,
        "partial_rotary_factor": 1.0,
    },
    "PARSeqBackbone": lambda hub: {
        "image_encoder": hub.models.ViTBackbone(
            image_shape=IMAGE,
            patch_size=8,
            num_layers=1,
            num_heads=2,
            hidden_dim=8,
            mlp_dim=12,
            use_class_token=False,
        ),
        "max_label_length": 4,
        "decoder_hidden_dim": 8,
        "num_decoder_layers": 1,
        "num_decoder_heads": 2,
        "decoder_mlp_dim": 12,
        "attention_dropout": 0.0,
    },
    "PaliGemmaBackbone": {
        "image_size": 16,
        "vit_patch_size": 8,
        "vit_num_heads": 2,
        "vit_hidden_dim": 8,
        "vit_num_layers": 1,
        "vit_intermediate_dim": 12,
    },
    "Qwen3_5Backbone": _QWEN_LINEAR,
    "Qwen3_5MoeBackbone": _QWEN_LINEAR,
    "RWKV7Backbone": {
        "gate_lora": 4,
        "mv_lora": 4,
        "aaa_lora": 4,
        "decay_lora": 4,
    },
    "ResNetBackbone": _resnet(),
    "RetinaNetBackbone": lambda hub: {
        "image_encoder": hub.models.ResNetBackbone(**_resnet(4)),
        "min_level": 3,
        "max_level": 6,
        "use_p5": False,
    },
    "SAM3PromptableConceptBackbone": _sam3,
    "SAMBackbone": _sam,
    "SegFormerBackbone": lambda hub: {
        "image_encoder": hub.models.MiTBackbone(**_mit()),
        "projection_filters": 4,
    },
    "SigLIPBackbone": _pair("SigLIP"),
    "SigLIPTextEncoder": {"max_sequence_length": LENGTH},
    "SmolLM3Backbone": _SMOL,
    "SmolLMBackbone": _SMOL,
    "StableDiffusion3Backbone": _stable_diffusion,
    "SwinTransformerBackbone": {
        "embed_dim": 4,
        "depths": [2, 1],
        "num_heads": [1, 2],
        "window_size": 2,
        "drop_path": 0.0,
    },
    "T5Gemma2Backbone": _GEMMA_PAIR,
    "T5GemmaBackbone": _GEMMA_PAIR,
    "VGGBackbone": {
        "stackwise_num_repeats": [1, 2],
        "stackwise_num_filters": [4, 6],
    },
    "ViTDetBackbone": _vit_det(),
    "VideoPrismBackbone": {
        "num_frames": 2,
        "num_spatial_layers": 1,
        "num_temporal_layers": 1,
        "num_auxiliary_layers": 1,
        "num_text_layers": 1,
    },
    "WhisperBackbone": {
        "num_mels": 4,
        "max_encoder_sequence_length": 12,
        "max_decoder_sequence_length": 12,
    },
    "XceptionBackbone": {
        "stackwise_conv_filters": [[4, 4], [6, 6]],
        "stackwise_pooling": [True, False],
    },
}
# What cannot be made small, and why.
LEFT_OUT = {
    "BASNetBackbone": "48 million weights: its widths are fixed",
    "Backbone": "the base class of all",
    "FeaturePyramidBackbone": "the base class of several",
}


def backbones():
    """All that `keras_hub.models` calls a backbone."""
    import keras_hub

    base = keras_hub.models.Backbone
    return [
        name
        for name, cls in sorted(vars(keras_hub.models).items())
        if isinstance(cls, type)
        and issubclass(cls, base)
        and name not in LEFT_OUT
    ]


def backbone(name, dropout=0.0):
    """A small backbone, with weights that its name determines."""
    import keras_hub

    keras.utils.set_random_seed(0)
    cls = getattr(keras_hub.models, name)
    own = OWN.get(name, {})
    if callable(own):
        own = own(keras_hub)
    known = inspect.signature(cls.__init__).parameters
    arguments = {k: v for k, v in SMALL.items() if k in known}
    arguments.update(own)
    for key in ("dropout", "dropout_rate"):
        if key in arguments:
            arguments[key] = dropout
    model = cls(**arguments)
    build.fill(model)
    return model


def data_for(name, model):
    """Made-up inputs of the shapes and names that a backbone takes."""
    free = FREE.get(name, {})
    given = model.input
    if isinstance(given, dict):
        return {key: _array(key, given[key], free) for key in given}
    return keras.tree.map_structure(
        lambda tensor: _array(tensor.name, tensor, free), given
    )


def _array(name, tensor, lengths):
    random = np.random.default_rng(0)
    image = len(tensor.shape) == 4 and tensor.shape[-1] == 3
    free = lengths.get(name, IMAGE[0] if image else LENGTH)
    shape = (BATCH, *(d or free for d in tensor.shape[1:]))
    dtype = keras.backend.standardize_dtype(tensor.dtype)
    if "mask" in name and len(shape) < 4:
        return np.ones(shape, dtype)
    if "position" in name:
        return np.broadcast_to(np.arange(shape[-1]), shape).astype(dtype)
    if any(word in name for word in ("segment", "indices", "labels")):
        return np.zeros(shape, dtype)
    if "token" in name or dtype.startswith(("int", "uint")):
        return random.integers(1, VOCABULARY, shape).astype(dtype)
    if "box" in name:
        return random.uniform(0.2, 0.8, shape).astype(dtype)
    return random.normal(size=shape).astype(dtype)


# Tasks around some of them: a head, and a `compile` of their own.
TASKS = {
    "BertTextClassifier": ("BertBackbone", {"num_classes": 2}),
    "BertMaskedLM": ("BertBackbone", {}),
    "GPT2CausalLM": ("GPT2Backbone", {}),
    "GemmaCausalLM": ("GemmaBackbone", {}),
    "ResNetImageClassifier": ("ResNetBackbone", {"num_classes": 2}),
    "T5Seq2SeqLM": ("T5Backbone", {}),
    "ViTImageClassifier": ("ViTBackbone", {"num_classes": 2}),
}


def task(name):
    import keras_hub

    inside, arguments = TASKS[name]
    cls = getattr(keras_hub.models, name)
    model = cls(backbone=backbone(inside), preprocessor=None, **arguments)
    build.fill(model)
    return model


def names():
    return [*backbones(), *TASKS]


def case_of(name):
    make = task if name in TASKS else backbone
    options = {"run_eagerly": True} if BACKEND == "tensorflow" else {}
    if name in TASKS:
        # A task's own metrics are for labels.
        options["weighted_metrics"] = []
    inputs = data_for(name, make(name))
    return Case(lambda: make(name), inputs, options=tuple(options.items()))
