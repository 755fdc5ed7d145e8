"""Evidence to verdict: ledger, ROC, bootstrap, record, config, pipeline."""
