"""Read the files of a model with a library, and turn any exception into one line that names the damaged file."""

import contextlib
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from safetensors import safe_open
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PreTrainedConfig

from heldin.base.errors import InputError


@contextlib.contextmanager
def reading(model: str, action: str) -> Iterator[None]:
    """Raise InputError for any exception that a library raises in this block.

    Args:
        model: folder or hub name.
        action: failed action in the error message, such as "cannot load model 'gpt2'".
    """
    with quiet_transformers():
        try:
            yield
        except InputError:
            raise
        # Any class: transformers checks no value before it uses it, and tokenizers raises Exception itself.
        except Exception as error:
            raise InputError(f"{action}: {_reason(model, error)}") from error


def text_config(config: Any) -> Any:
    """Return the part of a config that describes the text model. For most models, return the whole config."""
    return config.get_text_config()


def _reason(model: str, error: Exception) -> str:
    if _needs_code(model):
        return (
            "the model needs Python code from its folder (auto_map in config.json), but heldin runs no code of a"
            " model: save the model as a class of transformers"
        )
    folder = Path(model)
    # In the order in which a model is read; a file that is no JSON at all comes first.
    readers: list[tuple[str, Callable[[Path], Any]]] = [
        ("*.json", lambda file: json.loads(file.read_bytes())),
        ("config.json", lambda _: AutoConfig.from_pretrained(folder)),
        ("generation_config.json", lambda _: GenerationConfig.from_pretrained(folder)),
        ("tokenizer.json", lambda file: Tokenizer.from_file(str(file))),
        ("tokenizer_config.json", lambda _: AutoTokenizer.from_pretrained(folder)),
        ("*.safetensors", _names_of_tensors),
    ]
    for pattern, read in readers:
        for file in sorted(folder.glob(pattern)) if folder.is_dir() else ():
            try:
                read(file)
            except Exception as damage:
                return f"'{file}' is damaged, or of another version: {first_sentence(damage)}"
    return first_sentence(error)


def _names_of_tensors(file: Path) -> list[str]:
    with safe_open(file, framework="pt") as weights:
        return list(weights.keys())


def _needs_code(model: str) -> bool:
    try:
        content, _ = PreTrainedConfig.get_config_dict(model, local_files_only=True)
        return "auto_map" in content
    except Exception:
        return False


def first_sentence(error: BaseException) -> str:
    """Return the first line of a library's message. If this line only announces a reason, add the next line."""
    # Messages of transformers run over many lines of advice; torch's "Error(s) in loading ...:" comes before the error.
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    text = lines[0]
    for line in lines[1:]:
        if not text.endswith(":"):
            break
        text = f"{text} {line}"
    return text[:300]


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Hide notices and progress bars of transformers and peft; heldin reports the relevant problems itself."""
    from transformers.utils import logging as transformers_logging

    # Of handlers: a new level of a logger makes Python look through all loggers.
    levels = [(handler, handler.level) for handler in logging.getLogger("transformers").handlers]
    bars = transformers_logging.is_progress_bar_enabled()
    for handler, _ in levels:
        handler.setLevel(logging.ERROR)
    transformers_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # peft uses names that transformers is about to drop
            warnings.filterwarnings("ignore", "Found missing adapter keys")  # an error (``check_adapter_keys``)
            yield
    finally:
        for handler, level in levels:
            handler.setLevel(level)
        if bars:
            transformers_logging.enable_progress_bar()
