"""Whether an adapter's file holds every tensor that its config asks for, and no other.

PEFT leaves a tensor without a key as it was drawn, and only warns: such an adapter scores as its base.
"""

import re
from pathlib import Path
from typing import Any

from heldin.base.errors import InputError

# Put before a parameter's name by training on several GPUs and by ``torch.compile``.
_WRAPPERS = re.compile(r"(^|\.)(module|_orig_mod|_fsdp_wrapped_module)\.")


def check_adapter_keys(adapted: Any, folder: Path) -> None:
    """Check that the folder's file sets every tensor of the adapter and nothing that the model does not have.

    Args:
        adapted: the PeftModel into which the folder was loaded.
        folder: contains ``adapter_model.safetensors``.

    Raises:
        InputError: gives the count and the first of the missing and of the unexpected keys.
    """
    from peft import get_peft_model_state_dict, set_peft_model_state_dict
    from peft.utils import load_peft_weights

    # Names are compared after loading, which translates those that older versions of PEFT wrote. The file is loaded
    # again because PEFT keeps most of its report of the first time to itself.
    report = set_peft_model_state_dict(adapted, load_peft_weights(str(folder), device="cpu"))
    # What the adapter itself leaves unset when it is saved and loaded again is the base's.
    base = set_peft_model_state_dict(adapted, get_peft_model_state_dict(adapted, save_embedding_layers=False))
    ignored = getattr(adapted.get_base_model(), "_keys_to_ignore_on_load_unexpected", None) or ()
    keys = {
        "missing": sorted(set(report.missing_keys) - set(base.missing_keys)),
        "unexpected": sorted(
            k for k in report.unexpected_keys if not any(re.search(pattern, k) for pattern in ignored)
        ),
    }
    if any(keys.values()):
        counts = [f"{len(names)} {kind}, such as '{_as_saved(names[0])}'" for kind, names in keys.items() if names]
        wrapped = any(map(_WRAPPERS.search, keys["unexpected"]))
        raise InputError(
            f"'{folder / 'adapter_model.safetensors'}' does not have the keys that its adapter_config.json asks for"
            f" ({'; '.join(counts)}): {'unwrap the model and save' if wrapped else 'save'} the adapter again"
        )


def _as_saved(key: str) -> str:
    """A tensor's key without the name that the adapter has in memory."""
    return key.replace(".default.", ".").removesuffix(".default")
