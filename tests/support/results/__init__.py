"""Folders, rows and files of results, good and bad."""
