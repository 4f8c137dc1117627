"""Dimensions of models from the config.json files that Hugging Face publishes."""
