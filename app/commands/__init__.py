"""What each command of the command line does; ``app.cli`` declares their options."""
