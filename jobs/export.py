"""The files of a run that may be released: the trained model, with its plan as a label.

heldin refuses to export if weights, tokenizer, record, config and plan do not agree, because an epsilon on the wrong
weights is worse than no epsilon. The exported plan lists the hash of every file, so anyone who receives the folder can
check the files.
"""

import json
import shutil
from pathlib import Path

import yaml

from heldin.base.artefacts import files_in, is_within
from heldin.base.errors import InputError
from heldin.base.files import file_sha256, private_directory, read_json, whole_directory
from heldin.base.wording import counted
from heldin.defenses.guarantee import Guarantee
from heldin.defenses.mechanism import Mechanism
from heldin.defenses.plan_file import EXPORTED, covers, plan_document, read_plan
from heldin.finetune.checkpoints import ADAPTER
from heldin.models.model_names import fingerprinted_files
from heldin.models.opening import load_language_model
from heldin.record.differences import compared
from heldin.record.document import Record, read_record
from heldin.record.facts import TrainingFacts
from heldin.record.release import release_of
from heldin.stages.measures.measure import model_facts
from heldin.stages.train.plan import configured_mechanism, read_run_config
from heldin.stages.train.training import finished_training, require_model_of_training, require_trained_under
from heldin.stages.train.training_facts import promise_facts

# Only files that the fingerprint covers, so that none is exported that was not there when the model was audited. Not
# generation_config.json: no fingerprint covers it, and transformers makes it from config.json if it is absent.
MODEL_FILES = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
)
PLAN, CARD, ADAPTER_CONFIG = "plan.json", "README.md", "adapter_config.json"


def export_run(run: Path, to: Path) -> list[str]:
    """Write model, adapter, model card and public plan of a finished run to ``to``; return the names of the files.

    heldin does not export record, scores, ledger and report, because they contain exact statistics about private users.

    Raises:
        InputError: ``run`` is not a finished run, its plan is damaged, or ``to`` is not empty; the plan does not match
            the weights, the tokenizer, the record's guarantee or the config; or the plan contains a number that was
            measured on users.
    """
    # A folder such as "." has no name beside which a temporary one could be made.
    to = to.resolve()
    record = read_record(run / "record.json")
    model = run / "checkpoints" / "final"
    if record.kind != "run" or record.training is None or not (model / "config.json").is_file():
        raise InputError(f"'{run}' has no model that heldin trained: export a finished `heldin run`")
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise InputError(f"'{to}' is not empty: name a new folder")
    plan = read_plan(run / PLAN)  # also checks that the stated guarantee follows from the mechanism
    _require_trained_here(run, model, record, record.training, plan)
    private_directory(to.parent)
    document = plan_document(plan)  # rebuilt, not copied: whatever else was written to the file stays
    public_base = _public_base(record)
    with whole_directory(to) as temporary:
        for file in fingerprinted_files(model):
            if _leaves(file):
                shutil.copyfile(file, temporary / file.name)
        if (model / ADAPTER).is_dir():
            _copy_adapter(model / ADAPTER, temporary / ADAPTER, public_base)
        (temporary / CARD).write_text(_card(record, plan), encoding="utf-8")
        # After card and model were written, and of the copies: what is named is what leaves.
        hashes = {name: file_sha256(temporary / name) for name in files_in(temporary)}
        (temporary / PLAN).write_text(json.dumps({**document, EXPORTED: hashes}, indent=1) + "\n", encoding="utf-8")
        # Made owner-only, like every folder of a run; this one is to be read by others.
        temporary.chmod(0o755)
    return [*hashes, PLAN]


