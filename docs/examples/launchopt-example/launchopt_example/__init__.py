"""An example of a plugin of launchopt: one mode, one workload, one arrival and one model."""
