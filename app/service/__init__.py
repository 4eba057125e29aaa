"""Questions of callers that are answered at once and stored nowhere, each in a process of its own with limits."""
