"""A study over the cells of a sweep: how much a user gains if models are further trained on the user's own records."""
