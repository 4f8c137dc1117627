"""Figures of the page, a kind per module: a Vega-Lite specification with its title, or the reason for its absence."""
