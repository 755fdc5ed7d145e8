"""Many independent trainings with and without a worst-case user."""

OPTIONS = "trainings.json"  # the config and options of an audit, in its folder
