"""What the scores of users with randomly drawn membership say about epsilon: bounds, claims and verdicts."""
