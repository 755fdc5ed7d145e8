"""Was this user held in? User-inference attacks and privacy audits of fine-tuned language models."""
