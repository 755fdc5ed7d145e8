"""Find models by name without loading them: a folder, an adapter or a hub model. Compute their fingerprints.

heldin uses only safetensors weights, and never runs a model's own code.
"""

from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError, HTTPError, OfflineModeIsEnabled  # type: ignore[attr-defined]  # of its client
from transformers import AutoConfig
from transformers.utils.hub import cached_file, extract_commit_hash

from heldin.base.artefacts import INDEX
from heldin.base.errors import InputError
from heldin.base.files import file_sha256, read_json, text_sha256
from heldin.models.adapter_bases import PICKLES, AdapterBase, base_of, is_adapter, require_adapter_of_weights
from heldin.models.arithmetic import in_fingerprint
from heldin.models.model_config import ScoringPrecision
from heldin.models.reading import first_sentence, reading

_HUB_SECONDS = 10.0
_FIRST_READ = ("config.json", "tokenizer_config.json")  # of what a repository of the hub holds


def require_model(name: str, adapter_base: str | None = None, revision: str | None = None) -> None:
    """Check that a hub name or folder has a model, before any work that needs the model later.

    Args:
        adapter_base: base that replaces the base in an adapter's config.

    Raises:
        InputError: there is no model config, the folder has no loadable weights, or an adapter has no base.
    """
    folder = Path(name)
    if is_adapter(folder):
        require_adapter_of_weights(folder)
        at = base_of(folder, adapter_base)
        require_base(folder, at)
        require_model(at.name, adapter_base, at.revision)
        return
    require_folder_or_hub_name(name)
    if not folder.is_dir():
        require_on_hub(name, revision=revision)
    read_config(name, revision)


def require_base(folder: Path, at: AdapterBase) -> None:
    """Raise InputError unless the base of a folder's adapter is on this machine or on the hub."""
    if Path(at.name).is_dir():
        return
    try:
        require_hub_name(at.name)
        require_on_hub(at.name, revision=at.revision)
    except InputError as error:
        source = "--adapter-base" if at.named is not None else f"'{folder / 'adapter_config.json'}'"
        raise InputError(
            f"{source} states the base model '{at.name}', but heldin cannot find this model ({error}). Give the"
            " folder of this model, or of the same model in full precision, with --adapter-base. For a command"
            " without this option, set base_model_name_or_path"
        ) from error


def read_config(name: str, revision: str | None = None) -> Any:
    """Return a model's config. Raises InputError for an unreadable config, or an encoder-decoder."""
    with reading(name, f"cannot load model '{name}'"):
        config = AutoConfig.from_pretrained(name, revision=revision, trust_remote_code=False)
    if getattr(config, "is_encoder_decoder", False):
        raise InputError(
            f"'{name}' ({config.model_type}) has an encoder that reads a text before a decoder writes. heldin scores"
            " only models that predict each token from the tokens before it: choose such a model"
        )
    return config


def require_on_hub(name: str, kind: str = "model", revision: str | None = None) -> None:
    """Raise InputError unless the model's files are on this machine, or the hub has the model."""
    try:
        if any(isinstance(try_to_load_from_cache(name, file, revision=revision), str) for file in _FIRST_READ):
            return
        # One request: a download would retry for minutes before it fails.
        HfApi().model_info(name, timeout=_HUB_SECONDS)
    except OfflineModeIsEnabled as error:
        raise InputError(
            f"cannot find {kind} '{name}': there is no such folder, and this process is offline (HF_HUB_OFFLINE is"
            " set). Give a folder, or unset HF_HUB_OFFLINE"
        ) from error
    except (OSError, ValueError, HTTPError) as error:
        # Its client's own errors but for those that carry the hub's answer.
        if isinstance(error, HTTPError | ConnectionError) and not isinstance(error, HfHubHTTPError):
            raise InputError(
                f"cannot find {kind} '{name}': there is no such folder, and the hub cannot be reached"
                f" ({first_sentence(error)}). Give a folder, or connect this machine to the network"
            ) from error
        raise InputError(
            f"there is no {kind} '{name}': there is no such folder, and the hub has none ({first_sentence(error)})."
            " Correct the name"
        ) from error


def fingerprint_of(name: str, *, revision: str | None = None, adapter_base: str | None = None) -> str:
    """Return a model's fingerprint in float32, from its files alone. Raises InputError if the files cannot be read."""
    folder = Path(name)
    if is_adapter(folder):
        at = base_of(folder, adapter_base)
        base = fingerprint_of(at.name, revision=at.revision, adapter_base=adapter_base)
        return text_sha256(base, fingerprint_folder(folder))
    require_folder_or_hub_name(name)
    return fingerprint_in(name, revision, "fp32")


