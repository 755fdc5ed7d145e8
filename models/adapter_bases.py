"""Inspect a folder without loading a model: does it contain an adapter, and which base model was the adapter trained
on?"""

from dataclasses import dataclass
from pathlib import Path

from heldin.base.errors import InputError
from heldin.base.files import read_json
from heldin.models.reading import first_sentence, reading

PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
# X-LoRA weighs its adapters by a pass over the whole text, Poly by a number that no text has.
_MIXTURES = ("XLORA", "POLY")
_BASE_KEYS = ("base_model_name_or_path", "revision")


def is_adapter(folder: Path) -> bool:
    """Return whether the folder contains an adapter rather than a model."""
    return (folder / "adapter_config.json").is_file()


@dataclass(frozen=True)
class AdapterBase:
    """The base model of an adapter.

    Attributes:
        name: folder or hub name of the base model.
        revision: branch, tag or commit of the base model on the hub.
        named: name of the base in the adapter's config, if the user replaced this base with ``name``.
        beside: names of other adapters and model files in the adapter's folder; heldin loads none of them.
    """

    name: str
    revision: str | None
    named: str | None
    beside: tuple[str, ...]


def base_of(folder: Path, adapter_base: str | None = None) -> AdapterBase:
    """Return the base model of a folder's adapter.

    Args:
        adapter_base: base that replaces the base in the config; for adapters on adapters, the base of the last adapter.

    Raises:
        InputError: the config names no base, adapters name each other in a circle, or ``adapter_base`` is an adapter.
    """
    if adapter_base is not None and is_adapter(Path(adapter_base)):
        raise InputError(f"--adapter-base '{adapter_base}' is an adapter: name the model below all adapters")
    name, revision = _named_base(folder)
    seen, base = {folder.resolve()}, Path(name)
    while is_adapter(base):
        if base.resolve() in seen:
            raise InputError(
                f"'{folder}/adapter_config.json': base_model_name_or_path leads through adapters back to '{base}'."
                " Set this key to the model that the adapter was trained on"
            )
        seen.add(base.resolve())
        base = Path(_named_base(base)[0])
    weights = ("model.safetensors", "model.safetensors.index.json")
    beside = (*sorted(path.parent.name for path in folder.glob("*/adapter_config.json")),)
    beside += tuple(name for name in weights if (folder / name).is_file())
    if adapter_base in (None, name) or is_adapter(Path(name)):
        return AdapterBase(name, revision, None, beside)
    return AdapterBase(str(adapter_base), None, name, beside)


def is_base(at: AdapterBase, name: str, revision: str | None) -> bool:
    """Return whether an adapter's base is the model with this name and revision."""
    if Path(at.name).is_dir() or Path(name).is_dir():
        return Path(at.name).resolve() == Path(name).resolve()
    return (at.name, at.revision) == (name, revision)


def _named_base(folder: Path) -> tuple[str, str | None]:
    file = folder / "adapter_config.json"
    try:
        content = read_json(file)
    except (OSError, ValueError) as error:
        raise InputError(f"'{file}' is damaged ({first_sentence(error)}): copy the file again") from error
    name, revision = (content.get(key) if isinstance(content, dict) else None for key in _BASE_KEYS)
    # PEFT writes null for a model that was made and not loaded.
    if not (isinstance(name, str) and name.strip()):
        raise InputError(
            f"'{file}' has no base model: set base_model_name_or_path to the folder or hub name of the base model"
        )
    if not isinstance(revision, str | None):
        raise InputError(f"'{file}': revision is {revision!r}. Give the name of a branch, tag or commit, or null")
    return name, revision


def require_adapter_of_weights(folder: Path) -> None:
    """Raise InputError for an adapter whose weights are missing, or that changes more than its base's layers."""
    from peft import PeftConfig

    if not (folder / "adapter_model.safetensors").is_file():
        pickled = next((path.name for path in folder.iterdir() if path.suffix in PICKLES), None)
        hint = (
            f". The pickle '{pickled}' can run code when loaded: if you trust this file, load the adapter with peft"
            " and call save_pretrained(folder)"
        )
        raise InputError(
            f"'{folder}' has an adapter_config.json but no"
            f" adapter_model.safetensors{hint if pickled else ': copy the complete folder, or save the adapter again'}"
        )
    with reading(str(folder), f"cannot read '{folder / 'adapter_config.json'}'"):
        config = PeftConfig.from_pretrained(str(folder))
    # No layer of the base holds virtual tokens: its scores would pass for those of the adapter.
    if config.is_prompt_learning or config.is_adaption_prompt:
        raise InputError(
            f"'{folder / 'adapter_config.json'}': peft_type {config.peft_type.value} is a learned prompt, but heldin"
            " scores only adapters that change the layers of their base. Train with LoRA or a similar method"
        )
    if config.peft_type.value in _MIXTURES:
        raise InputError(
            f"'{folder / 'adapter_config.json'}': peft_type {config.peft_type.value} mixes adapters by the whole"
            " text or by a task's number. A token's probability then depends on more than the earlier tokens:"
            " audit one adapter"
        )


def lines_about(name: str, at: AdapterBase) -> list[str]:
    """Return lines for the user about how the adapter in the folder ``name`` was loaded."""
    lines = list[str]()
    if at.named is not None:
        lines.append(f"adapter '{name}' was loaded on '{at.name}', but its config states '{at.named}'")
    if at.beside:
        others = ", ".join(f"'{other}'" for other in at.beside)
        lines.append(
            f"adapter '{name}': heldin loaded the adapter at the top of the folder, and not {others} in the folder."
            " To audit another adapter, give its folder"
        )
    return lines
