"""What is measured on trained models, and who is judged by it."""
