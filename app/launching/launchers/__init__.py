"""Launchers, a file each: its flags, a plan as its command, its command in the words of plans; and the table of them."""
