"""Hashes of everything that determines a model's output: named tensors, config and tokenizer.

A training log hashes the model in memory, and an audit hashes its folder. The two hashes are equal, whatever wrapper
the trainer uses, and whatever form the trainer saves the model in.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from heldin.base.errors import InputError
from heldin.base.files import text_sha256
from heldin.models.adapter_bases import base_of, is_adapter
from heldin.models.model_names import weight_files
from heldin.models.reading import reading

# Keys that change nothing that a model computes of a text. Every other key is a part of the model.
HARMLESS = frozenset(
    {
        "architectures",
        "auto_mapping",
        "base_model_name_or_path",  # of an adapter, whose base is compared by its tensors
        "dtype",
        "inference_mode",
        "peft_version",
        "revision",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    }
)
_SIZE = 16  # bytes of a hash: enough that no two tensors meet by chance
T = TypeVar("T")
# Put into the names of tensors by training in several processes, by torch.compile and by PEFT.
_WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "base_layer"})
_BEFORE = re.compile(r"^(?:module\.)*(?:base_model\.model\.)?")
_ADAPTER_NAME = re.compile(r"(?<=\.)((?:lora_\w+|modules_to_save)\.)default(?:\.|$)")


@dataclass(frozen=True)
class Fingerprint:
    """Hashes of everything that determines a model's output.

    Attributes:
        tensors: hash of shape and values by name; tied tensors appear under the first of their names.
        twins: other names of tied tensors, each with the name that is in ``tensors``.
        config: every key of the config that may affect the output.
        tokenizer: hash of the tokenization; None without a tokenizer.
    """

    tensors: Mapping[str, str]
    twins: Mapping[str, str]
    config: Mapping[str, Any]
    tokenizer: str | None

    def has_tensors_of(self, other: "Fingerprint") -> bool:
        """Return whether ``other`` has exactly these tensors under these names; a tied tensor may appear more than
        once."""
        resolved: dict[str, str] = {}
        for name, value in other.tensors.items():
            if resolved.setdefault(self.twins.get(name, name), value) != value:
                return False
        return bool(resolved) and resolved == dict(self.tensors)


def fingerprint_of_model(model: torch.nn.Module, tokenizer: Any) -> Fingerprint | None:
    """Return the fingerprint of the model or adapter that a trainer will save; None if tensors are spread over devices.

    Args:
        model: the model, possibly wrapped for training.
        tokenizer: the tokenizer saved with the model; None: unknown.
    """
    inner = unwrapped(model)
    if hasattr(inner, "peft_config"):
        from peft import get_peft_model_state_dict

        named: Mapping[str, torch.Tensor] = get_peft_model_state_dict(inner)
        config: Any = inner.peft_config["default"]  # type: ignore[index]
    else:
        named, config = inner.state_dict(keep_vars=True), getattr(inner, "config", None)
    tensors = _by_plain_name((name, tensor.detach()) for name, tensor in named.items())
    if isinstance(inner, PreTrainedModel):
        # Some classes have other names, or other shapes, in memory than in files.
        tensors = revert_weight_conversion(inner, tensors)
    hashed = _hashed(tensors)
    return None if hashed is None else Fingerprint(*hashed, _keys_of(config), tokens_of(tokenizer))


def fingerprint_in_folder(folder: Path, adapter_base: str | None = None) -> Fingerprint:
    """Return the fingerprint of a folder's model or adapter.

    Args:
        adapter_base: base that replaces the base in an adapter's config.

    Raises:
        InputError: a file is damaged.
    """
    tensors = _by_plain_name((name, _hash(tensor)) for name, tensor in _tensors_in(folder))
    with reading(str(folder), f"cannot read the config in '{folder}'"):
        if is_adapter(folder):
            from peft import PeftConfig

            config = PeftConfig.from_pretrained(str(folder))
        else:
            config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    at, revision = str(folder), None
    if is_adapter(folder) and not (folder / "tokenizer_config.json").is_file():
        base = base_of(folder, adapter_base)
        at, revision = base.name, base.revision
    with reading(at, f"cannot load the tokenizer of '{at}'"):
        tokenizer = AutoTokenizer.from_pretrained(at, revision=revision, trust_remote_code=False)
    return Fingerprint(tensors, {}, _keys_of(config), tokens_of(tokenizer))


def tokens_of(tokenizer: Any) -> str | None:
    """Return a hash of the tokenization, including the token before a text; None if the object is not a tokenizer.

    The hash ignores truncation, padding, and added special tokens such as the padding token.
    """
    if not hasattr(tokenizer, "get_vocab"):
        return None
    special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    backend = getattr(tokenizer, "backend_tokenizer", None)
    parts = {} if backend is None else json.loads(backend.to_str())
    cuts = [parts.get(name) for name in ("normalizer", "pre_tokenizer", "model")]
    words = {token: number for token, number in tokenizer.get_vocab().items() if token not in special}
    start = tokenizer.eos_token if tokenizer.bos_token is None else tokenizer.bos_token
    return text_sha256(json.dumps([cuts, words, start], sort_keys=True))


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model without the wrappers of ``torch.compile`` and of training in several processes."""
    parallel = (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)
    while True:
        if isinstance(model, parallel):
            model = model.module
        elif "_orig_mod" in model._modules:
            model = model._modules["_orig_mod"]  # type: ignore[assignment]
        else:
            return model


