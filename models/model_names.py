"""Models by name, without loading them: a folder, an adapter or a model of the hub; the fingerprint.

Only weights in safetensors count, and no code that comes with a model is run.
"""

from pathlib import Path

from huggingface_hub import HfApi, try_to_load_from_cache
from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # of the client that it uses
from transformers import AutoConfig
from transformers.utils.hub import cached_file, extract_commit_hash

from heldin.base.artefacts import INDEX
from heldin.base.errors import InputError
from heldin.base.files import file_sha256, read_json, text_sha256
from heldin.models.arithmetic import in_fingerprint
from heldin.models.model_config import ScoringPrecision
from heldin.models.reading import first_sentence, reading

_HUB_SECONDS = 10.0
_FIRST_READ = ("config.json", "tokenizer_config.json")  # of what a repository of the hub holds
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
# X-LoRA weighs its adapters by a pass over the whole text, Poly by a number that no text has.
_MIXTURES = ("XLORA", "POLY")
_BASE_KEYS = ("base_model_name_or_path", "revision")


def require_model(name: str) -> None:
    """Check, before any work that needs it later, that there is a model under a hub name or in a folder.

    Raises InputError if there is no model config, or the folder has no weights that may be loaded.
    """
    folder = Path(name)
    # The base model of an adapter is checked when both are loaded.
    if is_adapter(folder):
        require_adapter_of_weights(folder)
        return
    require_folder_or_hub_name(name)
    if not folder.is_dir():
        require_on_hub(name)
    with reading(name, f"cannot load model '{name}'"):
        AutoConfig.from_pretrained(name, trust_remote_code=False)


def require_on_hub(name: str, kind: str = "model", revision: str | None = None) -> None:
    """Raises InputError unless files of this model are kept here, or the hub says that it has it."""
    try:
        if any(isinstance(try_to_load_from_cache(name, file, revision=revision), str) for file in _FIRST_READ):
            return
        # One request: a download would retry for minutes before it fails.
        HfApi().model_info(name, timeout=_HUB_SECONDS)
    except (OSError, ValueError, HTTPError) as error:
        raise InputError(
            f"there is no {kind} '{name}': no such folder, and the hub gives none ({first_sentence(error)})"
        ) from error


def fingerprint_of(name: str, *, revision: str | None = None) -> str:
    """The fingerprint that a model has in float32, from its files alone. Raises InputError if they cannot be read."""
    folder = Path(name)
    if is_adapter(folder):
        base, at = base_of(folder)
        return text_sha256(fingerprint_of(base, revision=at), fingerprint_folder(folder))
    require_folder_or_hub_name(name)
    return fingerprint_in(name, revision, "fp32")


def fingerprint_in(name: str, revision: str | None, precision: ScoringPrecision) -> str:
    """The fingerprint of a model, not an adapter, that is loaded in this precision."""
    # A commit of the hub names its content; a folder may be written over under the same name, so its files are hashed.
    folder = Path(name)
    fingerprint = fingerprint_folder(folder) if folder.is_dir() else text_sha256(name, _commit(name, revision))
    # The same weights give other scores in another precision, and the cache must not mix them.
    return text_sha256(fingerprint, in_fingerprint(precision))


def fingerprint_folder(folder: Path) -> str:
    """Hash of everything in a model folder that affects its predictions, including the chat template."""
    # Names as well as contents: two files that are exchanged make another model.
    return text_sha256(*(part for p in fingerprinted_files(folder) for part in (p.name, file_sha256(p))))


def fingerprinted_files(folder: Path) -> list[Path]:
    """The files of a model folder that go into its fingerprint."""
    # Sorted, since the order in which a folder is listed differs between machines. Pickles are left out because they
    # are never loaded, generation settings because they change no prediction, and the list of digests follows from the
    # others.
    files = sorted(p for p in folder.iterdir() if p.suffix in {".safetensors", ".json", ".txt", ".model", ".jinja"})
    return [p for p in files if p.name not in ("generation_config.json", INDEX)]


def is_adapter(folder: Path) -> bool:
    """Return whether the folder holds an adapter and not a model."""
    return (folder / "adapter_config.json").is_file()


