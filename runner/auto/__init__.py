"""mode=auto: the table of measured works, and the mode that it gives for a config, before a run is planned."""
