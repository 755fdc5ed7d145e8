"""What ``heldin run --check`` says of a run before it begins: mistakes, duration, space and memory."""
