#!/usr/bin/env bash
# The released GPT-Neo 125M, fine-tuned on mails with and without user-level DP, whole and by LoRA, attacked and reported:
# one command for one GPU. It needs heldin (make .venv/installed), and enron_by_sender.jsonl.gz in HELDIN_DATA_DIR.
#
#     replication/gpt_neo.sh [MODEL [FOLDER [OPTION ...]]]
#
# MODEL    hub name, or a folder for a machine without a network (EleutherAI/gpt-neo-125m)
# FOLDER   for the results; the same command goes on if it was stopped (runs/gpt-neo)
# OPTION   of heldin sweep; --scale trial tests the command on a CPU with a folder of the same shape, and learns nothing
set -euo pipefail
cd "$(dirname "$0")/.."
model=${1:-EleutherAI/gpt-neo-125m} folder=${2:-runs/gpt-neo}
shift $(( $# < 2 ? $# : 2 ))
heldin=$(command -v heldin || echo .venv/bin/heldin)
sweep=(sweep configs/sweeps/gpt-neo.yaml --out "$folder")
for variant in plain plain-lora uls uls-lora; do
    sweep+=(--set "variants.$variant.model.base=$model")
done
sweep+=("$@")
"$heldin" "${sweep[@]}" --check
"$heldin" "${sweep[@]}" --html
echo "report: $folder/report.pdf"
