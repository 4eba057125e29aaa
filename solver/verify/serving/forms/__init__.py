"""Rules of the forms of serving plans, a file each. What holds of equal workers of any form is in the room around this one."""
