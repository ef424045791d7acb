"""What every part uses: files that survive a power cut, output, checks of options, batches, stopping, child processes."""
