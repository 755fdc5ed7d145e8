"""What scores of users whose membership was drawn say of epsilon: bounds, claims and verdicts."""