def _hashed(tensors: Mapping[str, torch.Tensor]) -> tuple[dict[str, str], dict[str, str]] | None:
    """Return the hash of each tensor, and the twins of tied tensors; None if this process has only part of a tensor."""
    hashes: dict[str, str] = {}
    twins: dict[str, str] = {}
    first: dict[tuple[Any, ...], str] = {}
    for name, tensor in tensors.items():
        if type(tensor) is not torch.Tensor or not tensor.numel():
            return None
        place = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if (twin := first.setdefault(place, name)) != name:
            twins[name] = twin
        else:
            hashes[name] = _hash(tensor)
    return hashes, twins


def _by_plain_name(tensors: Iterable[tuple[str, T]]) -> dict[str, T]:
    """Return tensors by their names without wrappers. If two tensors would share a name, both keep their full names."""
    named = dict(tensors)
    shared = Counter(map(_plain, named))
    return {plain if shared[plain := _plain(name)] == 1 else f" {name}": tensor for name, tensor in named.items()}


def _plain(name: str) -> str:
    """Return a tensor's name without the parts that wrappers add."""
    inner = ".".join(part for part in _BEFORE.sub("", name).split(".") if part not in _WRAPPERS)
    return _ADAPTER_NAME.sub(r"\1", inner).rstrip(".")


def _keys_of(config: Any) -> dict[str, Any]:
    """Return the keys of a config that may affect the output, as JSON values."""
    if config is None:
        return {}
    content: dict[str, Any] = json.loads(json.dumps(_kept(config.to_dict()), default=_as_json))
    return content


def _kept(content: Any) -> Any:
    """Return a part of a config without the keys that never affect the output, also in nested configs."""
    if not isinstance(content, Mapping):
        return content
    return {key: _kept(value) for key, value in content.items() if key not in HARMLESS and not str(key).startswith("_")}


def _as_json(value: Any) -> Any:
    return sorted(value) if isinstance(value, set | frozenset) else str(value)


def _hash(tensor: torch.Tensor) -> str:
    """Return a hash of shape and values in float32, which represents lower precisions exactly."""
    kind = torch.float32 if tensor.is_floating_point() else tensor.dtype
    values = tensor.detach().to(device="cpu", dtype=kind).contiguous()
    digest = hashlib.blake2b(repr((tuple(values.shape), str(kind))).encode(), digest_size=_SIZE)
    digest.update(values.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _tensors_in(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    for path in _loaded(folder):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - no mapping
                    yield name, file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise InputError(
                f"'{path}' cannot be read ({error}): change the permissions, or copy the file again"
            ) from error


def _loaded(folder: Path) -> list[Path]:
    """Return the files in the folder from which heldin loads a model or an adapter."""
    if not is_adapter(folder):
        return weight_files(str(folder))
    file = folder / "adapter_model.safetensors"
    return [file] if file.is_file() else []
