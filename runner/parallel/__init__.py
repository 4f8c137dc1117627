"""Sweeps whose jobs run side by side, by a launcher that a package adds to Hydra.

    the sweep's process          `launching`: calls the launcher, merges the records of the jobs, prints them
      launcher (joblib, ...), on this machine (`packages`) or in a cluster (`slurm`, `ray_cluster`)
        worker                   `worker`: hands each job to a process of its own, which it keeps
          job process            `job_process`: runs a job as a sweep of the basic launcher does
            producer, consumer

A process ends with the one above it. A job ends also with the sweep's process, wherever it runs (`records`).
"""
