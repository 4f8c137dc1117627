"""Modes, workloads, arrivals and models of other packages. These import from `launchopt.interface` alone."""
