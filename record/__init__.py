"""The record of an audit: the document, its environment, comparisons."""
