"""The measures of trained models: one module per measure."""
