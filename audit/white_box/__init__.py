"""White-box audits of a training implementation: canary gradients, what is checked, power, and the trainers."""
