"""What every pipeline needs: command line, progress, code for workers."""
