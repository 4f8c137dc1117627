"""Shared prefixes of prompts: blocks of tokens hashed in a chain, caches that find them, and what a trace would hit."""
