"""What every other package uses: errors, coins, files, progress."""