def fingerprint_in(name: str, revision: str | None, precision: ScoringPrecision) -> str:
    """Return the fingerprint of a model, but not of an adapter, that is loaded in this precision."""
    # A commit of the hub names its content; a folder may be written over under the same name, so its files are hashed.
    folder = Path(name)
    fingerprint = fingerprint_folder(folder) if folder.is_dir() else text_sha256(name, _commit(name, revision))
    # The same weights give other scores in another precision, and the cache must not mix them.
    return text_sha256(fingerprint, in_fingerprint(precision))


def fingerprint_folder(folder: Path) -> str:
    """Return a hash of every file in a model folder that affects its predictions, including the chat template."""
    # Names as well as contents: two files that are exchanged make another model.
    return text_sha256(*(part for p in fingerprinted_files(folder) for part in (p.name, file_sha256(p))))


def fingerprinted_files(folder: Path) -> list[Path]:
    """Return the files of a model folder that its fingerprint includes."""
    # Sorted, since the order in which a folder is listed differs between machines. Pickles are left out because they
    # are never loaded, generation settings because they change no prediction, and the list of digests follows from the
    # others.
    files = sorted(p for p in folder.iterdir() if p.suffix in {".safetensors", ".json", ".txt", ".model", ".jinja"})
    return [p for p in files if p.name not in ("generation_config.json", INDEX)]


def require_folder_or_hub_name(name: str) -> None:
    """Raise InputError for a name that is neither a folder with loadable weights nor a hub name. Does not ask the
    hub."""
    folder = Path(name)
    if folder.is_dir():
        _require_safe_weights(folder)
    else:
        require_hub_name(name)


def weight_files(name: str, revision: str | None = None) -> list[Path]:
    """Return the files of a model's weights, after a download from the hub if needed; empty if the file names are
    unknown.

    Raises InputError if a download fails, or the list of files is damaged.
    """

    def path_of(file: str, *, optional: bool = True) -> Path | None:
        path = cached_file(name, file, revision=revision, _raise_exceptions_for_missing_entries=not optional)
        return None if path is None else Path(path)

    with reading(name, f"cannot load model '{name}'"):
        whole = path_of("model.safetensors")
        if whole is not None:
            return [whole]
        index = path_of("model.safetensors.index.json")
        if index is None:
            return []
        try:
            files = sorted(set(read_json(index)["weight_map"].values()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"'{index}' is damaged: save the model again") from error
        return [path for file in files if (path := path_of(file, optional=False)) is not None]


def require_hub_name(name: str, kind: str = "model") -> None:
    """Raise InputError for a name that looks like a path."""
    # A hub name has at most one slash; whatever looks like a path is not sent to the hub.
    if Path(name).is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise InputError(f"no such {kind} folder: '{name}'. Correct the path")


def _require_safe_weights(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        inner = sorted(path.parent.name for path in folder.glob("*/adapter_config.json"))
        hint = f", but holds adapters: name one of them, such as '{folder / inner[0]}'" if inner else ""
        raise InputError(f"'{folder}' has no config.json, so it is not a model folder{hint}")
    names = [p.name for p in folder.iterdir()]
    if any(n.endswith(".safetensors") for n in names):
        return
    pickles = [n for n in names if n.endswith(PICKLES)]
    if pickles:
        raise InputError(
            f"'{folder}' has only pickled weights ({pickles[0]}), and a pickle can run code when loaded. If you"
            " trust these weights, load them with transformers and write model.safetensors with"
            " save_pretrained(folder)"
        )
    raise InputError(f"'{folder}' has no weights: put a model.safetensors next to config.json")


def _commit(name: str, revision: str | None) -> str:
    """Return the commit of a hub name and revision; the cache stores files under the commit's hash."""
    try:
        commit = extract_commit_hash(cached_file(name, "config.json", revision=revision), None)
    except (OSError, ValueError, HTTPError) as error:
        raise InputError(
            f"there is no model '{name}': there is no such folder, and the hub has none ({first_sentence(error)})."
            " Correct the name"
        ) from error
    if not commit:
        raise InputError(
            f"the version of '{name}' that was loaded is unknown: download the model to a folder, and give this folder"
        )
    return str(commit)
