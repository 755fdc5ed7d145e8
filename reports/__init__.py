"""Reports: findings, figures, web page and PDF, made from a record."""
