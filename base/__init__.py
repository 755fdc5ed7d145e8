"""What every other room stands on: errors, coins, files, progress."""
