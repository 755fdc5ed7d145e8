"""Many independent trainings with and without a worst-case user."""
