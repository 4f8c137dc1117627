"""Rows, tables and plots of results."""