def base_of(folder: Path) -> tuple[str, str | None]:
    """Name and revision of the model that a folder's adapter was trained on.

    Raises InputError if it names none, or if the adapters that name each other never end at a model.
    """
    name, revision = _named_base(folder)
    seen, base = {folder.resolve()}, Path(name)
    while is_adapter(base):
        if base.resolve() in seen:
            raise InputError(
                f"'{folder}/adapter_config.json': base_model_name_or_path leads from adapter to adapter and back to"
                f" '{base}': name the model that the adapter was trained on"
            )
        seen.add(base.resolve())
        base = Path(_named_base(base)[0])
    return name, revision


def _named_base(folder: Path) -> tuple[str, str | None]:
    file = folder / "adapter_config.json"
    try:
        content = read_json(file)
    except (OSError, ValueError) as error:
        raise InputError(f"'{file}' is damaged: {first_sentence(error)}") from error
    name, revision = (content.get(key) if isinstance(content, dict) else None for key in _BASE_KEYS)
    # PEFT writes null for a model that was made and not loaded.
    if not (isinstance(name, str) and name.strip()):
        raise InputError(f"'{file}' does not name a base model: set base_model_name_or_path to its folder or hub name")
    if not isinstance(revision, str | None):
        raise InputError(f"'{file}': revision is {revision!r}: give the name of a branch, tag or commit, or null")
    return name, revision


def require_adapter_of_weights(folder: Path) -> None:
    """Raises InputError for an adapter whose weights are not there, or that is more than a change of the layers."""
    from peft import PeftConfig

    if not (folder / "adapter_model.safetensors").is_file():
        raise InputError(f"'{folder}' has an adapter_config.json but no adapter_model.safetensors")
    with reading(str(folder), f"cannot read '{folder / 'adapter_config.json'}'"):
        config = PeftConfig.from_pretrained(str(folder))
    # Virtual tokens stand in no layer of the base: its scores would pass for those of the adapter.
    if config.is_prompt_learning or config.is_adaption_prompt:
        raise InputError(
            f"'{folder / 'adapter_config.json'}': peft_type {config.peft_type.value} is a learned prompt, and heldin"
            " scores only adapters that change what the layers of their base do: train with LoRA or the like"
        )
    if config.peft_type.value in _MIXTURES:
        raise InputError(
            f"'{folder / 'adapter_config.json'}': peft_type {config.peft_type.value} mixes adapters by the whole text"
            " or by a task's number, so that a token's probability is not that of the tokens before it: audit one"
            " adapter"
        )


def require_folder_or_hub_name(name: str) -> None:
    """Raises InputError for what is neither, or a folder without weights that may be loaded; the hub is not asked."""
    folder = Path(name)
    if folder.is_dir():
        _require_safe_weights(folder)
    else:
        require_hub_name(name)


def require_hub_name(name: str, kind: str = "model") -> None:
    """Raises InputError for a name that looks like a path."""
    # A hub name has at most one slash; whatever looks like a path is not sent to the hub.
    if Path(name).is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise InputError(f"no such {kind} folder: '{name}'")


def _require_safe_weights(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise InputError(f"'{folder}' holds no config.json: it is not a model folder")
    names = [p.name for p in folder.iterdir()]
    if any(n.endswith(".safetensors") for n in names):
        return
    pickles = [n for n in names if n.endswith(PICKLES)]
    if pickles:
        raise InputError(
            f"'{folder}' holds pickled weights only ({pickles[0]}), which can run code when loaded: where you trust it,"
            " load it with transformers and call save_pretrained(folder), which writes model.safetensors"
        )
    raise InputError(f"'{folder}' holds no weights: a model.safetensors is expected beside config.json")


def _commit(name: str, revision: str | None) -> str:
    """The commit to which a hub name and revision resolved: the cache keeps files under its hash."""
    try:
        commit = extract_commit_hash(cached_file(name, "config.json", revision=revision), None)
    except (OSError, ValueError, HTTPError) as error:
        raise InputError(
            f"there is no model '{name}': no such folder, and the hub gives none ({first_sentence(error)})"
        ) from error
    if not commit:
        raise InputError(f"cannot tell which version of '{name}' was loaded; download it to a folder and name that")
    return str(commit)
