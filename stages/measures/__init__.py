"""The measures of trained models: one module for each."""
