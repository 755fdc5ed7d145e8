"""Rows of turns: chats, prompts with completions, and the templates that write them as one text."""
