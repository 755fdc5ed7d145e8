"""Independent trainings with and without one worst-case user: the job, its runs, bounds and record."""
