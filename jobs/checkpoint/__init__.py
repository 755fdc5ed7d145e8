"""The audit of a model that someone else trained."""
