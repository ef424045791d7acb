"""What people look at: terminal, notebook, figures, report."""