def verify_exported(folder: Path) -> str:
    """Check that each file of an exported folder has the hash in the plan, and describe the folder in one line.

    A match shows that no file changed since the export. Only a signature could show who exported the folder.

    Raises:
        InputError: the folder does not exist; its plan is damaged, was not exported or lists no model; or a file is
            missing, was changed, or is not in the plan.
    """
    plan = read_plan(folder / PLAN)
    hashes = json.loads((folder / PLAN).read_text(encoding="utf-8")).get(EXPORTED)
    if not isinstance(hashes, dict) or not hashes:
        raise InputError(
            f"'{folder / PLAN}' lists no files, so `heldin export` did not write it: export the model again"
        )
    # A plan that names only a README would agree with any folder that lost its model.
    if "config.json" not in hashes or not any(map(_is_weights, hashes)):
        raise InputError(
            f"'{folder / PLAN}' lists no model (config.json and a .safetensors file): fetch the folder again, or"
            " export the model again"
        )
    for name, stated in hashes.items():
        file = folder / name
        # No path, or a strange plan could have files outside of the folder read and compared.
        if not is_within(name):
            raise InputError(f"'{folder / PLAN}' lists {name!r}, a path outside this folder: do not use the folder")
        if not file.is_file():
            raise InputError(f"plan.json lists '{file}', but this file is missing: fetch the folder again")
        if file_sha256(file) != stated:
            raise InputError(f"the SHA-256 of '{file}' differs from the SHA-256 in plan.json: do not use the folder")
    # A further file may change what a model is: a custom tokenizer, an adapter, other weights.
    stray = next((name for name in files_in(folder) if name not in {*hashes, PLAN}), None)
    if stray is not None:
        raise InputError(f"'{folder / stray}' is not listed in plan.json: remove this file, or fetch the folder again")
    label = plan.guarantee().label
    return f"{counted(len(hashes), 'file')} match plan.json: {label}"


def _leaves(file: Path) -> bool:
    return _is_weights(file.name) or file.name.endswith(".safetensors.index.json") or file.name in MODEL_FILES


def _copy_adapter(adapter: Path, to: Path, base: str | None) -> None:
    """Copy the adapter that training merged into the model's weights.

    The config of the copy contains the hub name of a public base model, and no path on this machine.
    """
    to.mkdir()
    to.chmod(0o755)
    for file in fingerprinted_files(adapter):
        if _leaves(file):
            shutil.copyfile(file, to / file.name)
    config = read_json(adapter / ADAPTER_CONFIG)
    text = json.dumps({**config, "base_model_name_or_path": base}, indent=2, sort_keys=True)
    (to / ADAPTER_CONFIG).write_text(text + "\n", encoding="utf-8")


def _public_base(record: Record) -> str | None:
    """Return the hub name of the base model; None for a folder, because its path may reveal the maker of the model."""
    base = (record.config.get("model") or {}).get("base")
    return base if base and not Path(base).exists() else None


def _is_weights(name: str) -> bool:
    return name.endswith(".safetensors")


def _require_trained_here(run: Path, model: Path, record: Record, stated: TrainingFacts, plan: Mechanism) -> None:
    """Raise InputError for each difference in the model or its guarantee that ``heldin verify`` would report."""
    # The weights are loaded and hashed again: a checkpoint that was exchanged since the audit has another fingerprint.
    config = read_run_config(run)
    # In the precision of the attack, which the fingerprint names.
    loaded = load_language_model(str(model), precision=config.attack.precision)
    _, changed = compared("target", record.target, model_facts(loaded, record.target.name))
    if changed:
        raise InputError(
            f"nothing was exported: '{model}' is not the model that this run trained and audited"
            f" ({changed[0].line()}). Restore the model"
        )
    if config.defense.measured_clip is not None:
        raise InputError(
            f"nothing was exported: '{run / PLAN}' states a clip norm that was measured on users' gradients, and"
            " the export would publish this norm. Set defense.clip_norm, and train again"
        )
    # ``configured_mechanism`` takes a measured clip norm from the plan: no config names it.
    if configured_mechanism(config, plan, config.finetune.steps(stated.records)) != plan:
        raise InputError(
            f"nothing was exported: '{run / PLAN}' differs from the plan of config.yaml. Restore this file"
        )
    # Plan and config may have been changed together: the keyed hash that training left cannot be made to fit.
    require_trained_under(run, plan)
    require_model_of_training(run)
    trained = finished_training(run, config)
    # What record and card state must follow from this plan and from the checkpoint's own log.
    again = {**promise_facts(plan), "steps": trained.steps, "chosen_step": trained.chosen_step}
    _, wrong = compared("training", {name: getattr(stated, name) for name in again}, again)
    if wrong:
        raise InputError(f"nothing was exported: {wrong[0].line()}. Run `heldin verify {run}` for all differences")


