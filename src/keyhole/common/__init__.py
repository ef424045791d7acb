"""What every part uses: files that survive a power cut, output, checks of options, child processes."""
