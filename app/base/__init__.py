"""What every room stands on: errors, settings, log lines, documents, quoting, figures in words, and the solver called here."""