def _curve(plan: Mechanism) -> str:
    """Return the guarantee's epsilon for several numbers of exposed records, as a table; "" if there is no such
    curve."""
    promise = plan.guarantee()
    if not isinstance(promise, Guarantee) or promise.exposure is None:
        return ""
    of_holders = promise.exposure.counted == "holders"
    head = (
        "other users who may name the recognised entity"
        if of_holders
        else "records written by a person or naming the person"
    )
    rows = [
        f"| {'a user alone' if of_holders and not point.exposed else point.exposed} | {point.epsilon:.4g} |"
        for point in promise.exposure.curve
    ]
    return "\n".join(["", f"| {head} | epsilon |", "|---:|---:|", *rows, ""])


_NOT_STATED = "[More Information Needed]"  # of the template of Hugging Face, which its tools recognise


def _declared(record: Record) -> str:
    """Return a sentence that names the package behind the guarantee; "" if heldin computed the guarantee itself."""
    training = record.training
    if training is None or training.epsilon is None or training.declared_by is None:
        return ""
    return f"{str(training.declared_by.stated).strip()}\n\n"


# Its sections are those of Hugging Face's template (huggingface.co/docs/hub/model-cards), in its order.
_CARD = """---
{metadata}
---
# Model Card for {name}

A language model that was fine-tuned on texts that people wrote, with heldin {version}.

## Model Details

- **Developed by:** {owner}
- **Model type:** causal language model ({architecture}, {parameters:,} parameters)
- **Language(s) (NLP):** {not_stated}
- **License:** {not_stated}
- **Finetuned from model:** {base}

## Uses

### Direct Use

{purpose}

### Out-of-Scope Use

Finding out whose texts trained the model, or recovering these texts.

## Bias, Risks, and Limitations

{guarantee}

{protection}

This statement is about {covered}.

The developer audited the model for leaks about people. The results of that audit are facts about private people, so
they are not published here: ask the developer. The model may also repeat errors and prejudices of its training texts.

## How to Get Started with the Model

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("path/to/this/folder")
tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")
```

## Training Details

### Training Data

Private texts of people. The texts are not published.

### Training Procedure

`{plan}` describes the privacy mechanism of the training, and lists the SHA-256 of every file of this folder.
`heldin verify --exported FOLDER` compares the files with that list.

## Evaluation

{not_stated}

## Model Card Contact

{owner}
"""


def _card(record: Record, plan: Mechanism) -> str:
    """Return a public model card, which has no number measured on private users."""
    release, promise = release_of(record.config), plan.guarantee()
    owner, purpose = (release.owner, release.purpose) if release else (None, None)
    private, public_base = isinstance(promise, Guarantee), _public_base(record)
    tags = ["heldin", *(["differential-privacy"] if private else [])]
    metadata = {"library_name": "transformers", "pipeline_tag": "text-generation", "tags": tags}
    if public_base is not None:
        metadata["base_model"] = public_base
    protection = (
        "The guarantee limits how much the model depends on the texts of any one protected unit. A smaller epsilon"
        " protects more. It does not make the model anonymous."
        if private
        else (
            "Nothing limits how much the model reveals about single people. Anyone who has the model may be able"
            " to find out whose texts trained the model, or may extract some of these texts."
        )
    )
    label = promise.label
    earlier = str(record.training.earlier_stated).strip() if record.training else ""
    return _CARD.format(
        metadata=yaml.safe_dump(metadata, sort_keys=False).strip(),
        name=record.name,
        version=record.environment.heldin,
        owner=owner or _NOT_STATED,
        architecture=record.target.architecture,
        parameters=record.target.parameters,
        not_stated=_NOT_STATED,
        base=public_base or "a base model that is not public",
        purpose=purpose or _NOT_STATED,
        guarantee=f"{label[:1].upper() + label[1:]}.\n{_curve(plan)}\n{_declared(record)}{earlier}",
        protection=protection,
        covered=covers(plan),
        plan=PLAN,
    )
