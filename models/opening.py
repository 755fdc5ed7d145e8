"""Load models by name: a folder, an adapter with its base, a hub model."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoModelForMultimodalLM

from heldin.base.errors import InputError
from heldin.models.adapter_bases import base_of, is_adapter, is_base, require_adapter_of_weights
from heldin.models.arithmetic import loading_options, stored_in
from heldin.models.attention import use_exact_attention
from heldin.models.devices import default_device, spreads
from heldin.models.loading import (
    LanguageModel,
    check_causal,
    check_tokenizer,
    load_tokenizer,
    reads_more_than_text,
    with_tokens_of,
)
from heldin.models.model_config import ScoringPrecision
from heldin.models.model_names import (
    fingerprint_in,
    read_config,
    require_base,
    require_folder_or_hub_name,
    weight_files,
)
from heldin.models.reading import reading


def load_language_model(
    name: str,
    *,
    device: torch.device | None = None,
    precision: ScoringPrecision = "fp32",
    revision: str | None = None,
    context: int | None = None,
    adapter_base: str | None = None,
) -> LanguageModel:
    """Load a model by hub name or folder, in evaluation mode.

    Args:
        name: hub name or folder; the folder may contain a LoRA adapter.
        device: device for the model; None: the device in the environment, else the GPU if there is one.
        precision: precision of the weights; values other than fp32 are only for scoring.
        revision: branch, tag or commit on the hub.
        context: maximum number of tokens per pass, if the model states no limit or allows more.
        adapter_base: base that replaces the base in an adapter's config.

    Raises:
        InputError: the folder does not exist; its weights are missing, only pickled, or incomplete; the tokenizer is
            missing, does not fit the model or produces no tokens; or this machine cannot load this precision or format.
    """
    folder = Path(name)
    if is_adapter(folder):
        require_adapter_of_weights(folder)
        at = base_of(folder, adapter_base)
        require_base(folder, at)
        base = load_language_model(
            at.name, device=device, precision=precision, revision=at.revision, adapter_base=adapter_base
        )
        # Here, since few models are adapters.
        from heldin.models.adapters import load_adapter

        return load_adapter(folder, at, base, precision).within(context)
    require_folder_or_hub_name(name)
    placed = None if device is None and spreads() else device or default_device()
    config = read_config(name, revision)
    stored = stored_in(weight_files(name, revision), config, name)
    options = loading_options(precision, placed, stored)
    with reading(name, f"cannot load model '{name}'"):
        # All of its parts are loaded, as the checkpoint has them: a class for the text alone may have other names.
        loads = AutoModelForMultimodalLM if reads_more_than_text(config) else AutoModelForCausalLM
        # Tensors that are missing are filled with random numbers without an error; only the report tells.
        model, report = loads.from_pretrained(
            name,
            config=config,
            revision=revision,
            use_safetensors=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,  # refused below, with a readable message
            output_loading_info=True,
            **options,
        )
    # Tied weights are saved once, so transformers reports their second name as missing.
    missing = sorted(set(report["missing_keys"]) - set(getattr(model, "all_tied_weights_keys", None) or ()))
    if missing or report["mismatched_keys"]:
        wrong = (missing or sorted(map(str, report["mismatched_keys"])))[0]
        raise InputError(
            f"the weights of '{name}' are incomplete or have another shape, such as '{wrong}': save the model again"
        )
    tokenizer = load_tokenizer(name, revision=revision)
    use_exact_attention(model)
    # One that ``device_map`` placed stays where it is.
    model = (model if "device_map" in options else model.to(placed)).eval()
    # Values of the config and the tokenizer that nothing has used so far are used now.
    with reading(name, f"model '{name}' cannot read a text"):
        check_tokenizer(tokenizer, name, vocabulary=model.get_input_embeddings().weight.shape[0])
        check_causal(model, name)
    # Counted now: on a CPU bitsandbytes packs its matrices otherwise when they are first used.
    fingerprint, size = fingerprint_in(name, revision, precision), model.num_parameters()
    return LanguageModel(model, tokenizer, name, fingerprint, size, stored=stored).within(context)


def load_target_and_reference(
    target: str,
    reference: str,
    *,
    precision: ScoringPrecision = "fp32",
    revision: str | None = None,
    context: int | None = None,
    adapter_base: str | None = None,
) -> tuple[LanguageModel, LanguageModel]:
    """Load both models. If the target is an adapter on the reference that can be switched off, the two share weights.

    Scores equal those of separately loaded models up to rounding, because the adapter is added to a layer's output
    instead of its weights. The target gets the reference's tokenizer if the two differ only in added special tokens.

    Args:
        target: folder or hub name, possibly a LoRA adapter's folder.
        reference: folder or hub name.
        revision: branch, tag or commit of the reference on the hub.
        context: maximum number of tokens per pass of both models, if they state no limit or allow more.
        adapter_base: base that replaces the base in the configs of adapters.

    Raises:
        InputError: ``load_language_model`` raises.
    """

    def load(name: str, revision: str | None = None) -> LanguageModel:
        return load_language_model(name, precision=precision, revision=revision, adapter_base=adapter_base)

    if is_adapter(Path(target)):
        require_adapter_of_weights(Path(target))
        at = base_of(Path(target), adapter_base)
        if is_base(at, reference, revision):
            from heldin.models.adapters import load_from_one_copy

            shared = load_from_one_copy(Path(target), at, load(reference, revision))
            if shared is not None:
                return shared[0].within(context), shared[1].within(context)
    base = load(reference, revision).within(context)
    return with_tokens_of(load(target).within(context), base), base
