"""What further training on a user's own records gives that user: a study over the cells of a sweep."""
