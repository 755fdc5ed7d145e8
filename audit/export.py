"""What may leave: the model folder, a model card, and the public plan. Nothing else of a run."""

import json
import shutil
from pathlib import Path

from audit.plan import accountant_cache
from audit.record import Record, read_record
from corpus.errors import InputError
from corpus.files import private_directory, whole_directory
from defenses.plan_file import read_plan

MODEL_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
)


def export_run(run: Path, to: Path) -> list[str]:
    """Write model, model card and public plan of a finished run to ``to``; return the names of the files.

    The record, the scores, the ledger and the report stay: they hold un-noised facts about private users.

    Raises:
        InputError: ``run`` is not a finished run, its plan is damaged, or ``to`` is not empty.
    """
    to = to.resolve()
    record = read_record(run / "record.json")
    model = run / "checkpoints" / "final"
    if record.kind != "run" or not (model / "config.json").is_file():
        raise InputError(f"'{run}' holds no model trained here: only a finished `heldin run` can be exported")
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise InputError(f"'{to}' is not empty: name a new folder")
    private_directory(to.parent)
    read_plan(run / "plan.json", cache_dir=accountant_cache())  # whole, and what it states is what it spends
    plan = json.loads((run / "plan.json").read_text(encoding="utf-8"))
    with whole_directory(to) as temporary:
        for file in sorted(model.iterdir()):
            if (
                file.name in MODEL_FILES
                or file.suffix == ".safetensors"
                or file.name.endswith(".safetensors.index.json")
            ):
                shutil.copyfile(file, temporary / file.name)
        (temporary / "plan.json").write_text(json.dumps(plan, indent=1) + "\n", encoding="utf-8")
        (temporary / "README.md").write_text(_card(record), encoding="utf-8")
        names = sorted(p.name for p in temporary.iterdir())
        temporary.chmod(0o755)
    return names


def _card(record: Record) -> str:
    """A model card without a single number that was measured on private users."""
    return f"""---
library_name: transformers
pipeline_tag: text-generation
---
# {record.name}

A {record.target.architecture} with {record.target.parameters:,} parameters, fine-tuned with heldin
{record.environment.heldin}.

## Privacy

{record.training.guarantee if record.training else ""}.

The mechanism that trained this model is described in `plan.json`. What an audit measured about the users whose texts it
was trained on is kept by its makers: such measurements are themselves facts about private users.

## Use

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("path/to/this/folder")
tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")
```
"""
