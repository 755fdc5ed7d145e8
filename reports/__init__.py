"""Record to page: findings, figures, PDF."""
